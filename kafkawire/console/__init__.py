"""The console: topics, records and groups of any Kafka cluster in a browser.

`views` has functions that ask a cluster and return typed records; pages use them, and so will the
HTTP API and other front ends. `app` has the routes, one function per page, `security` what every
request is checked for, `rendering` the templates, `live` the streams of server-sent events.
`kafkawire console` starts it in a process apart from the broker. It keeps nothing: a page is a URL,
and its contents are requested when it is opened.

Easy to get wrong: names and records are written by strangers. Templates escape all of them, and no
template builds a URL, script or style from text: `rendering.link` makes every URL. Rights are
checked where something is done, in `views`, never in a route.
"""
