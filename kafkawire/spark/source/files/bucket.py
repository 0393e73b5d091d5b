"""A bucket with a prefix, for Spark.

Endpoint, region and credentials come from boto3's own chain (environment, profiles, roles), like
the broker's; options of the URL take precedence. Throttling, timeouts, 5xx and truncated bodies are
retried (kafkawire.objectstore.retrying). Reading through pyarrow.fs was measured: as much CPU for
ranges of 4 MiB, one more request for each file, and a missing object cannot be distinguished from a
fault.

There is one client per process and environment, because a Spark worker runs many tasks.
"""

from __future__ import annotations

import os
import random
import time
from threading import Lock
from typing import Any, ClassVar

import boto3

from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.port import Objects
from kafkawire.objectstore.retrying import ATTEMPTS, RetryingObjects
from kafkawire.objectstore.s3 import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Access, S3Provider
from kafkawire.objectstore.url import TierUrl
from kafkawire.spark.model.source import MAX_REQUESTS
from kafkawire.spark.source.files.locations import MAX_GET_BYTES, Place, PlaceError

CONNECTIONS = MAX_REQUESTS + 8
"""Connections kept by a client, for concurrent reads and writes."""
_CREDENTIALS = {
    "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "AllAccessDisabled", "AccountProblem", "403", "401",
}  # fmt: skip
_WHO = (
    "give credentials that may do this by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by "
    "AWS_PROFILE"
)


class BucketPlace(Place):
    """A bucket with a prefix, see Place."""

    at_once: ClassVar[int] = 8
    """Concurrent requests of 8 MiB each, 64 MiB of memory: all of a usual task. A remote bucket
    provides 20 to 50 MB/s per connection, latency included; so many provide as much as a core
    decodes. Close ones lose nothing."""

    def arrow(self) -> tuple[Any, str]:
        """Return a pyarrow.fs.FileSystem and the path of this place in it. It has boto3's
        credentials, as they are now."""
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        found = self.access()
        own: Any = {}
        if found.access_key:
            own = {
                "access_key": found.access_key,
                "secret_key": found.secret_key,
                "session_token": found.session_token or None,
            }
        if found.endpoint:
            own["endpoint_override"] = found.endpoint
            own["force_virtual_addressing"] = self.tier.path_style is False
        made = S3FileSystem(
            region=found.region,
            connect_timeout=CONNECT_TIMEOUT_S,
            request_timeout=READ_TIMEOUT_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            **own,
        )
        return made, f"{self.tier.bucket}/{self.tier.prefix}".rstrip("/")

    def access(self) -> Access:
        """Return what other libraries need to use this bucket. PlaceError."""
        with self._translated("", "open"):
            return _provider(self.tier).access()

    def _objects(self) -> Objects:
        return RetryingObjects(_provider(self.tier), time.sleep, random.random)

    def _reason(self, key: str, failure: StoreError) -> str:
        if failure.code == "NoSuchBucket":
            return f"there is no bucket {self.tier.bucket}: make it, or correct the URL"
        return _sentence(failure, super()._reason(key, failure))


def _sentence(failure: StoreError, text: str) -> str:
    if failure.code in ("NoCredentialsError", "PartialCredentialsError"):
        return f"there are no credentials: {_WHO}"
    reason = f"{failure.code}: {text}" if text else failure.code
    return f"S3 refused ({reason}): {_WHO}" if failure.code in _CREDENTIALS else reason


_making = Lock()
_made: dict[tuple[object, ...], Any] = {}
"""Cache key: the process, because a child must not use its parent's connections, and the
environment that boto3 reads."""


def _environment() -> tuple[object, ...]:
    about = sorted((name, value) for name, value in os.environ.items() if name[:4] == "AWS_")
    return os.getpid(), *about


def _provider(tier: TierUrl) -> S3Provider:
    """Return the provider of this process. Does not create the bucket. Raises PlaceError."""
    environment = _environment()
    key = (tier, *environment)
    found: S3Provider | None = _made.get(key)
    if found is not None:
        return found
    with _making:
        if key in _made:
            made: S3Provider = _made[key]
            return made
        try:
            session = _made.get(environment) or boto3.session.Session()
            provider = S3Provider(
                tier, 0, CONNECTIONS, 0, seen=True, session=session, max_get_bytes=MAX_GET_BYTES
            )
        except StoreError as failure:
            text = _sentence(failure, failure.text.removeprefix(f"{tier.bucket}: "))
            raise PlaceError(f"{tier.url} cannot be opened: {text}") from None
        _made[environment], _made[key] = session, provider
        return provider
