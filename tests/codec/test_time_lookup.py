"""The search for a record by its time, over pieces that read in runs of any size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import CONTROL, Record, pack, stamp
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.time_lookup import TimedPiece, find_first_since, run_in_thread
from kafkawire.codec.types import Buffer
from kafkawire.codec.walk import MAX_WALKED_RECORDS

Batch = tuple[bytearray, list[tuple[int, int]]]


class Piece(TimedPiece):
    """The offsets [base, end) of runs of batches."""

    def __init__(self, runs: Sequence[bytes], base: int, end: int, *, trusted: bool = True) -> None:
        self._runs = list(runs)
        self._bounds = base, end
        self._trusted = trusted

    def bounds(self) -> tuple[int, int]:
        return self._bounds

    @property
    def trusts_heads(self) -> bool:
        return self._trusted

    async def read_next(self) -> Sequence[Buffer]:
        return (self._runs.pop(0),) if self._runs else ()


def batch(base: int, times: Sequence[int], attributes: int = 0) -> bytearray:
    records = [Record(base + at, time, b"k", b"v") for at, time in enumerate(times)]
    return pack(records, codec=base % 2, attributes=attributes)


@given(
    times=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=12), min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 5)),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    ms=st.integers(0, 21),
)
def test_it_finds_what_a_search_of_all_records_finds(
    times: list[list[int]], cuts: set[int], bounds: tuple[int, int], ms: int
) -> None:
    runs, records, offset = [b""], [], 0
    for number, each in enumerate(times):
        if number in cuts and runs[-1]:
            runs.append(b"")
        runs[-1] += batch(offset, each)
        records += [(offset + at, time) for at, time in enumerate(each)]
        offset += len(each)
    base, end = bounds
    wanted = next((each for each in records if base <= each[0] < end and each[1] >= ms), None)
    assert run_in_thread(find_first_since(Piece(runs, base, end), ms)) == wanted


def test_heads_of_large_batches_are_trusted_only_where_the_piece_says_so() -> None:
    wrong = batch(0, range(100, 101 + MAX_WALKED_RECORDS))
    stamp(wrong, 50, log_append=False)
    found = [
        run_in_thread(find_first_since(Piece([bytes(wrong)], 0, 100, trusted=trusted), 103))
        for trusted in (False, True)
    ]
    assert found == [(3, 103), None]


def test_control_batches_have_no_times() -> None:
    data = bytes(batch(0, [9], CONTROL) + batch(1, [3]))
    assert run_in_thread(find_first_since(Piece([data], 0, 2), 2)) == (1, 3)


def test_damage_is_an_error() -> None:
    with pytest.raises(KafkaError):
        run_in_thread(find_first_since(Piece([bytes(80)], 0, 2), 0))


def test_a_piece_of_a_thread_may_not_wait() -> None:
    class Waiting(Piece):
        async def read_next(self) -> Sequence[Buffer]:
            await asyncio.sleep(0)
            return ()

    with pytest.raises(RuntimeError, match="waited for an event loop"):
        run_in_thread(find_first_since(Waiting([], 0, 1), 0))


def test_every_record_pauses() -> None:
    pauses = []

    async def pause() -> None:
        pauses.append(1)

    piece = Piece([bytes(batch(0, [1] * 5 + [2]))], 0, 9)
    piece.pause = pause
    assert run_in_thread(find_first_since(piece, 2)) == (5, 2)
    assert len(pauses) == 5
