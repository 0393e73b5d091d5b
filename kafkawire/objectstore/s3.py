"""S3 with boto3: AWS, MinIO and compatible storage. Imported when the first one is opened.

Endpoint, region and credentials come from boto3's own chain (environment, profiles, roles); options
of the tier's URL take precedence. Path-style addressing is used unless the endpoint is AWS's, as in
botocore. A request makes one attempt, because the caller decides about retries; only parts of a
multipart transfer are retried here, so that one failed part does not fail the whole transfer.

Uploads have a checksum that S3 verifies (boto3's default, CRC-32 of each part).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from s3transfer.manager import TransferConfig, TransferManager

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.objectstore.folder import new_file
from kafkawire.objectstore.port import (
    MAX_GET_BYTES,
    Listed,
    Provider,
    Reading,
    Stored,
    expect_size,
    pages,
    too_large,
)
from kafkawire.objectstore.s3_errors import parts_of, translate_boto_errors
from kafkawire.objectstore.url import TierUrl, check_key
from kafkawire.own_files import open_own, refuse_links

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from types_boto3_s3.client import S3Client


# Bodies of S3 responses, read incrementally.


READ_CHUNK_BYTES = 256 << 10
"""Bytes read of a body at a time: small enough for the allocator's pool."""


class Stream:
    """An open body with `read`, independent of boto3."""

    __slots__ = ("_body", "_call")

    def __init__(self, body: Any, call: Call) -> None:
        self._body = body
        self._call = call

    def read(self, size: int = -1, /) -> bytes:
        self._call.check()
        data: bytes = self._body.read(size if size >= 0 else None)
        return data


def fill(body: StreamingBody, view: memoryview, call: Call) -> None:
    while view:
        call.check()
        count = body.readinto(view[:READ_CHUNK_BYTES])  # type: ignore[arg-type]
        if not count:
            raise StoreError("IncompleteRead", f"the answer ended {len(view)} bytes too early")
        view = view[count:]


def ender(body: StreamingBody) -> Callable[[], None]:
    """Interrupts a blocked read: no more bytes will arrive."""
    shutdown = getattr(getattr(body, "_raw_stream", None), "shutdown", None)

    def end() -> None:
        if shutdown is not None:
            with contextlib.suppress(Exception):  # already done
                shutdown()

    return end


def range_of(start: int, length: int | None) -> dict[str, str]:
    if start < 0:
        return {"Range": f"bytes={start}"}
    if length is None:
        return {"Range": f"bytes={start}-"} if start else {}
    return {"Range": f"bytes={start}-{start + length - 1}"}


CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
"""Timeout between two packets, not of a whole request."""
PART_ATTEMPTS = 3
PARTS_AT_ONCE_PER_TRANSFER = 2
"""Concurrent parts per transfer: one is signed while another is sent."""
STREAMED_PARTS = 2
"""Parts of a stream held in memory."""
MAX_NEXT_PAGES = 16
"""Tokens of the pages that follow the last ones that were read: of some listings at once. Without
its token a page is found by its first key."""
UNORDERED = "UnorderedListing"
NEEDED = "a tier needs a storage that lists all objects by key, in pages"
COPY_PART_BYTES = 128 << 20
"""Size of parts that the storage copies internally, each within the read timeout."""


class Access(NamedTuple):
    """Endpoint and credentials for S3 as boto3 finds them now. `endpoint`: replaces AWS's, empty
    for AWS; without credentials the rest is empty."""

    region: str
    endpoint: str
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""


class S3Provider:
    """A bucket as a Provider (kafkawire.objectstore.port). Raises Refused if no client can be
    created.

    `part_bytes`: part size of multipart transfers; `calls`: concurrent calls, and so pooled
    connections; `transfers`: those that may move whole objects; `storage_class`: of objects whose
    keys begin with `storage_class_prefix`, empty: the bucket's default.
    """

    def __init__(
        self,
        tier: TierUrl,
        part_bytes: int,
        calls: int,
        transfers: int,
        storage_class: str = "",
        storage_class_prefix: str = "",
        seen: bool = False,
        session: boto3.session.Session | None = None,
        max_get_bytes: int = MAX_GET_BYTES,
    ) -> None:
        self._seen = seen
        self._max_get_bytes = max_get_bytes
        self._tier = tier
        self._prefix = tier.prefix + "/" if tier.prefix else ""
        self._part_bytes = part_bytes
        self._parts_at_once = transfers * PARTS_AT_ONCE_PER_TRANSFER
        self._asking = Lock()
        self._asked = False
        with translate_boto_errors(tier.bucket):
            self._session = session = session or boto3.session.Session()
            self._client: S3Client = self._make_client(session, 1, calls)
            kept = self._parts_at_once * 2  # uploads and downloads
            self._moving = (
                self._make_client(session, PART_ATTEMPTS, kept) if transfers else self._client
            )
        self._next_pages: dict[tuple[str, str], str] = {}
        self._managers: dict[str, tuple[int, TransferManager]] = {}
        self._storage_class = storage_class
        self._storage_class_prefix = storage_class_prefix
        self._encrypted: dict[str, Any] = {}
        if tier.sse is not None:
            self._encrypted["ServerSideEncryption"] = tier.sse
        if tier.sse_kms_key_id is not None:
            self._encrypted["SSEKMSKeyId"] = tier.sse_kms_key_id

    def _make_client(self, session: boto3.session.Session, attempts: int, kept: int) -> S3Client:
        style: Any = {True: "path", False: "virtual", None: "auto"}[self._tier.path_style]
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=kept,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            s3={"addressing_style": style},
            user_agent_extra="kafkawire",
        )
        client = session.client(
            "s3",
            region_name=self._tier.region,
            endpoint_url=self._tier.endpoint,
            config=config,
        )
        if self._tier.bucket_owner is not None or self._tier.sse_bucket_key is not None:
            client.meta.events.register("before-parameter-build.s3", self._complete)
        return client

    def _complete(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        """Add what every request has that knows it; s3transfer passes none of these on."""
        allowed = model.input_shape.members if model.input_shape is not None else {}
        for name, value in (
            ("ExpectedBucketOwner", self._tier.bucket_owner),
            ("BucketKeyEnabled", self._tier.sse_bucket_key),
        ):
            if value is not None and name in allowed:
                params[name] = value

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        refuse_links((path,))
        size = os.stat(path).st_size
        name = self._name(key)
        if size <= self._part_bytes and bytes_per_second <= 0:
            with open(path, "rb", opener=open_own) as file:
                return self._put(key, file, size)
        manager = self._manager("up", bytes_per_second)
        with translate_boto_errors(key, local=True):
            future = manager.upload(path, self._tier.bucket, name, extra_args=self._extra(key))
            call.ends_by(future.cancel)
            future.result()
        return self._check_transfer(key, size, call)

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        name = self._name(key)
        body: Any = Stream(source, call)  # s3transfer only needs `read`
        with translate_boto_errors(key):
            manager = self._manager("up", -1)
            future = manager.upload(body, self._tier.bucket, name, extra_args=self._extra(key))
            call.ends_by(future.cancel)
            future.result()
        return self._check_transfer(key, size_bytes, call)

    def _check_transfer(self, key: str, size_bytes: int, call: Call) -> Stored:
        """Return what a transfer has stored. Raises StoreError if it has another size."""
        found = self.head(key, call)
        expect_size(key, found.size_bytes, size_bytes)
        parts = -(-size_bytes // self._part_bytes)
        return found._replace(requests=parts + 3 if parts > 1 else 2)

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        if_match: str | None,
        if_absent: bool,
        call: Call,
    ) -> Stored:
        """Store a small object atomically, if the condition is met."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        if if_match is not None:
            condition["IfMatch"] = f'"{if_match}"'
        try:
            return self._put(key, bytes(data), len(data), condition)
        except NoSuchObject:
            raise ConditionFailed("NoSuchKey", f"{key} is not there") from None

    def _put(
        self,
        key: str,
        body: bytes | IO[bytes],
        size_bytes: int,
        condition: dict[str, str] | None = None,
    ) -> Stored:
        name = self._name(key)
        extra: Any = {**self._extra(key), **(condition or {})}
        with translate_boto_errors(key):
            answer = self._client.put_object(
                Bucket=self._tier.bucket, Key=name, Body=body, ContentLength=size_bytes, **extra
            )
            return Stored(_bare(answer["ETag"]), size_bytes)

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        if length is not None and length <= 0:
            return b"", self.head(key, call).etag
        asked = range_of(start, None if start < 0 else length)
        try:
            with self._body(key, asked) as (body, size, etag):
                if size > self._max_get_bytes:
                    raise too_large(key, size, self._max_get_bytes)
                data = body.read()
        except StoreError as failure:
            if failure.code not in ("InvalidRange", "416"):
                raise
            return b"", self.head(key, call).etag  # no byte in the range
        return (data if length is None else data[:length]), etag

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        wanted = sum(map(len, into))
        with self._body(key, range_of(start, wanted)) as (body, size, _):
            expect_size(f"what {key} holds from {start} on", size, wanted)
            call.ends_by(ender(body), writing=True)
            for view in into:
                fill(body, view, call)

    def download(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        name = self._name(key)
        manager = self._manager("down", bytes_per_second)
        with new_file(path) as out:
            with self._head_errors(), translate_boto_errors(key, local=True):
                future = manager.download(self._tier.bucket, name, out)
                call.ends_by(future.cancel)
                future.result()
            size, etag = future.meta.size or 0, getattr(future.meta, "etag", None)
            expect_size(f"the copy of {key}", out.seek(0, os.SEEK_END), size)
            if not etag:
                raise StoreError("NoETag", f"{key}: this is no answer of S3")
        parts = -(-size // self._part_bytes)
        return Stored(_bare(etag), size, max(1, parts) + 1)

    @contextlib.contextmanager
    def reading(self, key: str, call: Call) -> Iterator[Reading]:
        with self._body(key, {}) as (body, _, _):
            yield Stream(body, call)

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """Copy within the storage, server-side if both are at one endpoint."""
        if not isinstance(source, S3Provider) or source._place() != self._place():
            return None
        origin: Any = {"Bucket": source._tier.bucket, "Key": source._name(source_key)}
        name = self._name(key)
        with translate_boto_errors(key):
            future = self._manager("copy", -1).copy(
                origin, self._tier.bucket, name, extra_args=self._extra(key),
                source_client=source._moving,
            )  # fmt: skip
            call.ends_by(future.cancel)
            future.result()
        size = future.meta.size or 0
        parts = -(-size // COPY_PART_BYTES)
        return self.head(key, call)._replace(requests=parts + 4 if parts > 1 else 3)

    def head(self, key: str, call: Call) -> Stored:
        name = self._name(key)
        with self._head_errors(), translate_boto_errors(key):
            answer = self._client.head_object(Bucket=self._tier.bucket, Key=name)
            return Stored(_bare(answer["ETag"]), answer["ContentLength"])

    @contextlib.contextmanager
    def _head_errors(self) -> Iterator[None]:
        """A response to HEAD has no error text, so a missing bucket must be distinguished from a
        missing object by another request."""
        try:
            yield
        except NoSuchObject:
            if not self._has_bucket():
                raise self._no_bucket("is gone") from None
            raise

    def delete(self, keys: Sequence[str], call: Call) -> int:
        named: Any = [{"Key": self._name(key)} for key in keys]
        with translate_boto_errors(f"{len(keys)} objects"):
            answer = self._client.delete_objects(
                Bucket=self._tier.bucket, Delete={"Objects": named}
            )
            for error in answer.get("Errors", ()):
                if error.get("Code") != "NoSuchKey":
                    raise ClientError({"Error": error}, "DeleteObjects")
        reported = len(answer.get("Deleted", ())) + len(answer.get("Errors", ()))
        if reported != len(named):
            raise StoreError("NotDeleted", f"of {len(named)} objects {reported} were answered for")
        return 1

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """Return a page of the objects with this prefix, by key. Raises Refused for storage that
        does not list by key, or whose pages do not advance.

        The page after an earlier one is requested by the storage's own token: not every storage
        obeys `StartAfter`. Where it is ignored, keys up to `after` are passed over."""
        self._ready()
        found: list[Listed] = []
        with self._asking:
            token = self._next_pages.pop((prefix, after), "")
        last = after if token else ""
        while len(found) < limit:
            call.check()
            where: Any = {"ContinuationToken": token} if token else {}
            if not token and after:
                where = {"StartAfter": self._prefix + after}
            with translate_boto_errors(prefix):
                answer = self._client.list_objects_v2(
                    Bucket=self._tier.bucket,
                    Prefix=self._prefix + prefix,
                    MaxKeys=limit - len(found),
                    **where,
                )
                for row in answer.get("Contents", ()):
                    key = row["Key"][len(self._prefix) :]
                    if key <= last:
                        raise Refused(
                            UNORDERED, f"the storage lists {key!r} after {last!r}: {NEEDED}"
                        )
                    last = key
                    if key > after:
                        modified = int(row["LastModified"].timestamp() * 1000)
                        found.append(Listed(key, row["Size"], modified, _bare(row["ETag"])))
                before, token = token, answer.get("NextContinuationToken", "")
                if not answer["IsTruncated"]:
                    return found
                if not token or token == before:
                    raise Refused(UNORDERED, f"the storage has no page after {last!r}: {NEEDED}")
        with self._asking:
            self._next_pages[prefix, last] = token
            if len(self._next_pages) > MAX_NEXT_PAGES:
                del self._next_pages[next(iter(self._next_pages))]
        return found

    def scan(self, prefix: str, call: Call) -> Iterator[Listed]:
        return pages(self, prefix, call)

    def access(self) -> Access:
        """Return what other libraries need to use the same bucket. Raises StoreError."""
        with translate_boto_errors(self._tier.bucket):
            meta = self._client.meta
            found = self._session.get_credentials()
            frozen = found.get_frozen_credentials() if found is not None else None
        region = meta.region_name if meta.region_name not in (None, "aws-global") else "us-east-1"
        endpoint = "" if self._place() == "aws" else meta.endpoint_url
        if frozen is None:
            return Access(region, endpoint)
        token = frozen.token or ""
        return Access(region, endpoint, frozen.access_key or "", frozen.secret_key or "", token)

    def clear_up(self, keys: Sequence[str]) -> None:
        """Abort incomplete uploads of these keys. Their parts are charged but not listed as
        objects."""
        bucket = self._tier.bucket
        for key in keys:
            name = self._name(key)
            with translate_boto_errors(key):
                found = self._client.list_multipart_uploads(Bucket=bucket, Prefix=name)
                for upload in found.get("Uploads", ()):
                    self._client.abort_multipart_upload(
                        Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

    def _extra(self, key: str) -> dict[str, Any]:
        """Return the headers of an upload. Only segments get the storage class: manifest and owner
        are small and often replaced, which costs extra in other classes."""
        if self._storage_class and key.startswith(self._storage_class_prefix):
            return {**self._encrypted, "StorageClass": self._storage_class}
        return self._encrypted

    def _name(self, key: str) -> str:
        """Return the key in the bucket, after creating the bucket if needed and allowed."""
        check_key(key)
        self._ready()
        return self._prefix + key

    def _ready(self) -> None:
        """Check once that the bucket exists; create it if allowed."""
        if self._seen or self._asked:
            return
        bucket = self._tier.bucket
        with self._asking, translate_boto_errors(bucket):
            if self._seen or self._asked:
                return
            if not self._has_bucket():
                self._make_bucket()
            self._asked = True

    def _has_bucket(self) -> bool:
        """Return False only if S3 confirms it. Without permission to check, the bucket may still be
        usable; the next request has a better error message than HEAD."""
        try:
            self._client.head_bucket(Bucket=self._tier.bucket)
        except ClientError as failure:
            status = parts_of(failure)[0]
            if not 300 <= status < 500:
                raise
            return status != 404
        self._seen = True
        return True

    def _no_bucket(self, why: str) -> Refused:
        return Refused("NoSuchBucket", f"the bucket {self._tier.bucket} {why}")

    def _make_bucket(self) -> None:
        bucket = self._tier.bucket
        if not self._tier.create:
            raise self._no_bucket("does not exist, and create=false forbids to make it")
        region = self._client.meta.region_name
        where: Any = {}
        if region and region not in ("us-east-1", "aws-global"):
            where = {"CreateBucketConfiguration": {"LocationConstraint": region}}
        try:
            self._client.create_bucket(Bucket=bucket, **where)
        except ClientError as failure:
            # created by another broker meanwhile
            if parts_of(failure)[1] != "BucketAlreadyOwnedByYou":
                raise
        self._seen = True

    def _place(self) -> str:
        """Return where requests are sent; all of AWS is one location."""
        url = self._client.meta.endpoint_url
        return "aws" if ".amazonaws.com" in url else url

    def _manager(self, kind: str, bytes_per_second: int) -> TransferManager:
        """Return the transfer manager of a kind and rate, which shares threads and the rate
        limit."""
        rate = bytes_per_second if bytes_per_second > 0 else None
        with self._asking:
            known = self._managers.get(kind)
            if known is None or known[0] != bytes_per_second:
                part = COPY_PART_BYTES if kind == "copy" else self._part_bytes
                config = TransferConfig(
                    multipart_threshold=part + 1,
                    multipart_chunksize=part,
                    max_request_concurrency=self._parts_at_once,
                    max_in_memory_upload_chunks=STREAMED_PARTS,
                    num_download_attempts=PART_ATTEMPTS,
                    max_bandwidth=rate,
                )
                known = bytes_per_second, TransferManager(self._moving, config)
                self._managers[kind] = known
            return known[1]

    @contextlib.contextmanager
    def _body(self, key: str, asked: dict[str, str]) -> Iterator[tuple[StreamingBody, int, str]]:
        """Return (body, its size, ETag) of an object or of the requested range."""
        name = self._name(key)
        extra: Any = asked
        with translate_boto_errors(key):
            answer = self._client.get_object(Bucket=self._tier.bucket, Key=name, **extra)
            body, size = answer["Body"], answer["ContentLength"]
            try:
                if asked and "ContentRange" not in answer:
                    raise Refused("NoRanges", f"{key}: this storage does not answer ranges")
                yield body, size, _bare(answer["ETag"])
            except BaseException:
                body.close()  # the unread rest would precede the next response
                raise


def _bare(etag: str) -> str:
    return etag.strip('"')
