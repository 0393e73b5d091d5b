"""The pages: one module for each subject, one function for each page.

A page is rendered whole, or, for htmx, only the part of it that the request replaces: both have the
same URL and work without JavaScript.
"""
