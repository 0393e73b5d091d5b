"""The contracts of plug-ins find stores that lie, and pass those that do not.

Covers: kafkawire.testing.contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.objectstore.folder import FolderProvider
from kafkawire.objectstore.port import Listed, Stored
from kafkawire.objectstore.staging import OwnStaging
from kafkawire.offsets.catalog.kv.store import MemoryStore, Writes
from kafkawire.testing.contracts import (
    STORE_CHECKS,
    ContractBroken,
    StoreCheck,
    check_key_value_store,
    name_of,
)


class Honest(FolderProvider):
    def __init__(self, folder: str) -> None:
        super().__init__(folder, OwnStaging(folder, True, False))


class StaleListing(Honest):
    """Lists what was there at the first listing of a prefix."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.known: dict[Any, list[Listed]] = {}

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        asked = prefix, after, limit
        return self.known.setdefault(asked, super().list(prefix, after, limit, call))


class UnsortedListing(Honest):
    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        return super().list(prefix, after, limit, call)[::-1]


class IgnoresAfter(Honest):
    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        return super().list(prefix, "", limit, call)


class ShortRange(Honest):
    """Leaves out the last byte of a range."""

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        data, etag = super().get(key, start, length, call)
        return (data if length is None else data[: max(0, length - 1)]), etag


class IgnoresRange(Honest):
    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        return super().get(key, 0, None, call)


class ShortRead(Honest):
    """Fills what there is, without an error."""

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        try:
            super().read(key, start, into, call)
        except NoSuchObject:
            raise
        except StoreError:
            return


class Overwrites(Honest):
    """Ignores If-None-Match."""

    def put(
        self, key: str, data: bytes | memoryview, if_match: str | None, if_absent: bool, call: Call
    ) -> Stored:
        return super().put(key, data, if_match, False, call)


class ChecksFirst(Honest):
    """Checks If-None-Match, but not together with the PUT."""

    def put(
        self, key: str, data: bytes | memoryview, if_match: str | None, if_absent: bool, call: Call
    ) -> Stored:
        if if_absent:
            try:
                self.head(key, call)
            except NoSuchObject:
                barrier()
                return super().put(key, data, None, False, call)
        return super().put(key, data, if_match, if_absent, call)


class IgnoresMatch(Honest):
    def put(
        self, key: str, data: bytes | memoryview, if_match: str | None, if_absent: bool, call: Call
    ) -> Stored:
        return super().put(key, data, None, if_absent, call)


class SameEtag(Honest):
    def head(self, key: str, call: Call) -> Stored:
        return super().head(key, call)._replace(etag="same")


class StoresHalves(Honest):
    """Keeps what came of a stream that was too short."""

    def upload_from(self, key: str, source: Any, size_bytes: int, call: Call) -> Stored:
        data = source.read()[:size_bytes]
        return super().put(key, data, None, False, call)


class HidesMissing(Honest):
    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        try:
            return super().get(key, start, length, call)
        except NoSuchObject:
            return b"", ""


def barrier() -> None:
    """Let other threads run between a check and the PUT that it is about."""
    import time

    time.sleep(0.05)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=name_of)
def test_honest_store_passes(check: StoreCheck, tmp_path: Path) -> None:
    check(Honest(str(tmp_path / "tier")))
    # Nothing is left of it.
    assert Honest(str(tmp_path / "tier")).list("", "", 1000, Call()) == []


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (StaleListing, "listing", "list after delete is"),
        (UnsortedListing, "listing", "list(prefix="),
        (IgnoresAfter, "listing", "after='"),
        (ShortRange, "ranges", "get(start=3, length=4)"),
        (IgnoresRange, "ranges", "get(start=3, length=None)"),
        (ShortRead, "ranges", "read of 6 bytes from 5 on, of 10 returns"),
        (Overwrites, "put_if_absent", "put with if_absent over an object returns"),
        (ChecksFirst, "put_if_absent", "concurrent conditional puts"),
        (IgnoresMatch, "put_if_match", "it must raise ConditionFailed"),
        (SameEtag, "put_and_get", "head after put"),
        (StoresHalves, "transfers", "upload_from of"),
        (HidesMissing, "missing_objects", "get of a missing object returns"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_lies_are_found(kind: type[Honest], check: str, words: str, tmp_path: Path) -> None:
    (found,) = [each for each in STORE_CHECKS if name_of(each) == check]
    with pytest.raises(ContractBroken) as caught:
        found(kind(str(tmp_path / "tier")))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Forgetful(MemoryStore):
    """Loses its rows when it is closed."""

    def close(self) -> None:
        for key in list(self._values):
            writes = Writes()
            writes.delete(key)
            super().write(writes)


class Inclusive(MemoryStore):
    def scan(self, low: bytes, high: bytes, limit: int = -1) -> list[tuple[bytes, bytes]]:
        return super().scan(low, high + b"\0", limit)


class Exclusive(MemoryStore):
    def floor(self, low: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        found = super().floor(low, key)
        return None if found is not None and found[0] == key else found


class KeepsDeleted(MemoryStore):
    def write(self, writes: Writes) -> None:
        kept = Writes()
        kept.changes = {key: value for key, value in writes.changes.items() if value is not None}
        super().write(kept)


@pytest.mark.parametrize("kind", [Forgetful, Inclusive, Exclusive, KeepsDeleted])
def test_key_value_store_that_lies_is_found(kind: Callable[[], MemoryStore]) -> None:
    store = kind()
    with pytest.raises(ContractBroken, match=r"^(get|scan|floor)\("):
        check_key_value_store(lambda: store)


def test_honest_key_value_store_passes() -> None:
    store = MemoryStore()
    check_key_value_store(lambda: store)
