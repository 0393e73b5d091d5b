"""Failures of object storage, by what the caller can do about them. Pure."""

from __future__ import annotations


class StoreError(Exception):
    """A request to object storage failed. `code`: S3's or the errno's name, for people.

    This class itself is for temporary errors: a timeout, SlowDown (503), a 5xx, an unreachable
    host, a truncated body. A PUT that failed with it may have succeeded nevertheless.
    """

    retryable = True

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SlowDown(StoreError):
    """The storage requests a lower rate (503 SlowDown, 429)."""


class NoSuchObject(StoreError):
    """There is no object under this key (404)."""

    retryable = False


class ConditionFailed(StoreError):
    """The condition of a conditional PUT was not met (412, 409)."""

    retryable = False


class Refused(StoreError):
    """Wrong credentials, permissions or bucket (401, 403, NoSuchBucket, 4xx), which an operator
    must correct. The caller pauses and checks again periodically."""

    retryable = False
