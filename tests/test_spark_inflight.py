"""Several requests under way: their order, their bounds, what fails, and what is left behind."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from kafkawire.codec.types import Buffer
from kafkawire.manifest.url import TierUrl
from kafkawire.spark import loading
from kafkawire.spark.catalog import open_catalog
from kafkawire.spark.columns import Selection
from kafkawire.spark.inflight import InFlight, Plan, Range, Step
from kafkawire.spark.loading import loads
from kafkawire.spark.model import OffsetRange, Piece, Source, Task
from kafkawire.spark.places import FolderPlace, Place, PlaceError, open_place
from kafkawire.spark.reading import read_task
from tests.kit.minio import Minio
from tests.kit.s3stub import Reply, error, ranged, serving
from tests.kit.sparkfiles import Files, Share, batches

WITHIN_S = 30.0
Asked = tuple[str, int, int]


def eventually(true: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Meter:
    """How many requests are under way, how many bytes they ask for, and the most there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.now = self.most = self.size = self.most_size = 0

    @contextmanager
    def request(self, asked: Asked) -> Iterator[None]:
        with self._lock:
            self.asked.append(asked)
        self._count(1, asked[2])
        try:
            yield
        finally:
            self._count(-1, -asked[2])

    def _count(self, one: int, size: int) -> None:
        with self._lock:
            self.now += one
            self.size += size
            self.most, self.most_size = max(self.most, self.now), max(self.most_size, self.size)


class Slow(FolderPlace):
    """Ranges of nothing but their start, which come when the test lets them."""

    def __init__(self) -> None:
        super().__init__(TierUrl(folder="/slow"))
        self.__dict__.update(meter=Meter(), let=defaultdict(threading.Event))

    meter: Meter
    let: dict[int, threading.Event]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self.meter.request((key, start, length)):
            assert self.let[start].wait(WITHIN_S)
        if key == "gone":
            raise FileNotFoundError(key)
        if key == "broken":
            raise PlaceError(f"{start} cannot be read")
        return b"%d" % start

    def open(self, *starts: int) -> None:
        for start in starts:
            self.let[start].set()


def steps(place: Place, keys: Sequence[str], length: int = 10) -> Iterator[Step[str]]:
    for start, key in enumerate(keys):
        yield Step((Range(place, key, start, length),), lambda found: map(_text, found))


def _text(data: Buffer | None) -> str:
    return "gone" if data is None else bytes(data).decode()


def ours() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("kafkawire-ahead")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not ours())


def test_what_comes_in_any_order_is_taken_in_the_plans() -> None:
    place = Slow()
    taken = InFlight[str](4, 1000).taken(steps(place, ["f"] * 8))
    threading.Thread(target=lambda: place.open(3, 2, 1, 0, 7, 6, 5, 4)).start()
    assert list(taken) == [str(n) for n in range(8)]


def test_requests_are_bounded_by_their_number() -> None:
    place = Slow()
    taken = InFlight[str](3, 1000).taken(steps(place, ["f"] * 20))
    found: list[str] = []
    taker = threading.Thread(target=lambda: found.extend(taken))
    taker.start()
    eventually(lambda: place.meter.now == 3)
    place.open(*range(20))
    taker.join(WITHIN_S)
    assert found == [str(n) for n in range(20)]
    assert place.meter.most == 3


def test_what_is_asked_for_and_not_taken_is_bounded_in_bytes() -> None:
    place = Slow()
    place.open(*range(20))
    taken = InFlight[str](8, 45).taken(steps(place, ["f"] * 20))
    for number in range(20):
        assert next(taken) == str(number)
        # Four have room in 45 bytes, beside the one that was taken.
        eventually(lambda: len(place.meter.asked) == min(20, number + 1 + 4))  # noqa: B023
    assert list(taken) == []
    assert place.meter.most_size <= 40


def test_a_step_that_is_larger_than_the_room_is_alone() -> None:
    place = Slow()
    place.open(*range(9))
    taken = InFlight[str](8, 5).taken(steps(place, ["f"] * 9))
    assert list(taken) == [str(n) for n in range(9)]
    assert place.meter.most_size == 10


def test_an_error_is_raised_in_its_place() -> None:
    place = Slow()
    place.open(*range(9))
    taken = InFlight[str](8, 1000).taken(steps(place, ["f", "f", "gone", "broken", "f", "f"]))
    assert [next(taken) for _ in range(3)] == ["0", "1", "gone"]
    with pytest.raises(PlaceError, match="3 cannot be read"):
        next(taken)
    assert list(taken) == []


def test_who_ends_it_asks_for_nothing_more() -> None:
    place = Slow()
    place.open(0)
    taken = InFlight[str](2, 1000).taken(steps(place, ["f"] * 20))
    assert next(taken) == "0"
    taken.close()
    place.open(*range(20))
    eventually(lambda: not ours())
    assert len(place.meter.asked) <= 4


def test_a_plan_that_is_not_known_yet_holds_nobody_up() -> None:
    """What was asked for is taken while it waits; and it is not looked at again before."""
    place = Slow()
    known: Future[int] = Future()
    told: list[str] = []

    def plan() -> Plan[str]:
        yield from steps(place, ["f"])
        yield known
        told.append("known")
        yield Step((Range(place, "f", known.result(), 1),), lambda found: map(_text, found))

    place.open(0, 7)
    taken = InFlight[str](4, 1000).taken(plan())
    assert next(taken) == "0"
    assert not told
    threading.Thread(target=known.set_result, args=(7,)).start()
    assert list(taken) == ["7"]


# Of pieces


@pytest.fixture
def files(tmp_path: Any) -> Files:
    return Files(open_place(str(tmp_path / "tier")))


class Counted(FolderPlace):
    """Holds its first answers back until so many others than `free` are asked for at a time."""

    def __init__(self, tier: TierUrl, wait_for: int, free: Collection[Asked] = ()) -> None:
        super().__init__(tier)
        self.__dict__.update(
            meter=Meter(), free=free, left=wait_for, all_there=threading.Barrier(wait_for)
        )

    meter: Meter
    free: Collection[Asked]
    left: int
    all_there: threading.Barrier

    def get_range(self, key: str, start: int, length: int) -> bytes:
        asked = key, start, length
        with self.meter.request(asked):
            held = [each for each in self.meter.asked if each not in self.free]
            if asked not in self.free and held.index(asked) < self.left:
                self.all_there.wait(WITHIN_S)
            return super().get_range(key, start, length)


def filled(files: Files, segments: int, batches_each: int) -> Task:
    [number] = files.topic("t")
    for name in range(segments):
        base = name * batches_each * 10
        files.put(name, Share(number, batches(base, [10] * batches_each)))
    files.publish()
    catalog = open_catalog(Source(files.place.url))
    return Task((catalog.part(OffsetRange("t", 0, 0, segments * batches_each * 10)),))


def rows(places: Sequence[Place], task: Task, at_once: int = 0) -> list[int]:
    source = Source(places[0].url, requests_at_once=at_once)
    found = read_task(source, places, task, Selection(("offset",)))
    return [offset for batch in found for offset in batch.column(0).to_pylist()]


@pytest.mark.parametrize(("at_once", "run_bytes"), [(1, 20_000), (3, 20_000), (8, 7000)])
def test_tasks_keep_to_their_bounds(
    files: Files, at_once: int, run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the ends of pieces and files: as many at a time as may be, and never more."""
    monkeypatch.setattr(loading, "RUN_BYTES", run_bytes)
    loading._read_index.cache_clear()
    task = filled(files, 5, 50)
    pieces = task.parts[0].pieces
    indexes = {(piece.key, piece.index_start, piece.index_length) for piece in pieces}
    place = Counted(files.place.tier, at_once, indexes)
    assert rows([place], task, at_once) == list(range(2500))
    assert place.meter.most == at_once
    assert indexes < set(place.meter.asked)
    data = [each for each in place.meter.asked if each not in indexes]
    assert max(length for _, _, length in data) <= run_bytes
    assert sum(length for _, _, length in data) == sum(piece.length for piece in pieces)
    assert place.meter.most_size <= at_once * run_bytes + sum(size for _, _, size in indexes)


def test_whole_pieces_do_not_wait_for_their_indexes(files: Files) -> None:
    """Asked for at once: all bytes of all files, beside their indexes."""
    task = filled(files, 4, 500)
    assert all(piece.length > loading.GAP_BYTES for piece in task.parts[0].pieces)
    place = Counted(files.place.tier, 4)
    assert rows([place], task, 4) == list(range(20_000))
    assert len(place.meter.asked) == 4


def test_small_pieces_that_lie_far_apart_are_not_all_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is thrown away between them counts."""
    monkeypatch.setattr(loading, "RUN_BYTES", 200_000)
    pieces = [
        Piece(0, "f", at * 60_000, 100, 50_000_000 + at * 100, 28, 0, at, at, at + 1, at + 1)
        for at in range(500)
    ]
    flight = InFlight[loading.Load](2, 1000)
    place = open_place("/nowhere")
    planned = list(loading._Planning([place], pieces, flight).steps())
    made = [step for step in planned if isinstance(step, Step)]
    assert len(made) == len(planned) > 10
    assert max(step.size_bytes for step in made) <= 2 * loading.RUN_BYTES
    for at, piece in enumerate(pieces):
        assert any(
            each.start <= piece.start and piece.start + 100 <= each.start + each.length
            for step in made
            for each in step.ranges
        ), at


def test_an_index_that_cannot_be_read_fails_in_its_place(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "RUN_BYTES", 20_000)
    loading._read_index.cache_clear()
    task = filled(files, 3, 50)
    last = task.parts[0].pieces[2]

    class Broken(FolderPlace):
        def get_range(self, key: str, start: int, length: int) -> bytes:
            if (key, start) == (last.key, last.index_start):
                raise PlaceError("the index cannot be read")
            return super().get_range(key, start, length)

    found = loads([Broken(files.place.tier)], task.parts[0].pieces, 8)
    seen: list[int] = []
    with pytest.raises(PlaceError, match="the index"):
        seen.extend(load.at for load in found)
    assert set(seen) == {0, 1}
    files.place.delete([last.key])
    loading._read_index.cache_clear()
    *before, end = loads([files.place], task.parts[0].pieces, 8)
    assert end.gone
    assert end.at == 2
    assert not any(load.gone for load in before)


def test_each_range_is_tried_again_by_itself(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, cut short, without an answer: the others go on, and every row comes once."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)
    monkeypatch.setattr(loading, "RUN_BYTES", 20_000)
    loading._read_index.cache_clear()
    task = filled(files, 4, 100)
    troubles = [
        lambda data, start, size: error(503, "SlowDown"),
        lambda data, start, size: ranged(data[: len(data) // 2], start, size, length=len(data)),
        lambda data, start, size: Reply(206, b"", length=len(data)),
    ]
    seen: Counter[str] = Counter()

    def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
        whole = files.place.get(path.partition("/bucket/p/")[2])
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        data = whole[first : last + 1]
        name = f"{path} {first}"
        seen[name] += 1
        number = list(seen).index(name)
        if number % 2 and seen[name] < 3:
            return troubles[(number // 2 + seen[name]) % 3](data, first, len(whole))
        return ranged(data, first, len(whole))

    with serving(answer) as stub:
        place = open_place(f"s3://bucket/p?endpoint={stub.endpoint}&region=us-east-1")
        assert rows([place], task) == list(range(4000))
    assert max(seen.values()) == 3
    assert min(seen.values()) == 1


@pytest.mark.real
@pytest.mark.xdist_group("minio")
def test_a_bucket(minio: Minio, tier_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    monkeypatch.setattr(loading, "RUN_BYTES", 50_000)
    files = Files(open_place(tier_url))
    task = filled(files, 4, 200)
    assert rows([files.place], task) == list(range(8000))
