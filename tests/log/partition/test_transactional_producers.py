"""Transactions in the state of a partition's producers: the rules of KIP-98, KIP-890 and Kafka's
ProducerAppendInfo, as tables.

Covers: kafkawire.log.partition.producers, kafkawire.log.partition.verification,
kafkawire.log.partition.transactions, kafkawire.metadata.checkpoint.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.control import ABORT, COMMIT, Aborted, TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.producers import (
    LAST_EPOCH,
    ProducerBatch,
    Producers,
)
from kafkawire.log.partition.transactions import AbortedIndex
from kafkawire.log.partition.verification import MAX_GUARDS, NOT_VERIFIED, Guard, Guards
from kafkawire.metadata.checkpoint import (
    ProducerEntry,
    pack_producers,
    producers_at,
    unpack_producers,
)

P = 7
NOW_MS = 1_700_000_000_000

EPOCH, SEQUENCE, STATE = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_TXN_STATE,
)
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class Bench:
    """Producers whose batches of one record are written at once, at rising offsets."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.end = 0

    def written(self) -> int:
        self.producers.depart()
        self.producers.apply_in_flight()
        self.end += 1
        return self.end - 1

    def send(
        self,
        sequence: int,
        epoch: int = 0,
        *,
        guard: Guard | None = NOT_VERIFIED,
        producer_id: int = P,
    ) -> int:
        """A transactional batch; its offset, or the original's."""
        producers = self.producers
        original = producers.check_transactional(producer_id, epoch, sequence, sequence, guard)
        if original is not None:
            return original[0]
        batch = ProducerBatch(producer_id, epoch, sequence, sequence, NOW_MS)
        producers.queue_transactional(batch, self.end, NOW_MS)
        return self.written()

    def plain(self, sequence: int, epoch: int = 0) -> int:
        """A batch without a transaction."""
        original = self.producers.check(P, epoch, sequence, sequence)
        if original is not None:
            return original[0]
        self.producers.queue(P, epoch, sequence, sequence, self.end, NOW_MS)
        return self.written()

    def mark(
        self,
        epoch: int = 0,
        *,
        commit: bool = True,
        coordinator: int = 0,
        version: int = 0,
        producer_id: int = P,
    ) -> int:
        kind = COMMIT if commit else ABORT
        marker = TransactionMarker(producer_id, epoch, coordinator, kind, version)
        self.producers.check_marker(marker)
        self.producers.queue_marker(marker, self.end, NOW_MS)
        return self.written()

    @property
    def opened(self) -> dict[int, int]:
        known = self.producers.transactions
        return known.open if known is not None else {}

    def ask(self, epoch: int = 0, sequence: int = 0, *, adds: bool = False) -> Guard | None:
        return self.producers.begin_verification(P, epoch, sequence, NOW_MS, adds=adds)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.raises(KafkaError, check=lambda failure: failure.code is code)


# -- data


def test_the_first_transactional_batch_opens_a_transaction(bench: Bench) -> None:
    bench.plain(0)
    bench.send(1)
    bench.send(2)
    assert bench.opened == {P: 1}
    assert bench.producers.entries()[0].open_offset == 1


def test_a_batch_without_a_transaction_is_refused_while_one_is_open(bench: Bench) -> None:
    bench.send(0)
    with refused(STATE):
        bench.plain(1)
    bench.mark()
    assert bench.plain(1) == 2


@pytest.mark.parametrize(
    ("epoch", "sequence", "code"),
    [(0, 2, EPOCH), (1, 3, SEQUENCE), (2, 1, SEQUENCE), (0, 7, EPOCH)],
)
def test_data_of_a_wrong_epoch_or_sequence(
    bench: Bench, epoch: int, sequence: int, code: ErrorCode
) -> None:
    bench.send(0, 1)
    bench.send(1, 1)
    with refused(code):
        bench.send(sequence, epoch)
    assert bench.opened == {P: 0}


def test_a_retry_of_one_of_the_last_five_batches_gets_its_offset(bench: Bench) -> None:
    offsets = [bench.send(n) for n in range(7)]
    assert [bench.send(n, guard=None) for n in range(2, 7)] == offsets[2:]
    with refused(SEQUENCE):
        bench.send(1)


def test_sequences_run_on_over_transactions_of_version_1(bench: Bench) -> None:
    for n in range(6):
        bench.send(n)
        bench.mark(commit=n % 2 == 0)
    assert bench.send(6) == 12
    with refused(SEQUENCE):
        bench.send(0)


def test_a_retry_after_the_marker_of_version_1_gets_its_offset(bench: Bench) -> None:
    bench.send(0)
    bench.mark()
    assert bench.send(0, guard=None) == 0, "the state knows it, whatever the guard"
    assert bench.end == 2


def test_sequences_begin_at_0_after_a_marker_of_version_2(bench: Bench) -> None:
    bench.send(0)
    bench.send(1)
    bench.mark(1, version=2)
    with refused(EPOCH):
        bench.send(2)
    with refused(SEQUENCE):
        bench.send(2, 1)
    assert bench.send(0, 1) == 3


def test_a_producer_that_is_not_known_may_begin_anywhere_in_version_1(bench: Bench) -> None:
    guard = bench.ask(sequence=42)
    assert bench.send(42, guard=guard) == 0


def test_a_producer_that_is_not_known_begins_at_0_in_version_2(bench: Bench) -> None:
    guard = bench.ask(sequence=5, adds=True)
    with refused(SEQUENCE):
        bench.send(5, guard=guard)
    assert bench.ask(sequence=0, adds=True) is guard
    assert bench.send(0, guard=guard) == 0


def test_sequences_wrap_in_a_transaction(bench: Bench) -> None:
    bench.send((1 << 31) - 1)
    assert bench.send(0) == 1


def test_offsets_of_groups_have_no_sequence(bench: Bench) -> None:
    bench.send(-1)
    bench.send(-1)
    assert bench.opened == {P: 0}
    bench.mark()
    assert bench.opened == {}
    entry = bench.producers.entries()[0]
    assert (entry.batches, entry.epoch) == ([], 0)
    with refused(EPOCH):
        bench.mark(3, version=2)
        bench.send(-1, 2)


# -- verification


def test_the_first_batch_needs_its_guard(bench: Bench) -> None:
    with refused(STATE):
        bench.send(0, guard=None)
    guard = bench.ask()
    with refused(STATE):
        bench.send(0, guard=Guard(0, 0, NOW_MS, adds=False))
    assert bench.send(0, guard=guard) == 0
    assert bench.ask(sequence=1) is None, "the open transaction is the proof"
    assert bench.send(1, guard=None) == 1


def test_questions_of_one_producer_share_a_guard(bench: Bench) -> None:
    guard = bench.ask(sequence=3)
    assert bench.ask(sequence=1) is guard
    with refused(SEQUENCE):
        bench.send(3, guard=guard)  # the lower one has to come first
    assert bench.send(1, guard=guard) == 0


@pytest.mark.parametrize("version", [0, 2])
def test_a_marker_makes_an_older_answer_void(bench: Bench, version: int) -> None:
    guard = bench.ask()
    bench.mark(1 if version else 0, version=version)
    with refused(EPOCH if version else STATE):
        bench.send(0, guard=guard)
    assert bench.opened == {}


def test_under_version_2_a_guard_of_the_next_transaction_stays(bench: Bench) -> None:
    bench.send(0)
    guard = bench.ask(1, adds=True)
    bench.mark(1, version=2)
    assert bench.send(0, 1, guard=guard) == 2


def test_an_old_epoch_is_refused_before_the_coordinator_is_asked(bench: Bench) -> None:
    bench.send(0, 3)
    with refused(EPOCH):
        bench.ask(2)
    assert bench.ask(4) is not None, "a transaction of another epoch is no proof"


def test_guards_are_bounded_and_expire() -> None:
    guards = Guards()
    first = guards.get_or_create(0, 0, 0, NOW_MS, adds=False)
    for producer_id in range(1, MAX_GUARDS + 1):
        guards.get_or_create(producer_id, 0, 0, NOW_MS + producer_id, adds=False)
    assert len(guards) == MAX_GUARDS
    assert first is not guards.find(0)
    guards.expire(NOW_MS + MAX_GUARDS)
    assert len(guards) == 1


def test_a_refused_guard_is_dropped(bench: Bench) -> None:
    guard = bench.ask()
    assert guard is not None
    assert bench.producers.verifying
    bench.producers.drop_guard(P, Guard(0, 0, NOW_MS, adds=False))
    assert bench.producers.verifying, "another question's"
    bench.producers.drop_guard(P, guard)
    assert not bench.producers.verifying
    with refused(STATE):
        bench.send(0, guard=guard)


def test_a_newer_epoch_sets_the_lowest_sequence() -> None:
    guard = Guard(1, 5, NOW_MS, adds=False)
    guard.add_batch(0, 1)
    assert (guard.epoch, guard.lowest_sequence) == (1, 5)
    guard.add_batch(2, 9)
    assert (guard.epoch, guard.lowest_sequence) == (2, 9)


# -- markers


@pytest.mark.parametrize(
    ("version", "open_epoch", "ended", "epoch", "code"),
    [
        (0, 5, False, 5, None),
        (0, 5, False, 6, None),
        (0, 5, False, 4, EPOCH),
        (0, 5, True, 5, None),
        (2, 5, False, 6, None),
        (2, 5, False, 5, EPOCH),
        (2, 5, False, 4, EPOCH),
        (2, 5, True, 5, None),
        (2, LAST_EPOCH, False, LAST_EPOCH, None),
    ],
)
def test_epochs_of_markers(
    bench: Bench, version: int, open_epoch: int, ended: bool, epoch: int, code: ErrorCode | None
) -> None:
    bench.send(0, open_epoch)
    if ended:
        bench.mark(open_epoch)
    if code is None:
        assert bench.mark(epoch, version=version) == bench.end - 1
        assert bench.opened == {}
    else:
        with refused(code):
            bench.mark(epoch, version=version)
        assert bench.opened == {P: 0}


def test_epochs_of_coordinators(bench: Bench) -> None:
    bench.send(0)
    bench.mark(coordinator=4)
    bench.mark(coordinator=4)
    bench.mark(coordinator=5)
    with refused(FENCED):
        bench.mark(coordinator=4)
    assert bench.producers.entries()[0].coordinator_epoch == 5


def test_a_marker_of_a_producer_that_is_not_known_is_written(bench: Bench) -> None:
    assert bench.mark(3, coordinator=2, commit=False) == 0
    (entry,) = bench.producers.entries()
    assert (entry.epoch, entry.coordinator_epoch, entry.open_offset) == (3, 2, -1)
    assert bench.producers.transactions is None, "nothing was aborted"


def test_a_marker_of_the_same_epoch_keeps_the_batches(bench: Bench) -> None:
    bench.send(0)
    bench.mark(commit=False)
    assert bench.producers.entries()[0].batches != []
    bench.send(1)
    bench.mark(1, commit=False)  # a fence
    assert bench.producers.entries()[0].batches == []


# -- stages


def test_a_queued_transaction_counts_and_fails_with_its_write_batch(bench: Bench) -> None:
    producers = bench.producers
    batch = ProducerBatch(P, 0, 0, 0, NOW_MS)
    producers.queue_transactional(batch, 0, NOW_MS)
    assert producers.check_transactional(P, 0, 1, 1, None) is None
    assert bench.opened == {}, "it is not written"
    producers.depart()
    marker = TransactionMarker(P, 0, 0, ABORT, 0)
    producers.queue_marker(marker, 1, NOW_MS)
    producers.rollback()
    producers.depart()
    producers.apply_in_flight()
    assert (producers.states, bench.opened) == ({}, {})
    with refused(STATE):
        producers.check_transactional(P, 0, 0, 0, None)


def test_a_whole_transaction_in_one_write_batch(bench: Bench) -> None:
    producers = bench.producers
    for at in (0, 2):
        producers.queue_transactional(ProducerBatch(P, 0, at, at, NOW_MS), at, NOW_MS)
        producers.queue_marker(TransactionMarker(P, 0, 0, ABORT, 0), at + 1, NOW_MS)
    bench.written()
    known = producers.transactions
    assert known is not None
    assert known.aborted.overlapping(0, 10) == [(P, 0, 1), (P, 2, 3)]


# -- expiry, checkpoints


def test_an_open_transaction_keeps_its_producer(bench: Bench) -> None:
    bench.send(0)
    assert bench.producers.expire(NOW_MS + 1000) == []
    bench.mark(1, version=2)
    assert bench.producers.expire(NOW_MS) == []
    assert bench.producers.expire(NOW_MS + 1) == [P]


def test_checkpoints_have_the_open_transaction(bench: Bench) -> None:
    bench.send(0, producer_id=9)
    bench.send(0)
    bench.mark(commit=False, coordinator=6)
    bench.send(1)
    entries = bench.producers.entries()
    assert unpack_producers(pack_producers(entries)) == entries
    again = Producers()
    again.load(entries)
    assert again.states == bench.producers.states
    assert again.transactions is not None
    assert list(again.transactions.open.items()) == [(9, 0), (P, 3)], "in the order of offsets"


def test_producers_without_transactions_are_stored_as_before() -> None:
    entries = [ProducerEntry(5, 2, [(0, 1, 2, 3)])]
    packed = pack_producers(entries)
    assert packed == bytes.fromhex(
        "01" "0000000000000005" "0002" "01" "00000000" "00000001" "0000000000000002"
        "0000000000000003"
    )  # fmt: skip
    assert unpack_producers(packed) == entries


def test_what_is_known_at_an_earlier_offset() -> None:
    entries = [
        ProducerEntry(1, 0, [(0, 0, 5, 1), (1, 1, 20, 1)], 3, 9, 20),
        ProducerEntry(2, 0, [(0, 0, 20, 1)], 3, 9, -1),
        ProducerEntry(3, 4, [], 3, 9, -1),
        ProducerEntry(4, 0, []),
    ]
    assert producers_at(entries, 10) == [
        ProducerEntry(1, 0, [(0, 0, 5, 1)], 3, 9, -1),
        ProducerEntry(3, 4, [], 3, 9, -1),
    ]


# -- the last stable offset and the index


def test_the_last_stable_offset(bench: Bench) -> None:
    bench.plain(0)
    bench.send(0, producer_id=1)  # at 1
    bench.send(0, producer_id=2)  # at 2
    bench.mark(producer_id=1)  # at 3
    known = bench.producers.transactions
    assert known is not None
    assert known.stable(1) == 1
    assert known.stable(3) == 1, "its marker is not committed"
    assert known.stable(4) == 2, "the other is open"
    bench.mark(producer_id=2, commit=False)  # at 4
    assert known.stable(4) == 2
    assert known.stable(5) == 5


def test_the_search_ends_where_nothing_later_can_overlap() -> None:
    rows = [(1, 0, 10), (2, 20, 21), (3, 5, 30), (4, 40, 41)]
    entries = [Aborted(*row) for row in rows]
    index = AbortedIndex.from_entries(entries, ())
    for start in range(45):
        for end in range(45):
            expected = [each for each in entries if each[2] >= start and each[1] < end]
            assert index.overlapping(start, end) == expected, (start, end)
    assert index.ended_in(10, 30) == entries[:2]
    index.drop_below(11)
    assert index.overlapping(0, 50) == entries[1:]
