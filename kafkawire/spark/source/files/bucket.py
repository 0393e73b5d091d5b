"""A bucket with a prefix, by boto3.

Endpoint, region and credentials come from boto3's own chain (environment, profiles, roles), as the
broker's do; options of the URL go before them. Throttling, timeouts and 5xx are tried again by
botocore (mode `standard`: back-off with jitter), and here what breaks off within a body. Reading
through pyarrow.fs was measured: as much CPU for ranges of 4 MiB, one more request for each file,
and an object that is gone cannot be told from a fault.

One client for a process and its environment: a Spark worker does many tasks.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from kafkawire.objectstore.url import TierUrl
from kafkawire.spark.source.files.locations import (
    MAX_GET_BYTES,
    Place,
    PlaceError,
    name_checked,
    too_large,
)
from kafkawire.spark.source.model import MAX_REQUESTS

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30
"""The second is between two packets, not of a whole request."""
ATTEMPTS = 6
"""Of a request, and of reading a body: with botocore's back-off half a minute at most."""
CONNECTIONS = MAX_REQUESTS + 8
"""Kept by a client: for what reads, and for what writes beside it."""
MAX_DELETE = 1000
"""S3's bound on one request."""
_CREDENTIALS = {
    "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "AllAccessDisabled", "AccountProblem", "403", "401",
}  # fmt: skip
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict", "412"}
_BROKEN = (boto.HTTPClientError, boto.IncompleteReadError, OSError)
"""A body that breaks off; botocore wraps what urllib3 raises."""


class BucketPlace(Place):
    """See the module and Place."""

    at_once: ClassVar[int] = 8
    """Of 8 MiB each, 64 MiB of memory: all of a usual task. A far bucket gives a connection 20 to
    50 MB/s, its wait included; so many give as much as a core decodes. Near ones lose nothing."""

    def get(self, key: str) -> bytes:
        """See Place."""
        return self._read(key, {})

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See Place."""
        if length <= 0:
            return b""
        return self._read(key, {"Range": f"bytes={start}-{start + length - 1}"})[:length]

    def _read(self, key: str, asked: Any) -> bytes:
        name = self._name(key)
        for attempt in range(1, ATTEMPTS + 1):
            with self._translated(key, "read"):
                try:
                    answer: Any = self._client.get_object(
                        Bucket=self.tier.bucket, Key=name, **asked
                    )
                except boto.ClientError as failure:
                    if _code(failure) not in ("InvalidRange", "416"):
                        raise
                    return b""  # it has no byte there
                size = answer["ContentLength"]
                if size > MAX_GET_BYTES:
                    answer["Body"].close()
                    raise too_large(self, key, size)
                try:
                    data: bytes = answer["Body"].read()
                    return data
                except _BROKEN:
                    if attempt == ATTEMPTS:
                        raise
            time.sleep(random.uniform(0, 0.1 * 2**attempt))
        raise AssertionError("the last attempt raises")

    def size(self, key: str) -> int:
        """See Place."""
        with self._translated(key, "look at"):
            answer = self._client.head_object(Bucket=self.tier.bucket, Key=self._name(key))
            return answer["ContentLength"]

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """See Place."""
        name, data = self._name(key), bytes(data)
        extra: Any = {"IfNoneMatch": "*"} if if_absent else {}
        if self.tier.sse is not None:
            extra["ServerSideEncryption"] = self.tier.sse
        if self.tier.sse_kms_key_id is not None:
            extra["SSEKMSKeyId"] = self.tier.sse_kms_key_id
        with self._translated(key, "write"):
            try:
                self._client.put_object(Bucket=self.tier.bucket, Key=name, Body=data, **extra)
            except boto.ClientError as failure:
                retried = failure.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
                if _code(failure) not in _TAKEN or not retried or self.get(key) != data:
                    raise
                # An attempt whose answer was lost has stored it.

    def list(self, prefix: str = "") -> Iterator[str]:
        """See Place."""
        own = self._prefix
        with self._translated(prefix, "list"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.tier.bucket, Prefix=own + prefix
            )
            for page in pages:
                for row in page.get("Contents", ()):
                    yield row["Key"][len(own) :]

    def delete(self, keys: Iterable[str]) -> None:
        """See Place."""
        left = iter(keys)
        while some := list(islice(left, MAX_DELETE)):
            named: Any = [{"Key": self._name(key)} for key in some]
            what = some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} others"
            with self._translated(what, "delete"):
                answer = self._client.delete_objects(
                    Bucket=self.tier.bucket, Delete={"Objects": named, "Quiet": True}
                )
                for error in answer.get("Errors", ()):
                    if error.get("Code") != "NoSuchKey":
                        raise boto.ClientError({"Error": error}, "DeleteObjects")

    def arrow(self) -> tuple[Any, str]:
        """See Place. With boto3's credentials, as they are now."""
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        with self._translated("", "open"):
            client = self._client
            found = _session().get_credentials()
            frozen = found.get_frozen_credentials() if found is not None else None
        own: Any = {}
        if frozen is not None:
            own = {
                "access_key": frozen.access_key,
                "secret_key": frozen.secret_key,
                "session_token": frozen.token,
            }
        endpoint = client.meta.endpoint_url
        if "amazonaws.com" not in endpoint:
            own["endpoint_override"] = endpoint
            own["force_virtual_addressing"] = self.tier.path_style is False
        made = S3FileSystem(
            region=client.meta.region_name,
            connect_timeout=CONNECT_TIMEOUT_S,
            request_timeout=READ_TIMEOUT_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
            **own,
        )
        return made, f"{self.tier.bucket}/{self.tier.prefix}".rstrip("/")

    @property
    def _client(self) -> S3Client:
        return _client(self.tier)

    @property
    def _prefix(self) -> str:
        return f"{self.tier.prefix}/" if self.tier.prefix else ""

    def _name(self, key: str) -> str:
        name_checked(self, key)
        return self._prefix + key

    @contextlib.contextmanager
    def _translated(self, key: str, what: str) -> Iterator[None]:
        try:
            yield
        except boto.ClientError as failure:
            raise self._failure(key, what, failure) from None
        except (boto.NoCredentialsError, boto.PartialCredentialsError) as failure:
            raise PlaceError(f"cannot {what} {self.where(key)}: {_sentence(failure)}") from None
        except (boto.BotoCoreError, OSError) as failure:
            if isinstance(failure, (FileNotFoundError, FileExistsError)):
                raise
            raise PlaceError(f"cannot {what} {self.where(key)}: {_sentence(failure)}") from None

    def _failure(self, key: str, what: str, failure: boto.ClientError) -> Exception:
        code = _code(failure)
        if code in _TAKEN:
            return FileExistsError(f"{self.where(key)} is there already")
        if code == "NoSuchKey" or (code == "404" and self._has_bucket()):
            return FileNotFoundError(f"{self.where(key)} is not there")
        text = str(failure.response.get("Error", {}).get("Message", "")).rstrip(".")
        reason = f"{code}: {text}" if text else code
        if code in ("NoSuchBucket", "404"):
            reason = f"there is no bucket {self.tier.bucket}: make it, or correct the URL"
        elif code in _CREDENTIALS:
            reason = f"S3 refused ({reason}): {_WHO}"
        return PlaceError(f"cannot {what} {self.where(key)}: {reason}")

    def _has_bucket(self) -> bool:
        """Whether it was the key that is missing: an answer to HEAD has no text."""
        try:
            self._client.head_bucket(Bucket=self.tier.bucket)
        except boto.ClientError as failure:
            return _code(failure) != "404"
        except boto.BotoCoreError:
            return True
        return True


_WHO = (
    "give credentials that may do this by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or by "
    "AWS_PROFILE"
)


def _sentence(failure: BaseException) -> str:
    if isinstance(failure, (boto.NoCredentialsError, boto.PartialCredentialsError)):
        return f"there are no credentials: {_WHO}"
    return str(failure).rstrip(".") or type(failure).__name__


def _code(failure: boto.ClientError) -> str:
    return str(failure.response.get("Error", {}).get("Code", ""))


_making = Lock()
_made: dict[tuple[object, ...], Any] = {}
"""By process, as a child must not use its parent's connections, and by what boto3 looks at."""


def _environment() -> tuple[object, ...]:
    about = sorted((name, value) for name, value in os.environ.items() if name[:4] == "AWS_")
    return os.getpid(), *about


def _session() -> boto3.session.Session:
    key = _environment()
    with _making:
        if key not in _made:
            _made[key] = boto3.session.Session()
        found: boto3.session.Session = _made[key]
    return found


def _client(tier: TierUrl) -> S3Client:
    key = (tier, *_environment())
    found: S3Client | None = _made.get(key)
    if found is None:
        session = _session()
        with _making:
            found = _made[key] = _made.get(key) or _new_client(session, tier)
    return found


def _new_client(session: boto3.session.Session, tier: TierUrl) -> S3Client:
    style: Any = {True: "path", False: "virtual", None: "auto"}[tier.path_style]
    try:
        return session.client(
            "s3",
            region_name=tier.region,
            endpoint_url=tier.endpoint,
            config=Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                max_pool_connections=CONNECTIONS,
                retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
                s3={"addressing_style": style},
                user_agent_extra="kafkawire",
            ),
        )
    except (boto.BotoCoreError, ValueError) as failure:
        raise PlaceError(f"{tier.url} cannot be opened: {_sentence(failure)}") from None
