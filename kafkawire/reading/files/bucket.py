"""A bucket with a prefix, as a Place.

Endpoint, region and credentials come from boto3's own chain (environment, profiles, roles), like
the broker's; options of the URL take precedence. Throttling, timeouts, 5xx and truncated bodies are
retried (kafkawire.objectstore.retrying). Reading through pyarrow.fs was measured: as much CPU for
ranges of 4 MiB, one more request for each file, and a missing object cannot be distinguished from a
fault.
"""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.open import shared_bucket
from kafkawire.objectstore.port import Objects
from kafkawire.objectstore.retrying import ATTEMPTS, RetryingObjects
from kafkawire.objectstore.s3 import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Access, S3Provider
from kafkawire.reading.files.locations import MAX_GET_BYTES, Place, PlaceError
from kafkawire.reading.model.source import MAX_REQUESTS

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
        with self._translate_errors("", "open"):
            return self._provider().access()

    def _objects(self) -> Objects:
        return RetryingObjects(self._provider(), time.sleep, random.random)

    def _provider(self) -> S3Provider:
        try:
            return shared_bucket(self.tier, CONNECTIONS, MAX_GET_BYTES)
        except StoreError as failure:
            text = _sentence(failure, failure.text.removeprefix(f"{self.tier.bucket}: "))
            raise PlaceError(f"{self.tier.url} cannot be opened: {text}") from None

    def _reason(self, key: str, failure: StoreError) -> str:
        if failure.code == "NoSuchBucket":
            return f"there is no bucket {self.tier.bucket}: make it, or correct the URL"
        return _sentence(failure, super()._reason(key, failure))


def _sentence(failure: StoreError, text: str) -> str:
    if failure.code in ("NoCredentialsError", "PartialCredentialsError"):
        return f"there are no credentials: {_WHO}"
    reason = f"{failure.code}: {text}" if text else failure.code
    return f"S3 refused ({reason}): {_WHO}" if failure.code in _CREDENTIALS else reason
