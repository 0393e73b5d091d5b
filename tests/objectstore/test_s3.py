"""Failures of S3 and their classification, against a server whose responses a test controls.

test_s3_minio.py covers MinIO's failures, test_object_store.py the contract without failures.
"""

from __future__ import annotations

import bisect
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from botocore import exceptions as boto

from kafkawire.manifest.keys import SEGMENTS
from kafkawire.objectstore import s3
from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import (
    ConditionFailed,
    NoSuchObject,
    Refused,
    SlowDown,
    StoreError,
)
from kafkawire.objectstore.file_ranges import put_ranges
from kafkawire.objectstore.port import FileRange, Stored
from kafkawire.objectstore.s3 import READ_TIMEOUT_S, S3Provider
from kafkawire.objectstore.s3_errors import failure_of, kind_of
from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.process import StoreProcess
from tests.kit.s3_stub import Reply, Stub, error, ranged, serving
from tests.kit.tier.stores import PART_BYTES

# Kinds


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", SlowDown), (429, "TooManyRequests", SlowDown), (503, "x", SlowDown),
        (400, "ThrottlingException", SlowDown), (0, "SlowDown", SlowDown),
        (500, "InternalError", StoreError), (502, "502", StoreError), (504, "x", StoreError),
        (408, "x", StoreError), (400, "RequestTimeout", StoreError), (0, "0", StoreError),
        (400, "BadDigest", StoreError), (416, "InvalidRange", StoreError),
        (404, "NoSuchUpload", StoreError), (409, "OperationAborted", StoreError),
        (403, "AccessDenied", Refused), (403, "InvalidAccessKeyId", Refused),
        (403, "SignatureDoesNotMatch", Refused), (401, "x", Refused), (400, "x", Refused),
        (404, "NoSuchBucket", Refused), (501, "NotImplemented", Refused),
        (404, "kms:KeyNotFound", Refused),
        (301, "PermanentRedirect", Refused), (400, "ExpiredToken", Refused),
        (404, "NoSuchKey", NoSuchObject), (404, "404", NoSuchObject),
        (412, "PreconditionFailed", ConditionFailed), (412, "412", ConditionFailed),
        (409, "ConditionalRequestConflict", ConditionFailed),
    ],
)  # fmt: skip
def test_classification_of_responses(status: int, code: str, kind: type[StoreError]) -> None:
    assert kind_of(status, code) is kind


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (boto.NoCredentialsError(), Refused),
        (boto.PartialCredentialsError(provider="env", cred_var="x"), Refused),
        (boto.ProfileNotFound(profile="x"), Refused),
        (boto.SSLError(endpoint_url="x", error=OSError("certificate")), Refused),
        (boto.EndpointConnectionError(endpoint_url="x"), StoreError),
        (boto.ConnectTimeoutError(endpoint_url="x"), StoreError),
        (boto.ReadTimeoutError(endpoint_url="x"), StoreError),
        (boto.ConnectionClosedError(endpoint_url="x"), StoreError),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), StoreError),
        (boto.ResponseStreamingError(error="x"), StoreError),
        (ConnectionResetError(104, "reset"), StoreError),
        (KeyError("a bug"), StoreError),
    ],
)
def test_classification_of_exceptions(failure: Exception, kind: type[StoreError]) -> None:
    error = failure_of("segments/k", failure)
    assert type(error) is kind
    assert error.code == type(failure).__name__
    assert error.text.startswith("segments/k: ")


# Answers


@pytest.fixture(scope="module")
def module_stub() -> Iterator[Stub]:
    """One server for the module: creating a client takes a while, and it reads the endpoint
    once."""
    with pytest.MonkeyPatch.context() as patched, serving(lambda *asked: Reply()) as server:
        patched.setenv("AWS_ACCESS_KEY_ID", "key")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield server


@pytest.fixture
def stub(module_stub: Stub) -> Stub:
    """The server without recorded requests."""
    module_stub.asked.clear()
    return module_stub


@pytest.fixture(scope="module")
def store(module_stub: Stub) -> S3Provider:
    """A provider that tries every request once, parts too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(s3, "PART_ATTEMPTS", 1)
        return provider(module_stub)


def provider(
    stub: Stub, options: str = "", seen: bool = True, storage_class: str = ""
) -> S3Provider:
    tier = parse_tier(f"s3://bucket/p?endpoint={stub.endpoint}{options}")
    return S3Provider(tier, PART_BYTES, 4, 2, storage_class, SEGMENTS, seen)


def always(stub: Stub, reply: Reply) -> None:
    stub.answer = lambda method, path, headers: reply


def calls(store: S3Provider, path: str) -> list[Callable[[], Any]]:
    """One call of each kind."""
    memory, call = memoryview(bytearray(10)), Call()
    return [
        lambda: store.put("k", b"x", None, False, call),
        lambda: store.get("k", 0, None, call),
        lambda: store.get("k", 5, 5, call),
        lambda: store.head("k", call),
        lambda: store.delete(["k"], call),
        lambda: store.list("", "", 5, call),
        lambda: store.read("k", 0, [memory], call),
        lambda: store.upload("k", __file__, -1, call),
        lambda: store.download("k", path, -1, call),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (error(503, "SlowDown"), SlowDown, "SlowDown"),
        (error(500, "InternalError"), StoreError, "InternalError"),
        (error(403, "InvalidAccessKeyId"), Refused, "InvalidAccessKeyId"),
        (Reply(200, b"<html>a login page</html>"), StoreError, None),
        (Reply(403, b"<html>a proxy says no</html>"), Refused, None),
    ],
)
def test_every_call_raises_classified_error(
    stub: Stub, store: S3Provider, tmp_path: Path,
    reply: Reply, kind: type[StoreError], code: str | None,
) -> None:  # fmt: skip
    always(stub, reply)
    for number, ask in enumerate(calls(store, str(tmp_path / "new"))):
        stub.asked.clear()
        with pytest.raises(StoreError) as caught:
            ask()
        if code is not None and number not in (3, 8):  # an answer to HEAD has no text
            assert caught.value.code == code
        unranged = reply.status == 200 and number in (2, 6)
        assert type(caught.value) is (Refused if unranged else kind), number
        # The caller decides on retries; a download asks for the size first.
        assert len(stub.asked) == (2 if reply.status == 200 and number == 8 else 1), number
    assert not (tmp_path / "new").exists()


def test_ranges_are_stored_by_one_conditional_request(
    stub: Stub, store: S3Provider, tmp_path: Path
) -> None:
    (tmp_path / "journal").write_bytes(b"0123456789")
    ranges = [FileRange(str(tmp_path / "journal"), 3, 5)]
    replies = [
        Reply(200, b"", {"ETag": '"e"'}),
        error(412, "PreconditionFailed"),
        error(409, "ConditionalRequestConflict"),
        error(501, "NotImplemented"),
        error(500, "InternalError"),
    ]
    kinds = [ConditionFailed, ConditionFailed, Refused, StoreError]
    always(stub, replies[0])
    assert put_ranges(store, "log/k", b"12345678", ranges, Call()) == Stored("e", 16)
    for reply, kind in zip(replies[1:], kinds, strict=True):
        always(stub, reply)
        with pytest.raises(StoreError) as caught:
            put_ranges(store, "log/k", b"12345678", ranges, Call())
        assert type(caught.value) is kind
    assert len(stub.asked) == len(replies)
    for method, path, headers in stub.asked:
        assert (method, path) == ("PUT", "/bucket/p/log/k")
        assert headers["if-none-match"] == "*"
    stub.asked.clear()
    with pytest.raises(FileNotFoundError):
        put_ranges(store, "log/k", b"", [FileRange("/there/is/none", 0, 1)], Call())
    assert stub.asked == []


def test_truncated_body_is_an_error(stub: Stub, store: S3Provider) -> None:
    memory = memoryview(bytearray(100))
    always(stub, ranged(b"x" * 40, 0, 1000, length=100))
    with pytest.raises(StoreError, match=r"IncompleteRead|ResponseStreaming"):
        store.read("k", 0, [memory], Call())
    always(stub, Reply(200, b"x" * 40, {"ETag": '"e"'}, length=100))
    with pytest.raises(StoreError, match=r"IncompleteRead|ResponseStreaming"):
        store.get("k", 0, None, Call())
    always(stub, ranged(b"y" * 100, 0, 1000))
    store.read("k", 0, [memory], Call())  # a new connection is used after a broken one
    assert bytes(memory) == b"y" * 100


def test_object_too_large_for_get_is_refused(stub: Stub, store: S3Provider) -> None:
    always(stub, Reply(200, b"x", {"ETag": '"e"'}, length=1 << 40))
    with pytest.raises(Refused, match="EntityTooLarge"):
        store.get("k", 0, None, Call())


CANCELLED_WITHIN_S = READ_TIMEOUT_S - 5
"""A call that was not cancelled is still waiting then."""


def test_slow_read_can_be_cancelled(stub: Stub, store: S3Provider) -> None:
    call, hold = Call(), threading.Event()
    always(stub, ranged(b"x" * 100, 0, 1000, hold=hold))
    memory, failures = memoryview(bytearray(100)), []

    def read() -> None:
        try:
            store.read("k", 0, [memory], call)
        except StoreError as failure:
            failures.append(failure)

    reader = threading.Thread(target=read)
    reader.start()
    while not stub.asked:
        time.sleep(0.005)
    time.sleep(0.05)
    call.cancel()
    reader.join(CANCELLED_WITHIN_S)
    ended = not reader.is_alive()
    hold.set()
    assert ended
    assert len(failures) == 1
    assert bytes(memory[50:]) == bytes(50)


def test_read_cancelled_before_response_writes_nothing(stub: Stub, store: S3Provider) -> None:
    call = Call()
    memory = memoryview(bytearray(100))

    def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
        assert call.cancel()  # nothing was written, nor will it be
        return ranged(b"x" * 100, 0, 1000)

    stub.answer = answer
    with pytest.raises(StoreError, match="Cancelled"):
        store.read("k", 0, [memory], call)
    assert bytes(memory) == bytes(100)


def test_only_segments_have_the_storage_class(stub: Stub, tmp_path: Path) -> None:
    store = provider(stub, storage_class="STANDARD_IA")
    begun = (
        b'<?xml version="1.0"?><InitiateMultipartUploadResult><UploadId>u1</UploadId>'
        b"</InitiateMultipartUploadResult>"
    )

    def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
        if method == "POST" and "uploads" in path:
            return Reply(200, begun)
        if method == "HEAD":
            size = PART_BYTES + 1 if "large" in path else 5
            return Reply(200, b"", {"ETag": '"e"'}, length=size)
        done = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        return Reply(200, done if method == "POST" else b"", {"ETag": '"e"'})

    stub.answer = answer
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"small")
    large.write_bytes(bytes(PART_BYTES + 1))
    store.upload("segments/small", str(small), -1, Call())
    store.upload("segments/large", str(large), -1, Call())
    store.put("manifest/x", b"x", None, False, Call())
    store.put("owner", b"x", None, True, Call())
    classes = {
        (method, path.split("?")[0].rsplit("/", 1)[1], "uploads" in path): headers.get(
            "x-amz-storage-class"
        )
        for method, path, headers in stub.asked
        if method in ("PUT", "POST") and "partNumber" not in path and "uploadId" not in path
    }
    assert classes == {
        ("PUT", "small", False): "STANDARD_IA",
        ("POST", "large", True): "STANDARD_IA",
        ("PUT", "x", False): None,
        ("PUT", "owner", False): None,
    }


def test_failed_multipart_upload_is_aborted(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_ATTEMPTS", 2)
    begun = (
        b'<?xml version="1.0"?><InitiateMultipartUploadResult><UploadId>u1</UploadId>'
        b"</InitiateMultipartUploadResult>"
    )

    def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
        if method == "POST" and "uploads" in path:
            return Reply(200, begun)
        if method == "PUT" and "partNumber=2" in path:
            return error(500, "InternalError")
        return Reply(204 if method == "DELETE" else 200, b"", {"ETag": '"e"'})

    stub.answer = answer
    (tmp_path / "here").write_bytes(bytes(2 * PART_BYTES))
    with pytest.raises(StoreError) as caught:
        provider(stub).upload("k", str(tmp_path / "here"), -1, Call())
    assert type(caught.value) is StoreError
    asked = [(method, path) for method, path, _ in stub.asked]
    assert sum("partNumber=2" in path for _, path in asked) == 2  # a part is tried again
    assert [path for method, path in asked if method == "DELETE"] == ["/bucket/p/k?uploadId=u1"]
    assert not any(method == "POST" and "uploadId" in path for method, path in asked)


def test_encryption_and_checksums_are_requested(stub: Stub) -> None:
    always(stub, Reply(200, b"", {"ETag": '"e"'}))
    store = provider(stub, "&sse=aws:kms&sse_kms_key_id=k1")
    store.put("k", b"x", '"e"', False, Call())
    (_, _, headers) = stub.asked[-1]
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "k1"
    assert "x-amz-checksum-crc32" in headers
    assert "kafkawire" in headers["user-agent"]


def test_owner_of_bucket_and_bucket_key_are_in_every_request(stub: Stub, tmp_path: Path) -> None:
    def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
        if method == "POST" and "uploads" in path:
            return Reply(200, b"<R><UploadId>u1</UploadId></R>")
        if method == "POST" or "x-amz-copy-source" in headers:
            return Reply(200, b'<R><ETag>"e"</ETag></R>')
        size = 2 * PART_BYTES if method == "HEAD" else None
        return Reply(200, b"", {"ETag": '"e"'}, length=size)

    stub.answer = answer
    options = "&sse=aws:kms&sse_bucket_key=true&bucket_owner=123456789012"
    store = provider(stub, options)
    (tmp_path / "here").write_bytes(bytes(2 * PART_BYTES))
    store.put("k", b"x", None, False, Call())
    store.upload("big", str(tmp_path / "here"), -1, Call())
    store.copy(store, "big", "other", Call())
    store.get("k", 0, None, Call())
    made = 0
    for method, path, headers in stub.asked:
        assert headers["x-amz-expected-bucket-owner"] == "123456789012", (method, path)
        if "x-amz-server-side-encryption" in headers:
            made += 1
            assert headers["x-amz-server-side-encryption-bucket-key-enabled"] == "true"
    assert made == 3, "an object, the begin of an upload in parts, and a copy"


@pytest.mark.slow
def test_bucket_is_checked_once(stub: Stub) -> None:
    store = provider(stub, seen=False)
    always(stub, Reply(200, b"", {"ETag": '"e"'}))
    for _ in range(3):
        store.put("k", b"x", None, False, Call())
    assert [method for method, _, _ in stub.asked] == ["HEAD", "PUT", "PUT", "PUT"]


def test_bucket_is_usable_without_permission_to_check_it(stub: Stub) -> None:
    store = provider(stub, seen=False)
    ok = Reply(200, b"", {"ETag": '"e"'})
    stub.answer = lambda method, path, headers: error(403, "x") if method == "HEAD" else ok
    store.put("k", b"x", None, False, Call())
    store.put("k", b"x", None, False, Call())
    assert [method for method, _, _ in stub.asked] == ["HEAD", "PUT", "PUT"]


def test_region_is_sent_when_bucket_is_created(stub: Stub) -> None:
    store = provider(stub, "&region=eu-central-1", seen=False)
    ok = Reply(200, b"", {"ETag": '"e"'})
    stub.answer = lambda method, path, headers: error(404, "x") if method == "HEAD" else ok
    store.put("k", b"x", None, False, Call())
    assert [(method, path) for method, path, _ in stub.asked][1:] == [
        ("PUT", "/bucket"), ("PUT", "/bucket/p/k"),
    ]  # fmt: skip
    assert int(stub.asked[1][2]["content-length"]) > 0


def test_missing_credentials(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    with pytest.raises(Refused, match="NoCredentialsError"):
        provider(stub).get("k", 0, None, Call())
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(Refused, match="ProfileNotFound"):
        provider(stub)


@pytest.mark.slow
async def test_endpoint_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = StoreProcess(parse_tier("s3://bucket"))
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match="EndpointConnectionError") as caught:
                await store.get("k")
            assert caught.value.retryable
    finally:
        await store.close()


# Listings

KEYS = [f"k{n:04d}" for n in range(2500)]


def listing(
    keys: list[str], *, start_after: bool = True, tokens: bool = True
) -> Callable[[str, str, dict[str, str]], Reply]:
    """Answers to ListObjectsV2 of a storage that may ignore `start-after` and tokens."""

    def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
        query = dict(parse_qsl(urlsplit(path).query))
        at = 0
        if tokens and "continuation-token" in query:
            at = int(query["continuation-token"])
        elif start_after and "start-after" in query:
            at = bisect.bisect_right(keys, query["start-after"].removeprefix("p/"))
        end = min(at + int(query["max-keys"]), len(keys))
        rows = "".join(
            f"<Contents><Key>p/{key}</Key><Size>1</Size><ETag>e</ETag>"
            "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key in keys[at:end]
        )
        more = end < len(keys)
        token = f"<NextContinuationToken>{end}</NextContinuationToken>" if more else ""
        body = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
        return Reply(body=f"<ListBucketResult>{body}</ListBucketResult>".encode())

    return answer


@pytest.mark.parametrize("start_after", [True, False])
def test_scan_reads_every_page_once(store: S3Provider, stub: Stub, start_after: bool) -> None:
    stub.answer = listing(KEYS, start_after=start_after)
    assert [found.key for found in store.scan("", Call())] == KEYS
    assert len(stub.asked) == 3


@pytest.mark.parametrize("start_after", [True, False])
def test_page_after_a_key_needs_no_earlier_page(
    store: S3Provider, stub: Stub, start_after: bool
) -> None:
    stub.answer = listing(KEYS[:40], start_after=start_after)
    assert [found.key for found in store.list("", "k0019", 3, Call())] == KEYS[20:23]
    assert [found.key for found in store.list("", "k0038", 3, Call())] == KEYS[39:40]


def test_listing_without_order_or_progress_is_refused(store: S3Provider, stub: Stub) -> None:
    for answer in (
        listing(KEYS[::-1]),
        listing(KEYS, tokens=False, start_after=False),
        listing([*KEYS[:1500], "a", *KEYS[1500:]]),
    ):
        stub.answer = answer
        with pytest.raises(Refused, match="lists all objects by key"):
            list(store.scan("", Call()))
