"""Reading manifests of a bucket: the number of round trips, and which files are requested."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.manifest.fold import fold
from kafkawire.manifest.format import pack, unpack
from kafkawire.manifest.keys import CURRENT, DELTAS, delta_key, snapshot_key
from kafkawire.manifest.reader import Current, pack_current
from kafkawire.manifest.state import Snapshot
from kafkawire.objectstore.port import Objects
from kafkawire.reading.files.locations import Place, PlaceError
from kafkawire.reading.files.manifests import Holding, NothingThere, _read, refresh_holding
from kafkawire.reading.files.open import open_place
from kafkawire.reading.files.spans import Sheet
from kafkawire.reading.model.source import SourceError
from tests.kit.spark.files import Files, Share, batch

WITHIN_S = 90.0
LISTED = "list"


class Far(Place):
    """A folder that behaves like a bucket. `asked`: (round trip, key), where a request is one round
    trip after all that had ended when it began. `gate` may delay a request."""

    def __init__(self, near: Place, gate: Callable[[str], None] = lambda key: None) -> None:
        super().__init__(near.tier)
        self.__dict__.update(near=near, gate=gate, asked=[], lock=threading.Lock(), trips=0)

    near: Place
    gate: Callable[[str], None]
    asked: list[tuple[int, str]]
    lock: threading.Lock
    trips: int

    def _asked(self, key: str, work: Callable[[], Any]) -> Any:
        with self.lock:
            trip = self.trips + 1
            self.asked.append((trip, key))
        self.gate(key)
        try:
            return work()
        finally:
            with self.lock:
                self.__dict__["trips"] = max(self.trips, trip)

    def get(self, key: str) -> bytes:
        found: bytes = self._asked(key, lambda: self.near.get(key))
        return found

    def list(self, prefix: str = "") -> Iterator[str]:
        assert prefix == DELTAS
        yield from self._asked(LISTED, lambda: list(self.near.list(prefix)))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        raise NotImplementedError

    def size(self, key: str) -> int:
        raise NotImplementedError

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        raise NotImplementedError

    def delete(self, keys: Iterable[str]) -> None:
        raise NotImplementedError

    def access(self) -> None:
        return None

    def _objects(self) -> Objects:
        raise NotImplementedError

    def arrow(self) -> tuple[Any, str]:
        raise NotImplementedError


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(open_place(str(tmp_path / "tier")))
    made.topic("t")
    return made


def publish(files: Files, count: int) -> None:
    """Add this many deltas, each with a segment of one record."""
    [number] = files.topics["t"].partitions
    for _ in range(count):
        at = files.sequence
        files.put(at, Share(number, [batch(at)]))
        files.publish()


def end(far: Far, manifest: Any = None) -> int:
    """The partition's end according to the manifest."""
    row = (manifest or _read(far)).get_partition(1)
    assert row is not None
    found: int = row.end
    return found


def at_once(*groups: int) -> Callable[[str], None]:
    """A gate that holds requests until this many were made; then for the next group."""
    barriers = iter([barrier for count in groups for barrier in [threading.Barrier(count)] * count])
    lock = threading.Lock()

    def gate(key: str) -> None:
        with lock:
            barrier = next(barriers, None)
        if barrier is not None:
            barrier.wait(WITHIN_S)

    return gate


def test_manifest_is_read_in_three_round_trips(files: Files) -> None:
    publish(files, 20)
    far = Far(files.place, at_once(2, 22))  # the snapshot, the deltas, the one after them
    assert end(far) == 20
    assert {key for trip, key in far.asked if trip == 1} == {CURRENT, LISTED}
    wanted = {snapshot_key(0), *map(delta_key, range(1, 22))}
    assert {key for trip, key in far.asked if trip == 2} == wanted
    assert [key for trip, key in far.asked if trip > 2] == [CURRENT]
    assert len(far.asked) == 25


def test_folded_deltas_are_not_read(files: Files) -> None:
    publish(files, 5)
    state = unpack(files.place.get(snapshot_key(0)))
    assert isinstance(state, Snapshot)
    deltas = [unpack(files.place.get(delta_key(number))) for number in range(1, 4)]
    files.place.put(snapshot_key(3), pack(fold(state, deltas)))
    files.place.put(CURRENT, pack_current(Current(3)))
    far = Far(files.place)
    assert end(far) == 5
    fetched = {key for _, key in far.asked} - {CURRENT, LISTED}
    assert fetched == {snapshot_key(3), *map(delta_key, range(4, 7))}


def test_delta_written_while_reading_is_found(files: Files) -> None:
    """Also a delta after the one that is requested with the others."""
    publish(files, 2)
    done = threading.Event()

    def gate(key: str) -> None:
        if key == snapshot_key(0) and not done.is_set():
            done.set()
            publish(files, 3)

    far = Far(files.place, gate)
    assert end(far) in (2, 5)  # the old or the new state, nothing in between
    assert end(far) == 5


def test_unreadable_delta_is_an_error(files: Files) -> None:
    publish(files, 4)

    def gate(key: str) -> None:
        if key == delta_key(3):
            raise PlaceError("the cable is out")

    with pytest.raises(PlaceError, match="the cable is out"):
        _read(Far(files.place, gate))


def test_missing_manifest(files: Files) -> None:
    with pytest.raises(NothingThere, match="nothing was uploaded"):
        _read(Far(files.place))

    def gate(key: str) -> None:
        raise PlaceError("there is no bucket")

    with pytest.raises(SourceError, match="there is no bucket"):
        _read(Far(files.place, gate))


def test_refresh_requests_only_new_deltas(files: Files) -> None:
    publish(files, 3)
    far = Far(files.place)
    holding = Holding(far, Sheet(_read(far)))
    far.asked.clear()
    assert refresh_holding(holding) is holding
    assert [key for _, key in far.asked] == [delta_key(4), CURRENT]
    publish(files, 3)
    far.asked.clear()
    again = refresh_holding(holding)
    assert end(far, again.manifest) == 6
    assert [key for _, key in far.asked][:2] == [delta_key(4), LISTED]
    assert sorted(key for _, key in far.asked[2:-1]) == list(map(delta_key, (5, 6, 7)))
    assert far.asked[-1][1] == CURRENT
