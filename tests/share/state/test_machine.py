"""The machine of share states: Kafka's checks in their order, fencing, merging, snapshots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.types import ZERO_UUID
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state.machine import (
    MAX_BATCHES,
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateAnswer,
    StateRequest,
    StateShard,
    WriteState,
)
from kafkawire.share.state.records import (
    ShareStateRecord,
    StateSnapshot,
    StateUpdate,
    StoredShareState,
    decode_record,
    encode_record,
)
from tests.kit.groups.log import FakeTopics, id_of

KEY = SharePartitionKey("g", id_of("t"), 1)
NULL = KEY._replace(topic_id=ZERO_UUID)
NEGATIVE = KEY._replace(partition=-1)
OUTSIDE = KEY._replace(partition=2)
GONE = KEY._replace(topic_id=id_of("gone"))
LONG = KEY._replace(group_id="g" * 40_000)
ACKED = StateBatch(0, 0, 2, 1)


@dataclass
class Settings:
    share_coordinator_snapshot_update_records_per_snapshot: int = 500


class Bench:
    """A machine that applies what it decides, and keeps its records."""

    def __init__(self, updates: int = 500) -> None:
        self.topics = FakeTopics({"t": 2, "u": 1})
        self.settings = Settings(updates)
        self.shard = StateShard(self.settings, self.topics)
        self.log: list[ShareStateRecord] = []
        self.now_ms = 1000

    def ask(self, request: StateRequest) -> StateAnswer:
        decision = self.shard.decide(request, self.now_ms)
        if decision.record is not None:
            self.take(decision.record)
        return decision.answer

    def take(self, record: ShareStateRecord) -> None:
        self.shard.apply(record, len(self.log))
        self.log.append(record)

    def code(self, request: StateRequest) -> E:
        return self.ask(request).code

    def init(self, epoch: int = 1, start: int = -1, key: SharePartitionKey = KEY) -> Bench:
        assert self.code(InitializeState(key, epoch, start)) is E.NONE
        return self

    def write(self, *batches: StateBatch, start: int = 0, count: int = 0, leader: int = 0) -> E:
        return self.code(WriteState(KEY, 1, leader, start, count, batches))

    def state(self, key: SharePartitionKey = KEY) -> StoredShareState:
        return self.shard.partitions[key].state

    def reload(self, first: int = 0) -> StateShard:
        """The machine that the records from `first` on give."""
        loaded = StateShard(self.settings, self.topics)
        for offset in range(first, len(self.log)):
            record = decode_record(*encode_record(self.log[offset]))
            assert record is not None
            loaded.apply(record, offset)
        return loaded


def writes(key: SharePartitionKey, state: int = 1, leader: int = 0) -> WriteState:
    return WriteState(key, state, leader, 0, 0, ())


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        # null topic id, negative partition, negative epoch: before everything else
        (InitializeState(NULL._replace(partition=-1), -1, 0), 42, "The topic id cannot be null."),
        (InitializeState(NEGATIVE, -1, 0), 42, "The partition id cannot be a negative number."),
        (InitializeState(KEY, -1, 0), 42, "The state epoch cannot be a negative number."),
        (InitializeState(KEY, 4, 0), 124, None),
        (InitializeState(OUTSIDE, 0, 0), 3, None),
        (InitializeState(GONE, 0, 0), 3, None),
        (
            InitializeState(KEY._replace(group_id="g" * 40_000), 5, 0),
            42,
            "The group id is too long.",
        ),
        (ReadState(NULL, -1), 42, "The topic id cannot be null."),
        (ReadState(NEGATIVE, -1), 42, "The partition id cannot be a negative number."),
        (ReadState(KEY, -1), 42, "The leader epoch cannot be a negative number."),
        (
            ReadState(GONE, 9),
            42,
            "Read operation on uninitialized share partition not allowed.",
        ),
        (ReadState(KEY, 6), 74, None),
        (writes(NULL, -1, -1), 42, "The topic id cannot be null."),
        (writes(NEGATIVE, -1, -1), 42, "The partition id cannot be a negative number."),
        (writes(KEY, -1, -1), 42, "The leader epoch cannot be a negative number."),
        (writes(KEY, -1, 0), 42, "The state epoch cannot be a negative number."),
        (
            writes(GONE, 9, 9),
            42,
            "Write operation on uninitialized share partition not allowed.",
        ),
        (writes(KEY, 4, 6), 74, None),
        (writes(KEY, 4, 7), 124, None),
        (DeleteState(NULL), 42, "The topic id cannot be null."),
        (DeleteState(NEGATIVE), 42, "The partition id cannot be a negative number."),
        (DeleteState(OUTSIDE), 3, None),
        (DeleteState(KEY._replace(partition=0)), 0, None),  # it has no state: no error
        (ReadSummary(NULL), 42, "The topic id cannot be null."),
        (ReadSummary(NEGATIVE), 42, "The partition id cannot be a negative number."),
        (ReadSummary(GONE), 3, None),
    ],
)
def test_checks_are_in_kafkas_order(request_: StateRequest, code: int, text: str | None) -> None:
    bench = Bench().init(epoch=5)
    assert bench.code(ReadState(KEY, 7)) is E.NONE
    before = len(bench.log)
    answer = bench.ask(request_)
    assert (answer.code, answer.message) == (code, text)
    assert len(bench.log) == before


def test_a_topic_that_is_gone_comes_after_the_epochs() -> None:
    bench = Bench().init(epoch=5)
    del bench.topics["t"]
    assert bench.code(writes(KEY, 4)) is E.FENCED_STATE_EPOCH
    assert bench.code(writes(KEY, 5)) is E.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.code(ReadState(KEY, 0)) is E.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "batches",
    [
        (StateBatch(5, 4, 2, 1),),
        (StateBatch(-2, 4, 2, 1),),
        (StateBatch(0, 0, 2, 1),) * (MAX_BATCHES + 1),
    ],
)
def test_batches_that_are_none(batches: tuple[StateBatch, ...]) -> None:
    bench = Bench().init()
    assert bench.write(*batches) is E.INVALID_REQUEST


def test_initialize_begins_again() -> None:
    bench = Bench().init()
    assert bench.log == [
        StateSnapshot(KEY, StoredShareState(1, -1, 0, 0, -1, (), 1000, 1000)),
    ]
    assert bench.write(StateBatch(0, 4, 2, 1), start=0, count=5) is E.NONE
    assert bench.code(ReadState(KEY, 3)) is E.NONE
    bench.now_ms = 2000
    bench.init(epoch=1, start=50)
    # The next snapshot epoch, a known count, and the fence of leaders.
    assert bench.log[-1] == StateSnapshot(KEY, StoredShareState(1, 50, 1, 3, 0, (), 2000, 2000))
    assert bench.code(writes(KEY, 1, 2)) is E.FENCED_LEADER_EPOCH
    bench.init(epoch=2)
    assert bench.code(writes(KEY, 1, 3)) is E.FENCED_STATE_EPOCH


def test_read_stores_the_epoch_of_a_new_leader_only() -> None:
    bench = Bench().init(start=10)
    first = bench.ask(ReadState(KEY, 0))
    assert len(bench.log) == 1  # the epoch of a new state
    assert first.state == bench.state()
    assert bench.code(ReadState(KEY, 4)) is E.NONE
    assert bench.log[1:] == [StateUpdate(KEY, 0, 4, 10, 0, ())]
    assert bench.code(ReadState(KEY, 4)) is E.NONE
    assert len(bench.log) == 2
    # A write has no effect on it.
    assert bench.write(leader=9) is E.NONE
    assert isinstance(bench.log[-1], StateUpdate)
    assert bench.log[-1].leader_epoch == 4


def test_write_merges_and_never_moves_the_start_back() -> None:
    bench = Bench().init(start=0)
    assert bench.write(StateBatch(0, 9, 2, 1), StateBatch(12, 13, 0, 1), count=10) is E.NONE
    assert bench.write(StateBatch(8, 11, 4, 2), start=5, count=7) is E.NONE
    expected = (StateBatch(5, 7, 2, 1), StateBatch(8, 11, 4, 2), StateBatch(12, 13, 0, 1))
    assert bench.state().batches == expected
    # From an earlier start the count says nothing; from the same one it does not fall.
    assert bench.write(start=3, count=99) is E.NONE
    assert (bench.state().start_offset, bench.state().delivery_complete_count) == (5, 7)
    assert bench.write(start=5, count=6) is E.NONE
    assert bench.state().delivery_complete_count == 7
    assert bench.write(start=-1, count=-1) is E.NONE
    assert (bench.state().start_offset, bench.state().delivery_complete_count) == (5, 7)
    assert bench.write(start=12, count=0) is E.NONE
    assert bench.state().batches == (StateBatch(12, 13, 0, 1),)
    # Only what changed is in an update.
    updates = [record.batches for record in bench.log[1:] if isinstance(record, StateUpdate)]
    assert updates == [
        (StateBatch(0, 9, 2, 1), StateBatch(12, 13, 0, 1)), (StateBatch(8, 11, 4, 2),), *[()] * 4,
    ]  # fmt: skip


@pytest.mark.parametrize("updates", [0, 1, 3])
def test_after_many_updates_there_is_a_snapshot(updates: int) -> None:
    bench = Bench(updates).init(start=0)
    for offset in range(2 * updates + 2):
        assert bench.write(StateBatch(2 * offset, 2 * offset, 2, 1)) is E.NONE
    kinds = [isinstance(record, StateSnapshot) for record in bench.log]
    assert kinds == [True] + ([False] * updates + [True]) * 2
    snapshot = bench.log[-1]
    assert isinstance(snapshot, StateSnapshot)
    assert snapshot.state is not None
    assert snapshot.state.snapshot_epoch == 2
    assert len(snapshot.state.batches) == 2 * updates + 2
    assert bench.reload(bench.shard.first_needed(99)).partitions[KEY].state == bench.state()


def test_summary() -> None:
    bench = Bench()
    unknown = bench.ask(ReadSummary(KEY)).state
    assert unknown is not None
    assert (unknown.start_offset, unknown.delivery_complete_count) == (-1, -1)
    assert (unknown.leader_epoch, unknown.state_epoch) == (0, 0)
    bench.init(epoch=3, start=4)
    assert bench.code(ReadState(KEY, 2)) is E.NONE
    known = bench.ask(ReadSummary(KEY)).state
    assert known is not None
    assert (known.start_offset, known.leader_epoch, known.state_epoch) == (4, 2, 3)


def test_deleted_states_are_forgotten_with_their_epochs() -> None:
    bench = Bench().init(epoch=9)
    assert bench.code(DeleteState(KEY)) is E.NONE
    assert bench.log[-1] == StateSnapshot(KEY, None)
    assert not bench.shard.partitions
    assert not bench.shard.of_topic
    bench.init(epoch=1)


def test_states_of_deleted_topics_are_deleted() -> None:
    bench = Bench().init().init(key=KEY._replace(partition=0)).init(key=KEY._replace(group_id="h"))
    other = SharePartitionKey("g", id_of("u"), 0)
    bench.init(key=other)
    assert bench.shard.list_deleted_topics() == []
    del bench.topics["t"]
    for record in bench.shard.decide_deletions(bench.shard.list_deleted_topics()):
        bench.take(record)
    assert list(bench.shard.partitions) == [other]


def test_cold_states_are_written_once_more() -> None:
    bench = Bench().init(start=0)
    other = SharePartitionKey("g", id_of("u"), 0)
    bench.now_ms = 5000
    bench.init(key=other)
    assert bench.shard.decide_cold(5999, 5000) == []
    cold = bench.shard.decide_cold(6000, 5000)
    assert cold == [StateSnapshot(KEY, StoredShareState(1, 0, 1, 0, 0, (), 1000, 6000))]
    bench.take(cold[0])
    bench.take(bench.shard.decide_cold(10_000, 5000)[0])
    # Both are cold now: no more snapshots, until one changes.
    assert bench.shard.decide_cold(99_000, 5000) == []
    assert bench.write() is E.NONE
    assert len(bench.shard.decide_cold(99_000, 5000)) == 2


STEPS = st.lists(
    st.one_of(
        st.builds(InitializeState, st.just(KEY), st.integers(0, 3), st.integers(-1, 9)),
        st.builds(ReadState, st.just(KEY), st.integers(0, 3)),
        st.builds(
            WriteState,
            st.just(KEY),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(-1, 12),
            st.integers(-1, 5),
            st.lists(
                st.builds(
                    lambda first, more, state, count: StateBatch(first, first + more, state, count),
                    st.integers(0, 12), st.integers(0, 5), st.sampled_from([0, 2, 4]),
                    st.integers(1, 2),
                ),
                max_size=2,
            ).map(tuple),
        ),
        st.just(DeleteState(KEY)),
        st.just("cold"),
    ),
    max_size=20,
)  # fmt: skip


def compare(found: StateShard, expected: StateShard) -> None:
    assert found.partitions.keys() == expected.partitions.keys()
    for key, stored in found.partitions.items():
        kept = expected.partitions[key]
        assert (stored.leader_epoch, stored.state_epoch) == (kept.leader_epoch, kept.state_epoch)
        # A snapshot has the fence, which Kafka's records of a new state may not have.
        assert replace(stored.state, leader_epoch=0) == replace(kept.state, leader_epoch=0)


@given(STEPS, st.integers(0, 3), st.integers(0, 20))
def test_histories(steps: list[StateRequest | str], updates: int, taken: int) -> None:
    bench = Bench(updates)
    snapshot: tuple[list[ShareStateRecord], int] = ([], 0)
    for number, step in enumerate(steps):
        if number == taken:
            snapshot = list(bench.shard.records()), len(bench.log)
        bench.now_ms += 10
        before = bench.shard.partitions.get(KEY)
        seen = None if before is None else (before.state, before.leader_epoch, before.state_epoch)
        if isinstance(step, str):
            for record in bench.shard.decide_cold(bench.now_ms, 10):
                bench.take(record)
        else:
            bench.ask(step)
        after = bench.shard.partitions.get(KEY)
        if seen is not None and after is not None:
            state, leader_epoch, state_epoch = seen
            # Epochs never fall, nor do snapshot epochs; the start only by an Initialize.
            assert after.leader_epoch >= leader_epoch
            assert after.state_epoch >= state_epoch
            assert after.state.snapshot_epoch >= state.snapshot_epoch
            if not isinstance(step, InitializeState):
                assert after.state.start_offset >= state.start_offset
        # The log from what is needed on gives the same state; so does all of it.
        for first in (0, bench.shard.first_needed(len(bench.log))):
            compare(bench.reload(first), bench.shard)
    # So does a snapshot of the machine, with the log after it.
    copy = StateShard(bench.settings, bench.topics)
    for record in (*snapshot[0], *bench.log[snapshot[1] :]):
        copy.apply(record)
    compare(copy, bench.shard)
