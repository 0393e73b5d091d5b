"""Restore of access rules, users, quotas and delegation tokens from a copy of the metadata.

For `kafkawire security restore`. The secret from which salts of unknown users are made belongs to
the users: `copying` says when it is copied.
"""
