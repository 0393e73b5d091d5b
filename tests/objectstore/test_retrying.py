"""Failed calls are repeated where that may help, up to the configured number of attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, SlowDown, StoreError
from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Objects
from kafkawire.objectstore.retrying import ATTEMPTS, RetryingObjects
from kafkawire.objectstore.staging import SharedStaging

TIMEOUT = StoreError("Timeout", "no answer")


class Failing:
    """Objects of a folder; the first calls raise `failures`, after they were done if `late`."""

    def __init__(self, inner: Objects, failures: list[StoreError], late: bool = False) -> None:
        self._inner, self._failures, self._late = inner, failures, late
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            failure = self._failures.pop(0) if self._failures else None
            if failure is not None and not self._late:
                raise failure
            result = getattr(self._inner, name)(*arguments)
            if failure is not None:
                raise failure
            return result

        return call


def objects(
    tmp_path: Path, failures: list[StoreError], late: bool = False
) -> tuple[RetryingObjects, Failing, list[float]]:
    waits: list[float] = []
    inner: Any = Failing(FolderProvider(str(tmp_path), SharedStaging()), failures, late)
    return RetryingObjects(inner, waits.append, lambda: 0.0), inner, waits


def test_waits_grow_and_attempts_are_bounded(tmp_path: Path) -> None:
    store, inner, waits = objects(tmp_path, [SlowDown("SlowDown", "")] * 100)
    with pytest.raises(SlowDown):
        store.head("k", Call())
    assert len(inner.calls) == ATTEMPTS
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_each_kind_of_call_is_repeated(tmp_path: Path) -> None:
    store, inner, _ = objects(tmp_path, [])
    for call in (
        lambda: store.put("a/k", b"data", None, False, Call()),
        lambda: store.get("a/k", 1, 2, Call()),
        lambda: store.head("a/k", Call()),
        lambda: store.list("a/", "", 10, Call()),
        lambda: [found.key for found in store.scan("a/", Call())],
        lambda: store.delete(["a/k"], Call()),
    ):
        inner.calls.clear()
        inner._failures[:] = [TIMEOUT, TIMEOUT]
        call()
        assert len(inner.calls) == 3


def test_permanent_errors_are_not_repeated(tmp_path: Path) -> None:
    store, inner, waits = objects(tmp_path, [])
    with pytest.raises(NoSuchObject):
        store.get("k", 0, None, Call())
    assert (inner.calls, waits) == (["get"], [])


def test_put_with_lost_response_has_succeeded(tmp_path: Path) -> None:
    """Only if what is there is what was put."""
    store, inner, _ = objects(tmp_path, [TIMEOUT], late=True)
    stored = store.put("k", b"data", None, True, Call())
    assert stored.size_bytes == 4
    assert inner.calls == ["put", "put", "get"]
    store, _, _ = objects(tmp_path, [TIMEOUT], late=True)
    with pytest.raises(ConditionFailed):
        store.put("k", b"other", None, True, Call())
    with pytest.raises(ConditionFailed):  # the first attempt found it: it is not ours
        objects(tmp_path, [])[0].put("k", b"data", None, True, Call())


def test_folder_contains_only_objects(tmp_path: Path) -> None:
    """No lock, no unfinished file; reading makes no folder."""
    folder = FolderProvider(str(tmp_path / "table"), SharedStaging())
    with pytest.raises(NoSuchObject):
        folder.get("a/k", 0, None, Call())
    assert list(folder.scan("", Call())) == []
    assert not (tmp_path / "table").exists()
    folder.put("a/k", b"data", None, False, Call())
    with pytest.raises(ConditionFailed):
        folder.put("a/k", b"other", None, True, Call())
    assert [path.name for path in (tmp_path / "table").rglob("*")] == ["a", "k"]


def test_prefix_cannot_leave_folder(tmp_path: Path) -> None:
    (tmp_path / "beside").write_bytes(b"")
    folder = FolderProvider(str(tmp_path / "table"), SharedStaging())
    folder.put("a/k", b"data", None, False, Call())
    for prefix in ("../", "a/../../", "/", "./", "a/./"):
        assert list(folder.scan(prefix, Call())) == []
    assert [found.key for found in folder.scan("a/", Call())] == ["a/k"]
