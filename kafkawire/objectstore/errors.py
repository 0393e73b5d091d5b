"""Failures of object storage, by what the caller can do about them. Pure."""

from __future__ import annotations


class StoreError(Exception):
    """A request to object storage failed. `code`: S3's or the errno's name, for people.

    This class itself stands for what a later attempt may repair: a timeout, SlowDown (503), a
    5xx, an unreachable host, a body that ended early. A PUT that failed so may have been done all
    the same.
    """

    retryable = True

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class SlowDown(StoreError):
    """The storage asks for fewer requests (503 SlowDown, 429)."""


class NoSuchObject(StoreError):
    """There is nothing under this key (404)."""

    retryable = False


class ConditionFailed(StoreError):
    """A conditional PUT found another object than it expected (412, 409)."""

    retryable = False


class Refused(StoreError):
    """Credentials, permissions or the bucket are wrong (401, 403, NoSuchBucket, 4xx): nothing but
    a person repairs it. The caller pauses and checks again now and then."""

    retryable = False
