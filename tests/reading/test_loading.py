"""Requests for the pieces of tasks: order, bounds, and failures."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from kafkawire.objectstore.url import TierUrl
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files import read_ahead as loading
from kafkawire.reading.files.locations import FolderPlace, Place, PlaceError
from kafkawire.reading.files.open import open_place
from kafkawire.reading.files.parallel_reads import ReadsInFlight, Step
from kafkawire.reading.files.read_ahead import loads
from kafkawire.reading.model.columns import Selection
from kafkawire.reading.model.source import PartitionRange, Piece, Source, Task
from kafkawire.reading.read_task import read_task
from kafkawire_spark.mapping import map_in_arrow
from tests.kit.minio import Minio
from tests.kit.s3_stub import Reply, error, ranged, serving
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.inflight import (
    WITHIN_S,
    Asked,
    Meter,
    no_thread_is_left,  # noqa: F401  (a fixture, by name)
)
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class Counted(FolderPlace):
    """Delays its first responses until this many requests more than `free` are in flight."""

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
    return Task((catalog.part(PartitionRange("t", 0, 0, segments * batches_each * 10)),))


def rows(places: Sequence[Place], task: Task, at_once: int = 0) -> list[int]:
    source = Source(places[0].url, requests_at_once=at_once)
    found = read_task(source, places, task, Selection(("offset",)))
    return [offset for batch in found for offset in batch.column(0).to_pylist()]


@pytest.mark.parametrize(("at_once", "run_bytes"), [(1, 20_000), (3, 20_000), (8, 7000)])
def test_tasks_respect_request_bounds(
    files: Files, at_once: int, run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across the ends of pieces and files: as many requests as allowed, and never more."""
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
    """All bytes of all files are requested at once, together with their indexes."""
    task = filled(files, 4, 500)
    assert all(piece.length > loading.GAP_BYTES for piece in task.parts[0].pieces)
    place = Counted(files.place.tier, 4)
    assert rows([place], task, 4) == list(range(20_000))
    assert len(place.meter.asked) == 4


def test_distant_small_pieces_are_not_all_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Discarded bytes between them count."""
    monkeypatch.setattr(loading, "RUN_BYTES", 200_000)
    pieces = [
        Piece(0, "f", at * 60_000, 100, 50_000_000 + at * 100, 28, 0, at, at, at + 1, at + 1)
        for at in range(500)
    ]
    flight = ReadsInFlight[loading.Load](2, 1000)
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


def test_unreadable_index_fails_in_order(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
def test_each_range_is_retried_separately(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, truncated, without a response: the others continue, and every row is read once."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setattr("kafkawire.objectstore.retrying.MAX_WAIT_S", 0.0)
    monkeypatch.setattr(loading, "RUN_BYTES", 20_000)
    loading._read_index.cache_clear()
    task = filled(files, 4, 100)
    troubles = [
        lambda data, start, size: error(503, "SlowDown"),
        lambda data, start, size: ranged(data[: len(data) // 2], start, size, length=len(data)),
        lambda data, start, size: ranged(b"", start, size, length=len(data)),
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
def test_loading_from_bucket(minio: Minio, tier_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    monkeypatch.setattr(loading, "RUN_BYTES", 50_000)
    files = Files(open_place(tier_url))
    task = filled(files, 4, 200)
    assert rows([files.place], task) == list(range(8000))


@pytest.mark.real
def test_spark_worker_keeps_no_thread(files: Files, spark: SparkSession) -> None:
    """Read to the end and stopped in the middle, in processes that were forked, and are used
    again."""
    task = filled(files, 4, 500)
    places = [files.place]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        def left() -> int:
            return sum(each.name.startswith("kafkawire-ahead") for each in threading.enumerate())

        before = left()
        for batch in batches:
            source, selection = Source(places[0].url, requests_at_once=8), Selection(("offset",))
            rows = sum(each.num_rows for each in read_task(source, places, task, selection))
            begun: Any = read_task(source, places, task, selection, batch_rows=10)
            rows += next(begun).num_rows
            within = left()
            begun.close()
            end = time.monotonic() + 30
            while left() and time.monotonic() < end:
                time.sleep(0.01)
            row = {"rows": rows, "before": before, "within": within, "after": left()}
            yield pa.RecordBatch.from_pylist([{**row, "pid": os.getpid()}] * batch.num_rows)

    seen: list[set[int]] = []
    for _ in range(2):
        ddl = "rows LONG, before LONG, within LONG, after LONG, pid LONG"
        found = map_in_arrow(spark.range(0, 4, 1, 4), work, ddl).collect()
        assert {(row.rows, row.before, row.after) for row in found} == {(20_010, 0, 0)}
        assert all(row.within for row in found)
        seen.append({row.pid for row in found})
    assert seen[0] & seen[1]
