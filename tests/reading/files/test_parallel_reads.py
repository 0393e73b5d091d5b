"""Several requests in flight: their order, their bounds, failures, and cleanup."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest

from kafkawire.codec.types import Buffer
from kafkawire.objectstore.url import TierUrl
from kafkawire.reading.files.locations import FolderPlace, Place, PlaceError
from kafkawire.reading.files.parallel_reads import Plan, ReadRange, ReadsInFlight, Step
from tests.kit.spark.inflight import (
    WITHIN_S,
    Meter,
    eventually,
    no_thread_is_left,  # noqa: F401  (a fixture, by name)
    ours,
)


class Slow(FolderPlace):
    """Ranges that contain only their start, which arrive when the test allows it."""

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
        yield Step((ReadRange(place, key, start, length),), lambda found: map(_text, found))


def _text(data: Buffer | None) -> str:
    return "gone" if data is None else bytes(data).decode()


def test_responses_in_any_order_are_consumed_in_plan_order() -> None:
    place = Slow()
    taken = ReadsInFlight[str](4, 1000).yield_results(steps(place, ["f"] * 8))
    threading.Thread(target=lambda: place.open(3, 2, 1, 0, 7, 6, 5, 4)).start()
    assert list(taken) == [str(n) for n in range(8)]


def test_number_of_requests_in_flight_is_bounded() -> None:
    place = Slow()
    taken = ReadsInFlight[str](3, 1000).yield_results(steps(place, ["f"] * 20))
    found: list[str] = []
    taker = threading.Thread(target=lambda: found.extend(taken))
    taker.start()
    eventually(lambda: place.meter.now == 3)
    place.open(*range(20))
    taker.join(WITHIN_S)
    assert found == [str(n) for n in range(20)]
    assert place.meter.most == 3


def test_unconsumed_bytes_are_bounded() -> None:
    place = Slow()
    place.open(*range(20))
    taken = ReadsInFlight[str](8, 45).yield_results(steps(place, ["f"] * 20))
    for number in range(20):
        assert next(taken) == str(number)
        # Four fit into 45 bytes, in addition to the one that was consumed.
        eventually(lambda: len(place.meter.asked) == min(20, number + 1 + 4))  # noqa: B023
    assert list(taken) == []
    assert place.meter.most_size <= 40


def test_number_of_tiny_steps_is_bounded() -> None:
    place = Slow()
    place.open(*range(20))
    taken = ReadsInFlight[str](3, 1000).yield_results(steps(place, ["f"] * 20))
    for number in range(20):
        assert next(taken) == str(number)
        asked = min(20, number + 1 + 3)
        eventually(lambda: len(place.meter.asked) == asked)  # noqa: B023


def test_step_larger_than_bound_runs_alone() -> None:
    place = Slow()
    place.open(*range(9))
    taken = ReadsInFlight[str](8, 5).yield_results(steps(place, ["f"] * 9))
    assert list(taken) == [str(n) for n in range(9)]
    assert place.meter.most_size == 10


def test_error_is_raised_in_order() -> None:
    place = Slow()
    place.open(*range(9))
    taken = ReadsInFlight[str](8, 1000).yield_results(
        steps(place, ["f", "f", "gone", "broken", "f", "f"])
    )
    assert [next(taken) for _ in range(3)] == ["0", "1", "gone"]
    with pytest.raises(PlaceError, match="3 cannot be read"):
        next(taken)
    assert list(taken) == []


def test_close_stops_further_requests() -> None:
    place = Slow()
    place.open(0)
    taken = ReadsInFlight[str](2, 1000).yield_results(steps(place, ["f"] * 20))
    assert next(taken) == "0"
    taken.close()
    place.open(*range(20))
    eventually(lambda: not ours())
    assert len(place.meter.asked) <= 4


def test_unfinished_plan_does_not_block_consumer() -> None:
    """Requested data is consumed while the plan waits, which is not asked again before."""
    place = Slow()
    known: Future[int] = Future()
    reported: list[str] = []

    def plan() -> Plan[str]:
        yield from steps(place, ["f"])
        yield known
        reported.append("known")
        yield Step((ReadRange(place, "f", known.result(), 1),), lambda found: map(_text, found))

    place.open(0, 7)
    taken = ReadsInFlight[str](4, 1000).yield_results(plan())
    assert next(taken) == "0"
    assert not reported
    threading.Thread(target=known.set_result, args=(7,)).start()
    assert list(taken) == ["7"]
