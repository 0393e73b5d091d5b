"""Contracts of plug-ins, as checks that their authors run in tests. Needs no pytest.

    @pytest.mark.parametrize("check", STORE_CHECKS, ids=name_of)
    def test_store(check, tmp_path):
        check(PLUGIN.open(parse_tier("scheme://bucket/prefix"), Opening(8 << 20, 8, 4, False)))

A check raises ContractBroken with a sentence that says what the plug-in did. It uses keys of its
own, so a shared bucket may be used, and deletes them if it passes.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BytesIO

from kafkawire.objectstore.calls import Call, Cancelled
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.objectstore.port import Provider, Stored
from kafkawire.offsets.catalog.kv.store import KeyValueStore, MemoryStore, Writes

StoreCheck = Callable[[Provider], None]
TEN = b"0123456789"
RANGES: Sequence[tuple[int, int | None, bytes]] = (
    (0, None, TEN), (3, None, TEN[3:]), (3, 4, b"3456"), (0, 10, TEN), (9, 1, b"9"),
    (8, 100, b"89"), (0, 0, b""), (10, None, b""), (10, 1, b""), (25, 5, b""),
    (-3, None, b"789"), (-30, None, TEN), (-3, 2, b"78"), (-3, 100, b"789"),
)  # fmt: skip
"""(start, length, bytes) of an object of ten bytes."""


class ContractBroken(AssertionError):
    """A plug-in broke its contract: one sentence says how."""


def name_of(check: object) -> str:
    """Return the name of a check, for `ids` of pytest."""
    return str(getattr(check, "__name__", check))


def put_and_get(store: Provider) -> None:
    """An object can be read with the ETag of its PUT, and another PUT changes both."""
    with _keys(store) as key:
        for data in (TEN, b"other", b""):
            stored = _put(store, key("a"), data)
            _expect("get after put", store.get(key("a"), 0, None, Call()), (data, stored.etag))
            _expect("head after put", store.head(key("a"), Call())[:2], (stored.etag, len(data)))
        if _put(store, key("a"), TEN).etag == stored.etag:
            raise ContractBroken("put: two different objects under one key have the same ETag")


def ranges(store: Provider) -> None:
    """`get` returns exactly the range, cut at the end of the object."""
    with _keys(store) as key:
        _put(store, key("a"), TEN)
        for start, length, data in RANGES:
            found = store.get(key("a"), start, length, Call())[0]
            _expect(f"get(start={start}, length={length}) of {TEN!r}", found, data)
        first, second = bytearray(3), bytearray(4)
        store.read(key("a"), 2, [memoryview(first), memoryview(second)], Call())
        _expect("read of bytes 2 to 9 into two views", bytes(first + second), TEN[2:9])
        for start, length in ((5, 6), (10, 1), (99, 1)):
            _raises(
                StoreError, f"read of {length} bytes from {start} on, of 10",
                partial(store.read, key("a"), start, [memoryview(bytearray(length))], Call()),
                (NoSuchObject, Refused),
            )  # fmt: skip


def missing_objects(store: Provider) -> None:
    """A key without an object is NoSuchObject, and may be deleted."""
    with _keys(store) as key, tempfile.TemporaryDirectory() as folder:
        _put(store, key("a"), TEN)
        none = key("none")
        for what, call in (
            ("get", lambda: store.get(none, 0, None, Call())),
            ("get of a range", lambda: store.get(none, 2, 3, Call())),
            ("head", lambda: store.head(none, Call())),
            ("read", lambda: store.read(none, 0, [memoryview(bytearray(1))], Call())),
            ("download", lambda: store.download(none, f"{folder}/new", -1, Call())),
        ):
            _raises(NoSuchObject, f"{what} of a missing object", call)
        _expect("files after a failed download", os.listdir(folder), [])
        store.delete([none], Call())


def invalid_keys(store: Provider) -> None:
    """Keys that are ambiguous or lead out of the prefix are ValueErrors."""
    for bad in ("", "/a", "a/", "a//b", "../a", ".", "a/.b", "line\nfeed", "x" * 1025):
        _raises(ValueError, f"put of the key {bad[:20]!r}", partial(_put, store, bad, TEN))
        _raises(ValueError, f"get of the key {bad[:20]!r}", partial(store.head, bad, Call()))


def put_if_absent(store: Provider) -> None:
    """A PUT with `if_absent` replaces nothing; of concurrent ones one succeeds."""
    with _keys(store) as key:
        _put(store, key("a"), b"first", if_absent=True)
        _raises(
            ConditionFailed, "put with if_absent over an object",
            lambda: _put(store, key("a"), b"second", if_absent=True),
        )  # fmt: skip
        _expect("the object after it", store.get(key("a"), 0, None, Call())[0], b"first")
        _one_winner(store, key("b"), lambda data: _put(store, key("b"), data, if_absent=True))


def put_if_match(store: Provider) -> None:
    """A PUT with `if_match` replaces only the object with that ETag; of concurrent ones one
    succeeds."""
    with _keys(store) as key:
        _raises(
            ConditionFailed, "put with if_match where there is no object",
            lambda: _put(store, key("none"), TEN, if_match="0123456789abcdef"),
        )  # fmt: skip
        first = _put(store, key("a"), b"first")
        second = _put(store, key("a"), b"second", if_match=first.etag)
        _raises(
            ConditionFailed, "put with the ETag of an earlier object",
            lambda: _put(store, key("a"), b"third", if_match=first.etag),
        )  # fmt: skip
        _expect("the object after it", store.get(key("a"), 0, None, Call()), (b"second", second[0]))
        _one_winner(store, key("a"), lambda data: _put(store, key("a"), data, if_match=second.etag))


def listing(store: Provider) -> None:
    """Listings are sorted by key, and have exactly the objects that are there now."""
    with _keys(store) as key:
        names = [key(name) for name in ("a-b/x", "a/b/c", "a/c", "a0", "ab", "b/1", "ä")]
        sizes = {name: _put(store, name, name.encode()).size_bytes for name in names}
        for prefix in ("", "a", "a/", "a/b", "b/1", "c", "ä"):
            wanted = sorted(name for name in names if name.startswith(key(prefix)))
            for after in ("", key("a/b"), key("a/c"), key("zz")):
                above = [name for name in wanted if name > after]
                for limit in (1000, 2):
                    found = store.list(key(prefix), after, limit, Call())
                    what = f"list(prefix={prefix!r}, after={after[-4:]!r}, limit={limit})"
                    _expect(what, [each.key for each in found], above[:limit])
                    _expect(f"sizes of {what}", [each.size_bytes for each in found],
                            [sizes[name] for name in above[:limit]])  # fmt: skip
        for each in store.list(key(""), "", 1000, Call()):
            _expect("the ETag in a listing", each.etag, store.head(each.key, Call()).etag)
        # A stale listing would let a restore miss objects, and a scrub delete needed ones.
        store.delete(names[:3], Call())
        found = store.list(key(""), "", 1000, Call())
        _expect("list after delete", [each.key for each in found], sorted(names[3:]))
        _put(store, names[0], TEN)
        scanned = [each.key for each in store.scan(key(""), Call())]
        _expect("scan after put", scanned, sorted([names[0], *names[3:]]))


def transfers(store: Provider) -> None:
    """Files of several parts arrive unchanged; a stream of another size is not stored."""
    data = random.Random(1).randbytes((17 << 20) + 3)
    with _keys(store) as key, tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/file", "wb") as file:
            file.write(data)
        stored = store.upload(key("a"), f"{folder}/file", -1, Call())
        _expect("size of an upload", stored.size_bytes, len(data))
        _expect("ETag of an upload", stored.etag, store.head(key("a"), Call()).etag)
        store.download(key("a"), f"{folder}/copy", -1, Call())
        with open(f"{folder}/copy", "rb") as file:
            _expect("download of an upload", file.read() == data, True)
        with store.reading(key("a"), Call()) as body:
            _expect("a stream of it", body.read(7), data[:7])
        store.upload_from(key("b"), BytesIO(data), len(data), Call())
        _expect("size of a streamed upload", store.head(key("b"), Call()).size_bytes, len(data))
        for size_bytes in (len(data) - 1, len(data) + 1):
            _raises(
                StoreError, f"upload_from of {len(data)} bytes as {size_bytes}",
                partial(store.upload_from, key("c"), BytesIO(data), size_bytes, Call()),
            )  # fmt: skip
        _raises(NoSuchObject, "head after failed uploads", lambda: store.head(key("c"), Call()))
        call = Call()
        call.cancel()
        _raises(
            Cancelled, "a cancelled read",
            lambda: store.read(key("a"), 0, [memoryview(bytearray(9))], call),
        )  # fmt: skip


STORE_CHECKS: Sequence[StoreCheck] = (
    put_and_get, ranges, missing_objects, invalid_keys, put_if_absent, put_if_match, listing,
    transfers,
)  # fmt: skip
"""The contract of a `Provider` (kafkawire.objectstore.port)."""


def check_key_value_store(
    open_store: Callable[[], KeyValueStore], seed: int = 1, rounds: int = 200
) -> None:
    """Check a KeyValueStore (kafkawire.offsets.catalog.kv.store): random operations must have the
    results of a dict in memory, also after the store was closed and opened again. `open_store`
    opens the same store each time; it is empty at first. Raises ContractBroken."""
    chosen, model, store = random.Random(seed), MemoryStore(), open_store()
    keys = [bytes(chosen.choices(b"\x00\x01az\xff", k=1 + n % 4)) for n in range(60)]
    for number in range(rounds):
        writes = Writes()
        for _ in range(chosen.randrange(6)):
            if chosen.random() < 0.7:
                writes.put(chosen.choice(keys), chosen.randbytes(chosen.randrange(40)))
            else:
                writes.delete(chosen.choice(keys))
        store.write(writes)
        model.write(writes)
        if number % 25 == 24:
            store.close()
            store = open_store()
        low, high = sorted((chosen.choice(keys), chosen.choice(keys)))
        some, limit = chosen.choices(keys, k=4), chosen.choice((-1, 0, 1, 3))
        _expect(f"get({some})", list(store.get(some)), model.get(some))
        _expect(f"scan({low!r}, {high!r}, {limit})", list(store.scan(low, high, limit)),
                model.scan(low, high, limit))  # fmt: skip
        _expect(f"floor({low!r}, {high!r})", store.floor(low, high), model.floor(low, high))
    store.close()


@contextmanager
def _keys(store: Provider) -> Iterator[Callable[[str], str]]:
    """Yield what makes a key of a folder of its own, whose objects are deleted at the end."""
    folder = f"contract-{os.urandom(6).hex()}/"
    yield lambda name: folder + name
    store.delete([each.key for each in store.scan(folder, Call())], Call())


def _put(
    store: Provider, key: str, data: bytes, if_match: str | None = None, if_absent: bool = False
) -> Stored:
    stored = store.put(key, data, if_match, if_absent, Call())
    _expect(f"size of the answer to put({key[-20:]!r})", stored.size_bytes, len(data))
    return stored


def _one_winner(store: Provider, key: str, put: Callable[[bytes], Stored]) -> None:
    def attempt(data: bytes) -> bool:
        try:
            put(data)
        except ConditionFailed:
            return False
        return True

    bodies = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        won = [
            data for data, done in zip(bodies, threads.map(attempt, bodies), strict=True) if done
        ]
    if len(won) != 1:
        raise ContractBroken(f"of 8 concurrent conditional puts {len(won)} succeeded, not one")
    _expect("the object of the put that succeeded", store.get(key, 0, None, Call())[0], won[0])


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ContractBroken(f"{what} is {_short(found)}, not {_short(wanted)}")


def _raises(
    kind: type[Exception],
    what: str,
    call: Callable[[], object],
    but_not: tuple[type[Exception], ...] = (),
) -> None:
    try:
        result = call()
    except kind as failure:
        if isinstance(failure, but_not):
            raise ContractBroken(
                f"{what} raises {type(failure).__name__}, not {kind.__name__}"
            ) from None
    except Exception as failure:
        raise ContractBroken(f"{what} raises {failure!r}, not {kind.__name__}") from failure
    else:
        raise ContractBroken(f"{what} returns {_short(result)}, it must raise {kind.__name__}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "..."
