"""Folders and buckets as places: the same contract for both, and error messages for failures."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from pathlib import Path

import pytest

from kafkawire.reading.files.locations import FolderPlace, Place, PlaceError
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from tests.kit.minio import Minio
from tests.kit.s3_stub import Reply, Stub, error, ranged, serving


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return open_place(str(tmp_path / "place"))


def promises(place: Place) -> None:
    """Check the contract of every place."""
    assert list(place.list()) == []
    with pytest.raises(FileNotFoundError, match="a/b is not there"):
        place.get("a/b")
    with pytest.raises(FileNotFoundError):
        place.get_range("a/b", 0, 10)
    with pytest.raises(FileNotFoundError):
        place.size("a/b")
    place.delete(["a/b"])
    place.put("a/b", b"0123456789")
    assert (place.get("a/b"), place.size("a/b")) == (b"0123456789", 10)
    for start, length in ((0, 4), (3, 4), (0, 10), (7, 100), (10, 1), (100, 5), (2, 0)):
        assert bytes(place.get_range("a/b", start, length)) == b"0123456789"[start:][:length]
    place.put("a/b", b"new")
    with pytest.raises(FileExistsError, match="a/b is there already"):
        place.put("a/b", b"newer", if_absent=True)
    assert place.get("a/b") == b"new"
    place.put("a/c", b"", if_absent=True)
    assert place.get("a/c") == b""
    assert place.get_range("a/c", 0, 5) == b""
    for key in ("a-b", "a/bb/d", "z", "größe"):
        place.put(key, key.encode())
    keys = list(place.list())
    assert keys == sorted(keys, key=str.encode)
    assert len(keys) == 6
    assert list(place.list("a/")) == [key for key in keys if key.startswith("a/")]
    assert list(place.list("a")) == [key for key in keys if key.startswith("a")]
    assert list(place.list("a/b")) == [key for key in keys if key.startswith("a/b")]
    assert list(place.list("nothing/here")) == []
    again = pickle.loads(pickle.dumps(place))
    assert again == place
    assert again.get("z") == b"z"
    fs, root = place.arrow()
    with fs.open_input_file(f"{root}/a/b") as file:
        assert file.read() == b"new"
    place.delete(iter(["a/b", "gone", "z"]))
    assert list(place.list()) == [key for key in keys if key not in ("a/b", "z")]
    for key in ("../x", "/x", "a//b", "", ".hidden", "x" * 2000):
        with pytest.raises(PlaceError, match="key"):
            place.put(key, b"")


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PlaceError, match=r"cannot write .*/file/sub/a: Not a directory"):
        open_place(str(tmp_path / "file" / "sub")).put("a", b"1", if_absent=True)


def one_wins(place: Place) -> None:
    """Check that one of several writers of the same key succeeds if it is absent."""
    outcomes: list[bytes] = []
    start = threading.Barrier(8)

    def attempt(data: bytes) -> None:
        start.wait(60)
        try:
            place.put("lock", data, if_absent=True)
            outcomes.append(data)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=attempt, args=(b"%d" % n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == [place.get("lock")]


def test_contract_of_folder(folder: Place) -> None:
    promises(folder)


def test_one_of_concurrent_writers_creates_file(folder: Place) -> None:
    one_wins(folder)
    assert isinstance(folder, FolderPlace)
    assert os.listdir(folder.tier.folder) == ["lock"]  # nothing is left over


@pytest.mark.real
def test_contract_of_bucket(minio: Minio, tier_url: str) -> None:
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    promises(open_place(tier_url))
    one_wins(open_place(tier_url + "/one"))


@pytest.mark.real
def test_refusals_of_s3(minio: Minio, tier_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = tier_url.split("/")[2]
    place = open_place(tier_url)
    for use in (lambda: place.get("a"), lambda: place.size("a"), lambda: place.put("a", b"")):
        with pytest.raises(PlaceError, match=f"there is no bucket {bucket}: make it"):
            use()
    with pytest.raises(PlaceError, match="cannot list"):
        list(place.list())
    minio.client().create_bucket(Bucket=bucket)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PlaceError, match=r"AWS_ACCESS_KEY_ID") as caught:
        place.get("a")
    assert f"s3://{bucket}/tier/a" in str(caught.value)
    assert isinstance(caught.value, SourceError)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(PlaceError, match="credentials"):
        place.get("a")


# Failures that MinIO cannot be made to produce


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setattr("kafkawire.objectstore.retrying.MAX_WAIT_S", 0.0)


def found(body: bytes) -> Reply:
    """A whole object."""
    return Reply(200, body, {"ETag": '"e"'})


def at(stub: Stub) -> Place:
    return open_place(f"s3://bucket/p?endpoint={stub.endpoint}")


@pytest.mark.usefixtures("_credentials")
@pytest.mark.parametrize("trouble", [error(503, "SlowDown"), error(500, "InternalError")])
def test_transient_errors_are_retried(trouble: Reply) -> None:
    replies = [trouble, trouble, found(b"data")]
    with serving(lambda *_: replies.pop(0)) as stub:
        assert at(stub).get("a") == b"data"
        assert len(stub.asked) == 3


@pytest.mark.usefixtures("_credentials")
def test_number_of_retries_is_bounded() -> None:
    with serving(lambda *_: error(503, "SlowDown")) as stub:
        with pytest.raises(PlaceError, match=r"cannot read s3://bucket/p/a: SlowDown: a text"):
            at(stub).get("a")
        assert len(stub.asked) == 6


@pytest.mark.usefixtures("_credentials")
def test_truncated_body_is_read_again() -> None:
    replies = [ranged(b"01234", 0, 20, length=10), ranged(b"0123456789", 0, 20)]
    with serving(lambda *_: replies.pop(0)) as stub:
        assert at(stub).get_range("a", 0, 10) == b"0123456789"
    with serving(lambda *_: ranged(b"01234", 0, 20, length=10)) as stub:
        with pytest.raises(PlaceError, match="cannot read s3://bucket/p/a"):
            at(stub).get_range("a", 0, 10)
        assert len(stub.asked) == 6


@pytest.mark.usefixtures("_credentials")
def test_request_without_response_is_tried_six_times() -> None:
    """And not six times six, as a request and as a body."""
    closed = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()
                    closed.append(1)

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            place = open_place(f"s3://bucket?endpoint=http://127.0.0.1:{listener.getsockname()[1]}")
            with pytest.raises(PlaceError, match="cannot read s3://bucket/a"):
                place.get_range("a", 0, 10)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)
    assert len(closed) == 6


@pytest.mark.slow
@pytest.mark.usefixtures("_credentials")
def test_put_with_lost_response_has_succeeded() -> None:
    """Only if what is there is what was put."""
    for there, succeeds in ((b"data", True), (b"other", False)):
        replies = [error(500, "InternalError"), error(412, "PreconditionFailed"), found(there)]
        with serving(lambda *_, left=replies: left.pop(0)) as stub:
            place = at(stub)
            if succeeds:
                place.put("a", b"data", if_absent=True)
            else:
                with pytest.raises(FileExistsError):
                    place.put("a", b"data", if_absent=True)
    replies = [error(412, "PreconditionFailed")]
    with serving(lambda *_: replies.pop(0)) as stub, pytest.raises(FileExistsError):
        at(stub).put("a", b"data", if_absent=True)


@pytest.mark.usefixtures("_credentials")
def test_failed_deletion_is_reported() -> None:
    body = b"<DeleteResult><Error><Key>p/a</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    reply = Reply(200, body, {"Content-Type": "application/xml"})
    said = "cannot delete s3://bucket/p/a and 1 others"
    with serving(lambda *_: reply) as stub, pytest.raises(PlaceError, match=said):
        at(stub).delete(["a", "b"])


@pytest.mark.usefixtures("_credentials")
def test_too_large_object_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Place) -> None:
    monkeypatch.setattr("kafkawire.reading.files.bucket.MAX_GET_BYTES", 3)
    monkeypatch.setattr("kafkawire.reading.files.locations.MAX_GET_BYTES", 3)
    folder.put("a", b"data")
    with serving(lambda *_: found(b"data")) as stub:
        for place in (folder, at(stub)):
            with pytest.raises(PlaceError, match="a has 4 bytes: at most 3"):
                place.get("a")


def test_invalid_urls_are_refused() -> None:
    for url in ("", "s3://x", "http://a/b", "s3://bucket/p?color=red"):
        with pytest.raises(PlaceError):
            open_place(url)


def test_refusals_of_folder(folder: Place, tmp_path: Path) -> None:
    folder.put("a/b", b"")
    with pytest.raises(PlaceError, match=r"cannot read .*a: Is a directory"):
        folder.get("a")
    with pytest.raises(FileNotFoundError):
        folder.get("a/b/c")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((PlaceError, FileExistsError)):
        open_place(str(tmp_path / "file")).put("a", b"")
