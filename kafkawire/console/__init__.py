"""The console: topics, records and groups of any Kafka cluster in a browser.

`views` has functions that ask a cluster and return typed records; pages use them, and so do other
front ends. `pages` has a module for each subject, `web` what they share, `app` all routes and the
answers to failures. `kafkawire console` starts it in a process apart from the broker. It keeps
nothing: a page is a URL, and its contents are requested when it is opened.

Easy to get wrong: rights are checked where something is done, in `views`, never in a route.
"""
