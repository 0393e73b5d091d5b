"""The machine against a plain model of one transactional id, over requests made up by Hypothesis.

Requests come with current, old and wrong producers, in both versions of the protocol, with markers,
timeouts, expiry and reloads in between.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.request import AddPartitions, VerifyPartitions
from kafkawire.transactions.machine.transaction import EMPTY, PREPARED, Transaction
from tests.kit.transactions.desk import ID, Desk, TransactionSettings
from tests.kit.transactions.model import Model

pytestmark = pytest.mark.slow

STATES = {"E": "Empty", "O": "Ongoing", "PC": "PrepareCommit", "PA": "PrepareAbort",
          "CC": "CompleteCommit", "CA": "CompleteAbort"}  # fmt: skip
TIMEOUT_MS = 1000
EXPIRY_MS = 5000

producers = st.sampled_from(["current", "current", "current", "old epoch", "new epoch", "old pid",
                             "rolled", "other pid", "exhausted"])  # fmt: skip
versions = st.sampled_from([0, 2])


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.desk = Desk()

    @initialize(
        cluster=st.sampled_from([0, 1, 2, 2]), epoch=st.sampled_from([None, 32_764, 32_766])
    )
    def begin(self, cluster: int, epoch: int | None) -> None:
        settings = TransactionSettings(cluster, transactional_id_expiration_ms=EXPIRY_MS)
        self.desk = Desk(settings)
        self.model = Model(cluster)
        if epoch is not None:  # near the end of a producer id
            at = Transaction(500, epoch, TIMEOUT_MS, EMPTY, updated_ms=self.desk.now_ms)
            record = TransactionRecord(ID, at)
            self.desk.appended.append(record)
            self.desk.shard.apply(record)
            self.model.state, self.model.pid, self.model.epoch = "E", 500, epoch
            self.model.updated = self.desk.now_ms

    def who(self, kind: str) -> tuple[int, int]:
        pid, epoch = self.model.pid, self.model.epoch
        return {
            "current": (pid, epoch),
            "old epoch": (pid, max(epoch - 1, 0)),
            "new epoch": (pid, epoch + 1),
            "old pid": (self.model.prev, epoch),
            "rolled": (self.model.prev, 32_766),
            "other pid": (pid + 77, epoch),
            "exhausted": (pid, 32_766),
        }[kind]

    def fresh(self) -> int:
        """The producer id that the desk would give next."""
        return self.desk.next_pid

    @rule(kind=producers | st.none())
    def init(self, kind: str | None) -> None:
        pid, epoch = (-1, -1) if kind is None else self.who(kind)
        if (pid == -1) != (epoch == -1):
            return
        expected = self.model.init(pid, epoch, self.fresh(), self.desk.now_ms)
        answer = self.desk.init(pid, epoch, timeout_ms=TIMEOUT_MS)
        assert (int(answer.code), answer.producer_id, answer.producer_epoch) == expected

    @rule(kind=producers, partitions=st.sets(st.integers(0, 3), max_size=3), tv=versions)
    def add(self, kind: str, partitions: set[int], tv: int) -> None:
        pid, epoch = self.who(kind)
        expected = self.model.add(pid, epoch, partitions, tv, self.desk.now_ms)
        at = [("t", index) for index in partitions]
        if at:
            assert int(self.desk.add(*at, pid=pid, epoch=epoch, tv=tv)) == expected[0]
        else:
            self.model_of_nothing(pid, epoch, tv, expected[0])

    def model_of_nothing(self, pid: int, epoch: int, tv: int, expected: int) -> None:
        answer = self.desk.ask(AddPartitions(ID, pid, epoch, frozenset(), tv))
        assert int(answer.code) == expected

    @rule(kind=producers, commit=st.booleans(), tv=versions)
    def end(self, kind: str, commit: bool, tv: int) -> None:
        pid, epoch = self.who(kind)
        if tv == 2 and epoch == self.model.epoch == 32_767 and commit:
            return  # an epoch that no client has; see test_end_transaction
        if tv == 2 and self.model.epoch == 32_767:
            return
        expected = self.model.end(pid, epoch, commit, tv, self.fresh(), self.desk.now_ms)
        answer = self.desk.end(commit=commit, pid=pid, epoch=epoch, tv=tv)
        assert (int(answer.code), answer.producer_id, answer.producer_epoch) == expected

    @rule(kind=producers, index=st.integers(0, 3))
    def verify(self, kind: str, index: int) -> None:
        pid, epoch = self.who(kind)
        codes = self.desk.shard.verify(VerifyPartitions(ID, pid, epoch, frozenset({("t", index)})))
        assert codes == {("t", index): self.model.verify(pid, epoch, index)}

    @precondition(lambda self: self.model.state in ("PC", "PA"))
    @rule(data=st.data(), fails=st.booleans())
    def marker(self, data: st.DataObject, fails: bool) -> None:
        work = self.desk.work.pop(data.draw(st.integers(0, len(self.desk.work) - 1)))
        at = data.draw(st.sampled_from(sorted(work.partitions)))
        results = {
            each: ErrorCode.NONE if each == at and not fails else ErrorCode.NOT_LEADER_OR_FOLLOWER
            for each in work.partitions
        }
        self.desk.carry_out(self.desk.shard.decide_markers(work, results, self.desk.now_ms))
        if not fails:
            self.model.marked(at[1], self.desk.now_ms)

    @rule(kind=st.sampled_from(["current", "rolled"]), commit=st.booleans(), tv=versions)
    def whole_transaction(self, kind: str, commit: bool, tv: int) -> None:
        """The usual requests of a producer; they lead to states that single ones seldom reach."""
        self.add("current", {0, 1}, tv)
        self.end("current", commit, tv)
        self.all_markers()
        self.end(kind, commit, tv)
        self.end("old epoch", commit, tv)
        self.end("old epoch", not commit, tv)

    @rule()
    def all_markers(self) -> None:
        for index in sorted(self.model.without_marker):
            self.model.marked(index, self.desk.now_ms)
        self.desk.markers()

    @rule(passed_ms=st.sampled_from([1, 999, 1001, 5000]))
    def time_passes(self, passed_ms: int) -> None:
        self.desk.now_ms += passed_ms
        now, model = self.desk.now_ms, self.model
        if model.state == "O" and model.started + TIMEOUT_MS < now:
            model.fence(self.fresh(), now)
        self.desk.time_out()
        if model.state in ("E", "CC", "CA") and model.updated <= now - EXPIRY_MS:
            self.model = Model(model.cluster, pid=model.pid, epoch=model.epoch)
        self.desk.carry_out(self.desk.shard.decide_expiry([ID], now))

    @rule()
    def crash(self) -> None:
        if self.model.state:
            self.model.reload()
        self.desk.reload()

    @invariant()
    def the_same(self) -> None:
        model = self.model
        at = self.desk.shard.transactions.get(ID)
        if at is None:
            assert not model.state
            return
        assert at.state.label == STATES[model.state]
        assert (at.producer_id, at.producer_epoch) == (model.pid, model.epoch)
        assert (at.last_producer_epoch, at.previous_producer_id) == (model.last, model.prev)
        assert (at.next_producer_id, at.client_version) == (model.next, model.client)
        assert (at.started_ms, at.updated_ms) == (model.started, model.updated)
        assert {index for _, index in at.partitions} == model.partitions
        remaining = {index for _, index in self.desk.shard.pending.get(ID, set())}
        assert remaining == (model.without_marker if at.state in PREPARED else set())
        queued = {partition for work in self.desk.work for partition in work.partitions}
        assert queued == {("t", index) for index in remaining}


class TestTransactionMachine(TransactionMachine.TestCase):  # type: ignore[misc, valid-type]
    """Hypothesis searches for a sequence of requests in which the two differ."""

    # Without shrinking: it takes minutes, more than a test may.
    settings = settings(max_examples=2 * settings().max_examples, phases=[Phase.generate])
