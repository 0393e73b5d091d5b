"""Transaction coordinator: InitProducerId, AddPartitionsToTxn and EndTxn as in Apache Kafka."""

from __future__ import annotations

import pytest

from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from tests.java.calls.wire import Owner
from tests.java.transactional import Side, on_both

FENCED, OLD_FENCED = 90, 47
MISMATCH, INVALID_STATE, BAD_REQUEST, CONCURRENT = 49, 48, 42, 51


@on_both
def test_coordinators_of_transactions(side: Side) -> None:
    id = side.new("T")
    for version in range(1, 7):
        for key in (id, ""):
            request = FindCoordinatorRequest(key=key, key_type=1)
            if version >= 4:
                request = FindCoordinatorRequest(key_type=1, coordinator_keys=[key, "other"])
            side.ask("FindCoordinator", request, version)


@on_both
def test_each_init_raises_the_epoch(side: Side) -> None:
    owner = side.owner()
    assert side.init(owner.id) == (0, owner.pid, 1)
    _, first, epoch = side.init(None)
    _, second, other = side.init(None)
    assert (epoch, other) == (0, 0)
    assert first != second
    for version in range(6):
        assert side.init(owner.id, version=version) == (0, owner.pid, 2 + version)
        assert side.init(None, version=version)[0] == 0
    states = side.states(owner.id or "")
    assert [(row.state, row.epoch, row.parts) for row in states] == [
        ("Empty", epoch, None) for epoch in range(8)
    ]
    assert {(row.version, *row.tags) for row in states} == {(1, 0)}


@on_both
def test_init_checks_id_and_timeout(side: Side) -> None:
    id = side.new("T")
    for version in range(6):
        assert side.init("", version=version)[0] == BAD_REQUEST
        for timeout in (0, -1, 900_001):
            assert side.init(id, timeout_ms=timeout, version=version)[0] == 50
    assert side.init(id, timeout_ms=900_000)[0] == 0
    assert side.init(None, timeout_ms=0)[0] == 0


@on_both
def test_init_with_half_of_an_identity(side: Side) -> None:
    owner = side.owner()
    for version in (3, 4, 5):
        for id in (owner.id, None):
            assert side.init(id, owner.pid, -1, version=version) == (BAD_REQUEST, -1, -1)
            assert side.init(id, -1, 0, version=version) == (BAD_REQUEST, -1, -1)


@on_both
def test_init_with_the_own_epoch(side: Side) -> None:
    owner = side.owner()
    assert side.init(owner.id, owner.pid, 0, version=4) == (0, owner.pid, 1)
    assert side.init(owner.id, owner.pid, 0, version=4) == (0, owner.pid, 1)  # a retry
    assert side.init(owner.id, owner.pid, 1) == (0, owner.pid, 2)
    for version, code in ((3, OLD_FENCED), (4, FENCED), (5, FENCED)):
        assert side.init(owner.id, owner.pid, 0, version=version)[0] == code
        assert side.init(owner.id, owner.pid, 7, version=version)[0] == code
    assert len(side.states(owner.id or "")) == 4


@on_both
def test_init_with_another_producer_id(side: Side) -> None:
    owner = side.owner()
    for version, code in ((3, OLD_FENCED), (4, FENCED), (5, FENCED)):
        assert side.init(owner.id, owner.pid + 999, 0, version=version)[0] == code
    code, pid, epoch = side.init(side.new("unknown"), owner.pid, 3)
    assert (code, epoch) == (0, 0)
    assert pid != owner.pid


@on_both
def test_add_partitions_checks_the_producer(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    side.init(owner.id)
    owner = owner.at(1)
    for version in range(4):
        fenced = OLD_FENCED if version < 2 else FENCED
        ask = {"version": version}
        assert side.add(Owner(side.new("unknown"), owner.pid, 0), (topic, 0), **ask) == [MISMATCH]
        assert side.add(owner._replace(pid=owner.pid + 999), (topic, 0), **ask) == [MISMATCH]
        assert side.add(owner.at(2), (topic, 0), **ask) == [fenced]
        assert side.add(owner.at(0), (topic, 0), **ask) == [fenced]
        assert side.add(Owner("", owner.pid, 0), (topic, 0), **ask) == [BAD_REQUEST]
        assert side.add(owner, (topic, 0), **ask) == [0]


@on_both
def test_unknown_partitions_stop_the_others(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    for version in range(4):
        codes = side.add(owner, (topic, 0), (side.new("nosuch"), 0), (topic, 99), version=version)
        assert codes == [55, 3, 3]
    assert side.describe(owner.id or "")[1] == "Empty"


@on_both
def test_partitions_are_added_once(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    assert side.add(owner, (topic, 0)) == [0]
    assert side.add(owner, (topic, 0)) == [0]
    assert len(side.states(owner.id or "")) == 2
    assert side.add(owner, (topic, 0), (topic, 1)) == [0, 0]
    last = side.states(owner.id or "")[-1]
    assert (last.state, last.parts, last.started) == ("Ongoing", {(topic, 0), (topic, 1)}, True)
    assert side.describe(owner.id or "") == (0, "Ongoing", owner.pid, 0, last.parts)


@on_both
def test_verify_only(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    for version in (4, 5):
        assert side.verify(owner, (topic, 0), version=version) == [120]
    side.add(owner, (topic, 0))
    for version in (4, 5):
        assert side.verify(owner, (topic, 0), (topic, 1), version=version) == [0, 120]
        assert side.verify(owner.at(1), (topic, 0), version=version) == [FENCED]
        assert side.verify(owner._replace(pid=1 << 40), (topic, 0), version=version) == [MISMATCH]
        assert side.verify(owner._replace(id=""), (topic, 0), version=version) == [BAD_REQUEST]
        assert side.verify(owner._replace(id=side.new("unknown")), (topic, 0)) == [MISMATCH]
        assert side.verify(owner, (side.new("nosuch"), 0), (topic, 0), version=version) == [3, 55]
    assert side.describe(owner.id or "")[4] == {(topic, 0)}
    assert len(side.states(owner.id or "")) == 2


@pytest.mark.parametrize("version", [4, 5])
def test_transactions_of_one_request(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic = side.topic()
        first, second = side.owner("A"), side.owner("B")
        code, rows = side.add_many(
            (first, [(topic, 0), (topic, 1)], False),
            (second.at(5), [(topic, 0), (topic, 1)], False),
            version=version,
        )
        assert (code, rows) == (0, [[0, 0], [FENCED, FENCED]])
        assert side.describe(first.id or "")[1] == "Ongoing"
        assert side.describe(second.id or "")[1] == "Empty"
        code, rows = side.add_many(
            (first, [(topic, 0)], True), (second, [(topic, 1)], False), version=version
        )
        assert (code, rows) == (0, [[0], [0]])

    conversation(sides)


@on_both
def test_add_offsets_checks_the_producer(side: Side) -> None:
    owner = side.owner()
    side.init(owner.id)
    owner, group = owner.at(1), side.new("g")
    for version in range(5):
        fenced = OLD_FENCED if version < 2 else FENCED
        assert side.add_offsets(owner._replace(id=side.new("no")), group, version) == MISMATCH
        assert side.add_offsets(owner._replace(pid=1 << 40), group, version) == MISMATCH
        assert side.add_offsets(owner.at(2), group, version) == fenced
        assert side.add_offsets(owner.at(0), group, version) == fenced
        assert side.add_offsets(owner._replace(id=""), group, version) == BAD_REQUEST
        assert side.add_offsets(owner, "", version) == 0
        assert side.add_offsets(owner, group, version) == 0
    parts = side.states(owner.id or "")[-1].parts or set()
    assert {topic for topic, _ in parts} == {"__consumer_offsets"}


@on_both
def test_end_without_a_transaction(side: Side) -> None:
    owner = side.owner()
    for version in range(5):
        for commit in (True, False):
            assert side.end_old(owner, commit, version) == INVALID_STATE
    assert side.end(owner, True, 5) == (INVALID_STATE, -1, -1)
    assert len(side.states(owner.id or "")) == 1
    assert side.end(owner, False, 5) == (0, owner.pid, 1)
    side.settle(owner)
    states = side.states(owner.id or "")
    assert [(row.state, row.epoch) for row in states[1:]] == [
        ("PrepareAbort", 1),
        ("CompleteAbort", 1),
    ]
    assert [row.parts or set() for row in states] == [set()] * 3


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(5))
def test_end_by_the_first_protocol(
    sides: list[tuple[str, str]], version: int, commit: bool
) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic = side.topic()
        owner = side.owner()
        side.add(owner, (topic, 0))
        assert side.produce((topic, 0), owner, 0) == (0, 0)
        assert side.end_once(owner, commit, version)[0] == 0
        assert side.end_once(owner, commit, version)[0] in (CONCURRENT, 0)
        side.transcript.pop()
        side.settle(owner)
        assert side.end_old(owner, commit, version) == 0
        assert side.end_old(owner, not commit, version) == INVALID_STATE
        assert side.add(owner, (topic, 0)) == [0]  # the next one has the same epoch
        assert side.end_old(owner, not commit, version) == 0
        side.settle(owner)
        ends = ("commit", "abort") if commit else ("abort", "commit")
        assert [batch.kind for batch in side.fetch((topic, 0)).batches] == ["transactional", *ends]
        assert {row.epoch for row in side.states(owner.id or "")} == {0}

    conversation(sides)


@on_both
def test_end_by_the_second_protocol(side: Side) -> None:
    topic = side.topic()
    first = side.owner()
    assert side.produce((topic, 0), first, 0, version=12) == (0, 0)
    code, *ids = side.end_once(first, True, 5)
    assert (code, *ids) == (0, first.pid, 1)
    assert side.end(first, True, 5) == (0, first.pid, 1)  # a retry
    assert side.end(first, False, 5) == (INVALID_STATE, -1, -1)
    second = first.at(1)
    assert side.end(second, True, 5) == (INVALID_STATE, -1, -1)
    assert side.end(second, False, 5) == (0, first.pid, 2)
    side.settle(first)
    for epoch in (1, 2):  # the retry of an abort, and one more
        assert side.end(first.at(epoch), False, 5) == (0, first.pid, 1 + epoch)
        side.settle(first)
    assert side.end(first.at(3), True, 5)[0] == INVALID_STATE
    assert side.end(first.at(2), True, 5)[0] == INVALID_STATE  # KAFKA-20785: later versions 90
    assert side.end(first.at(7), True, 5)[0] == FENCED
    assert side.end(first.at(0), True, 5)[0] == FENCED
    assert [row.state for row in side.states(first.id or "")] == [
        *("Empty", "Ongoing", "PrepareCommit", "CompleteCommit"),
        *("PrepareAbort", "CompleteAbort") * 2,
    ]


@on_both
def test_end_of_unknown_transactions(side: Side) -> None:
    owner = side.owner()
    for version in range(6):
        for wrong in (owner._replace(id=side.new("unknown")), owner._replace(pid=1 << 40)):
            assert side.end(wrong, True, version) == (MISMATCH, -1, -1)
        assert side.end(owner._replace(id=""), True, version) == (BAD_REQUEST, -1, -1)


@on_both
def test_zombie_is_fenced(side: Side) -> None:
    topic = side.topic()
    zombie = side.owner()
    side.add(zombie, (topic, 0), (topic, 1))
    assert side.produce((topic, 0), zombie, 0) == (0, 0)
    assert side.init_once(zombie.id)[0] == CONCURRENT
    assert side.init(zombie.id) == (0, zombie.pid, 2)
    for version, code in ((1, OLD_FENCED), (4, FENCED), (5, FENCED)):
        assert side.end(zombie, True, version)[0] == code
    assert side.add(zombie, (topic, 0)) == [FENCED]
    for version in (9, 11, 12):
        assert side.produce((topic, 0), zombie, 1, version=version)[0] == OLD_FENCED
        assert side.produce((topic, 1), zombie, 0, version=version)[0] == OLD_FENCED
    for version in (3, 4, 5):
        codes = side.txn_commit(zombie, side.new("g"), {(topic, 0): 1}, version)
        assert codes == [OLD_FENCED]
    assert [batch.kind for batch in side.fetch((topic, 1)).batches] == ["abort"]


@on_both
def test_transaction_times_out(side: Side) -> None:
    topic = side.topic()
    owner = side.owner(timeout_ms=1000)
    assert side.produce((topic, 0), owner, 0, version=12) == (0, 0)
    side.wait_for_state(owner, "CompleteAbort")
    assert side.describe(owner.id or "") == (0, "CompleteAbort", owner.pid, 1, set())
    data, marker = side.fetch((topic, 0)).batches
    assert (data.kind, marker.kind, marker.epoch) == ("transactional", "abort", 1)
    assert side.end_old(owner, True) == FENCED
    assert side.end(owner, True, 5)[0] == INVALID_STATE
    assert side.end(owner, False, 5) == (0, owner.pid, 1)
    for version in (9, 11, 12):
        assert side.produce((topic, 0), owner, 1, version=version)[0] == OLD_FENCED
    assert side.init(owner.id, owner.pid, 0) == (0, owner.pid, 1)  # without another epoch


@on_both
def test_init_ends_the_open_transaction_of_its_owner(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    side.init(owner.id)
    side.add(owner.at(1), (topic, 0))
    assert side.init(owner.id, owner.pid, 1) == (0, owner.pid, 2)
    assert side.describe(owner.id or "")[1] == "Empty"
    side.add(owner.at(2), (topic, 0))
    assert side.init_once(owner.id, owner.pid, 0)[0] == CONCURRENT  # aborts it all the same
    assert side.init(owner.id, owner.pid, 0)[0] == FENCED
    assert side.describe(owner.id or "")[1] == "CompleteAbort"
    assert [batch.epoch for batch in side.fetch((topic, 0)).batches] == [2, 3]
