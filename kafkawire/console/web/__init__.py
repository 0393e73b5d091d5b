"""The frame of all pages, templates, checks of requests, and streams of events.

Easy to get wrong: names and records are written by strangers. Templates escape all of them, and no
template builds a URL, script or style from text: `rendering.link` makes every URL.
"""
