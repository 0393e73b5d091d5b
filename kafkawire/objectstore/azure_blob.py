"""Azure Blob Storage with azure-storage-blob. Imported when the first container is opened.

An object is a block blob. A request makes one attempt, because the caller decides about retries;
only the blocks of large transfers are retried here. Uploads have an MD5 that Azure verifies. Blocks
of an upload that was interrupted are not visible, and Azure removes them after a week.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from threading import Lock
from typing import Any

import requests
from azure.core import MatchConditions
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import ContainerClient

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import (
    ConditionFailed,
    NoSuchObject,
    Refused,
    SlowDown,
    StoreError,
)
from kafkawire.objectstore.folder import new_file
from kafkawire.objectstore.port import (
    Listed,
    Opening,
    Provider,
    Reading,
    Stored,
    expect_size,
    pages,
    too_large,
)
from kafkawire.objectstore.url import check_key
from kafkawire.own_files import open_own, refuse_links
from kafkawire.rate_limit import RateLimit, SharedRateLimit

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
"""Timeout between two packets, not of a whole request."""
BLOCK_RETRIES = 2
BLOCKS_AT_ONCE = 2
"""Concurrent blocks per transfer."""
MAX_BATCH = 256
"""Azure's limit on deletions in one request."""
MAX_NEXT_PAGES = 16
"""Markers of the pages that follow the last ones that were read. Without its marker a page is found
by listing from the prefix on, because Azure has no `StartAfter`."""
MAX_PUT_BYTES = 1 << 30
"""Larger than any object of `put`, which must be one request: blocks of two writers of one key
would have the same names, and the object of one could get blocks of the other."""
READ_BYTES = 4 << 20
"""Bytes of one ranged request of a download."""
_NO_CONTAINER = ("ContainerNotFound", "ContainerBeingDeleted", "ContainerDisabled")
_CONDITION = ("BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet")
_LATER = ("InvalidRange", "OperationTimedOut", "InternalError", "Md5Mismatch", "InvalidBlockList")


def kind_of(status: int, code: str) -> type[StoreError]:
    """Return the kind of an error response from its HTTP status (0: unknown) and Azure's code."""
    if code in _NO_CONTAINER:
        return Refused
    if code in _CONDITION or (not code and status == 412):
        return ConditionFailed
    if status in (429, 503):
        return SlowDown
    if code in _LATER or status in (408, 416):
        return StoreError
    if status == 404:
        return NoSuchObject
    return Refused if 300 <= status < 500 else StoreError


def failure_of(what: str, failure: Exception) -> StoreError:
    """Return the failure of a request for `what`, a key or a container."""
    if isinstance(failure, StoreError):
        return failure
    if isinstance(failure, HttpResponseError):
        found = getattr(failure, "error_code", None)  # a text, or a member of StorageErrorCode
        code = str(getattr(found, "value", found) or "")
        status = int(failure.status_code or 0)
        lines = str(failure.message or "").strip().splitlines()
        text = lines[0] if lines else "no reason was given"
        if code in _NO_CONTAINER:
            return Refused("NoSuchBucket", f"the container of {what} does not exist")
        return kind_of(status, code)(code or str(status), f"{what}: {text}")
    # ClientAuthenticationError without a response: azure-identity found no credentials.
    kind = Refused if isinstance(failure, ClientAuthenticationError) else StoreError
    return kind(type(failure).__name__, f"{what}: {' '.join(str(failure).split())[:500]}")


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Convert errors of Azure's package into StoreErrors."""
    try:
        yield
    except (AzureError, requests.RequestException, ValueError) as failure:
        raise failure_of(what, failure) from None


class AzureProvider:
    """A container as a Provider (kafkawire.objectstore.port)."""

    def __init__(
        self,
        account_url: str,
        container: str,
        prefix: str,
        create: bool,
        credential: str | None,
        opening: Opening,
    ) -> None:
        self._prefix = prefix + "/" if prefix else ""
        self._container = container
        self._create = create
        self._opening = opening
        self._ready = opening.seen
        self._lock = Lock()
        self._next_pages: dict[tuple[str, str], str] = {}
        self._write_limit = SharedRateLimit(time.monotonic, time.sleep)
        self._read_limit = SharedRateLimit(time.monotonic, time.sleep)
        session = requests.Session()
        kept = opening.calls + opening.transfers * BLOCKS_AT_ONCE
        for scheme in ("https://", "http://"):
            session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=kept))
        self._part_bytes = opening.part_bytes or READ_BYTES
        with translate_errors(container):
            transport = RequestsTransport(
                session=session,
                session_owner=False,
                connection_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
            )
            credentials = credential or _find_identity(account_url)

            def make_client(max_put_bytes: int) -> Any:
                return ContainerClient(
                    account_url,
                    container,
                    credential=credentials,
                    transport=transport,
                    retry_total=0,
                    user_agent="kafkawire",
                    max_single_put_size=max_put_bytes,
                    max_block_size=self._part_bytes,
                    max_single_get_size=READ_BYTES,
                    max_chunk_get_size=READ_BYTES,
                )

            self._client = make_client(MAX_PUT_BYTES)
            self._moving = make_client(self._part_bytes)

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        refuse_links((path,))
        with open(path, "rb", opener=open_own) as file:
            size = os.fstat(file.fileno()).st_size
            return self._store(key, file, size, self._write_limit.at(bytes_per_second), call)

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        return self._store(key, source, size_bytes, _make_unlimited(), call)

    def _store(
        self, key: str, source: Reading, size_bytes: int, limit: RateLimit, call: Call
    ) -> Stored:
        blob = self._blob(key, self._moving)
        body = _Source(source, limit, call, size_bytes)
        with translate_errors(key):
            answer = blob.upload_blob(
                body, length=size_bytes, overwrite=True, max_concurrency=BLOCKS_AT_ONCE,
                validate_content=True, retry_total=BLOCK_RETRIES,
            )  # fmt: skip
        body.check()
        blocks = -(-size_bytes // self._part_bytes)
        return Stored(_bare(answer["etag"]), size_bytes, blocks + 1 if blocks > 1 else 1)

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        if_match: str | None,
        if_absent: bool,
        call: Call,
    ) -> Stored:
        condition: dict[str, Any] = {}
        if if_match is not None:
            matching = MatchConditions.IfNotModified
            condition = {"etag": f'"{if_match}"', "match_condition": matching}
        blob, body = self._blob(key), bytes(data)
        try:
            with translate_errors(key):
                answer = blob.upload_blob(
                    body, length=len(body), overwrite=not if_absent, validate_content=True,
                    **condition,
                )  # fmt: skip
        except NoSuchObject:
            raise ConditionFailed("BlobNotFound", f"{key} is not there") from None
        return Stored(_bare(answer["etag"]), len(body))

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        if start < 0 or (length is not None and length <= 0):
            found = self.head(key, call)
            start = max(0, found.size_bytes + start) if start < 0 else start
            if not found.size_bytes or (length is not None and length <= 0):
                return b"", found.etag
        body = self._open(key, start, length)
        if body is None:
            return b"", self.head(key, call).etag
        if body.size > self._opening.max_get_bytes:
            raise too_large(key, body.size, self._opening.max_get_bytes)
        with translate_errors(key):
            data: bytes = body.readall()
        expect_size(f"what could be read of {key} from {start} on", len(data), body.size)
        return data, _bare(body.properties.etag)

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        wanted = sum(map(len, into))
        body = self._open(key, start, wanted)
        expect_size(f"what {key} holds from {start} on", body.size if body else 0, wanted)
        call.ends_by(_nothing, writing=True)
        with translate_errors(key):
            target = _Views(into, call)
            body.readinto(target)
        expect_size(f"what could be read of {key} from {start} on", target.written, wanted)

    def download(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        limit = self._read_limit.at(bytes_per_second)
        with new_file(path) as out:
            body = self._open(key, 0, None, BLOCK_RETRIES)
            chunks = body.chunks() if body else iter(())
            while True:
                call.check()
                with translate_errors(key):
                    chunk = next(chunks, b"")
                if not chunk:
                    break
                out.write(chunk)
                limit.wait_for_rate(len(chunk), call.check)
            found = self.head(key, call) if body is None else None
            size = body.size if found is None else found.size_bytes
            expect_size(f"the copy of {key}", out.tell(), size)
        if found is not None:
            return found
        return Stored(_bare(body.properties.etag), size, -(-size // READ_BYTES))

    @contextlib.contextmanager
    def reading(self, key: str, call: Call) -> Iterator[Reading]:
        body = self._open(key, 0, None, BLOCK_RETRIES)
        yield _Stream(body or BytesIO(), key, call)

    def _open(self, key: str, start: int, length: int | None, retries: int = 0) -> Any:
        """Return the download of a range, None if the object has no byte there."""
        blob = self._blob(key)
        try:
            with translate_errors(key):
                # With a start: without one Azure's package leaves the answer of an empty object
                # unread.
                return blob.download_blob(start, length, retry_total=retries)
        except StoreError as failure:
            if failure.code == "InvalidRange":
                return None
            raise

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """Return None: objects are copied as streams, because Azure reads the source of a copy only
        by a signed URL."""
        return None

    def head(self, key: str, call: Call) -> Stored:
        blob = self._blob(key)
        with translate_errors(key):
            found = blob.get_blob_properties()
            return Stored(_bare(found.etag), found.size)

    def delete(self, keys: Sequence[str], call: Call) -> int:
        names = [self._name(key) for key in keys]
        for start in range(0, len(names), MAX_BATCH):
            batch = names[start : start + MAX_BATCH]
            with translate_errors(f"{len(keys)} objects"):
                answers = list(self._client.delete_blobs(*batch, raise_on_any_failure=False))
            failed = [each for each in answers if each.status_code not in (202, 404)]
            if failed or len(answers) != len(batch):
                status = failed[0].status_code if failed else 0
                raise kind_of(status, "")(
                    "NotDeleted",
                    f"of {len(batch)} objects {len(failed)} were not deleted ({status})",
                )
        return -(-len(names) // MAX_BATCH)

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """Return a page of the objects with this prefix, by key. Raises Refused for accounts with a
        hierarchical namespace, whose listings are not by key."""
        self._make_ready()
        found: list[Listed] = []
        with self._lock:
            marker = self._next_pages.pop((prefix, after), "")
        last = after if marker else ""
        while len(found) < limit:
            call.check()
            # A page is smaller where Azure's limit of 5,000 or a partition ends it.
            size = limit - len(found) if marker or not after else 5000
            with translate_errors(prefix or self._container):
                listing = self._client.list_blobs(self._prefix + prefix, results_per_page=size)
                by_page = listing.by_page(continuation_token=marker or None)
                for blob in next(by_page, ()):
                    key = blob.name[len(self._prefix) :]
                    if key <= last:
                        raise Refused(
                            "UnorderedListing",
                            f"the storage lists {key!r} after {last!r}: a tier needs an account "
                            "without hierarchical namespace",
                        )
                    last = key
                    if key > after and len(found) < limit:
                        modified_ms = int(blob.last_modified.timestamp() * 1000)
                        found.append(Listed(key, blob.size, modified_ms, _bare(blob.etag)))
                marker = by_page.continuation_token or ""
            if not marker:
                return found
        if found[-1].key == last:
            with self._lock:
                self._next_pages[prefix, last] = marker
                if len(self._next_pages) > MAX_NEXT_PAGES:
                    del self._next_pages[next(iter(self._next_pages))]
        return found

    def scan(self, prefix: str, call: Call) -> Iterator[Listed]:
        return pages(self, prefix, call)

    def clear_up(self, keys: Sequence[str]) -> None:
        """Do nothing: Azure removes blocks of incomplete uploads after a week."""

    def _blob(self, key: str, client: Any = None) -> Any:
        name = self._name(key)
        self._make_ready()
        return (client or self._client).get_blob_client(name)

    def _name(self, key: str) -> str:
        check_key(key)
        return self._prefix + key

    def _make_ready(self) -> None:
        """Check once that the container exists; create it if allowed."""
        if self._ready:
            return
        name = self._container
        with self._lock, translate_errors(f"the container {name}"):
            if self._ready:
                return
            try:
                self._client.get_container_properties()
            except HttpResponseError as failure:
                if failure.status_code == 404:
                    self._make_container()
                # Without permission to see it, it may still be usable; the next request has a
                # better error message.
                elif failure.status_code != 403:
                    raise
            self._ready = True

    def _make_container(self) -> None:
        if not self._create:
            raise Refused(
                "NoSuchBucket",
                f"the container {self._container} does not exist, and create=false forbids to make "
                "it",
            )
        try:
            self._client.create_container()
        except HttpResponseError as failure:
            # created by another broker meanwhile
            if failure_of(self._container, failure).code != "ContainerAlreadyExists":
                raise


class _Source:
    """A body of exactly this many bytes, read within a rate."""

    def __init__(self, source: Reading, limit: RateLimit, call: Call, size_bytes: int) -> None:
        self._source = source
        self._limit = limit
        self._call = call
        self._left = size_bytes
        self._size = size_bytes

    def read(self, size: int = -1, /) -> bytes:
        self._call.check()
        wanted = self._left if size < 0 else min(size, self._left)
        pieces: list[bytes] = []
        while wanted:
            piece = self._source.read(wanted)
            if not piece:
                self._fail(self._size - self._left)
            self._limit.wait_for_rate(len(piece), self._call.check)
            pieces.append(piece)
            wanted -= len(piece)
            self._left -= len(piece)
        if not self._left and self._source.read(1):
            self._fail(self._size + 1)
        return b"".join(pieces)

    def check(self) -> None:
        expect_size("the upload", self._size - self._left, self._size)

    def _fail(self, size_bytes: int) -> None:
        # Before the list of blocks is sent, so that nothing is stored.
        expect_size("the source of the upload", size_bytes, self._size)


class _Views:
    """A stream that writes into views, one after another."""

    def __init__(self, into: Sequence[memoryview], call: Call) -> None:
        self._views = [view for view in into if len(view)]
        self._call = call
        self.written = 0

    def write(self, data: bytes, /) -> int:
        left = memoryview(data)
        while left and self._views:
            self._call.check()
            view = self._views[0]
            count = min(len(view), len(left))
            view[:count] = left[:count]
            left = left[count:]
            self.written += count
            self._views[0] = view[count:]
            if not self._views[0]:
                del self._views[0]
        return len(data)


class _Stream:
    """An open download with `read`, whose errors are StoreErrors."""

    def __init__(self, body: Any, key: str, call: Call) -> None:
        self._body = body
        self._key = key
        self._call = call

    def read(self, size: int = -1, /) -> bytes:
        self._call.check()
        with translate_errors(self._key):
            data: bytes = self._body.read(size)
        return data


def _find_identity(account_url: str) -> Any:
    """Return a credential of azure-identity. Raises Refused if it is not installed."""
    try:
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError:
        raise Refused(
            "NoCredentials",
            f"there are no credentials for {account_url}: set AZURE_STORAGE_KEY, "
            "AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING, or install azure-identity",
        ) from None
    return DefaultAzureCredential()


def _make_unlimited() -> RateLimit:
    return RateLimit(-1, time.monotonic, time.sleep)


def _nothing() -> None:
    """Do nothing: a read can only be cancelled between two pieces."""


def _bare(etag: str) -> str:
    return etag.strip('"')
