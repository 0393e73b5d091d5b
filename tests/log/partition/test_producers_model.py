"""The producers' state against a model that says the rules in other words, for random histories.

Covers: kafkawire.log.partition.producers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL
from kafkawire.codec.control import ABORT, COMMIT, Aborted, ControlContent, TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.producers import ProducerBatch, Producers
from kafkawire.log.partition.transactions import OFFSET_MAX
from kafkawire.log.partition.verification import NOT_VERIFIED, Guard
from kafkawire.metadata.checkpoint import pack_producers, unpack_producers

NOW_MS = 1_700_000_000_000
EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
SEQUENCE = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
STATE = ErrorCode.INVALID_TXN_STATE
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED


@dataclass
class Known:
    """One producer, as the rules speak of it."""

    epoch: int
    coordinator: int = -1
    batches: list[tuple[int, int]] = field(default_factory=list)  # sequence, offset
    first: int = -1


@dataclass
class Model:
    """The producers after each batch, and the log."""

    producers: dict[int, Known] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    log: list[tuple[tuple[int, ...], ControlContent | None]] = field(default_factory=list)

    def data(self, number: int, epoch: int, sequence: int, *, transactional: bool) -> Any:
        """The error or the original's offset; None: append."""
        known = self.producers.get(number)
        if known is None:
            return None
        if epoch == known.epoch:
            for one, offset in known.batches[-5:]:
                if one == sequence:
                    return offset
        if epoch < known.epoch:
            return EPOCH
        follows = known.batches[-1][0] + 1 if epoch == known.epoch and known.batches else 0
        if sequence != follows:
            return SEQUENCE
        return STATE if known.first >= 0 and not transactional else None

    def marker(self, number: int, epoch: int, coordinator: int, version: int) -> Any:
        known = self.producers.get(number)
        if known is None:
            return None
        least = known.epoch + 1 if version == 2 and known.first >= 0 else known.epoch
        if epoch < least:
            return EPOCH
        return FENCED if coordinator < known.coordinator else None

    def append(self, number: int, epoch: int, sequence: int, *, transactional: bool) -> None:
        known = self.producers.setdefault(number, Known(epoch))
        if epoch != known.epoch:
            known.epoch, known.batches = epoch, []
        offset = len(self.log)
        known.batches.append((sequence, offset))
        if transactional and known.first < 0:
            known.first = offset
        attributes = TRANSACTIONAL if transactional else 0
        self.log.append((head(offset, attributes, number, epoch, sequence), None))

    def end(self, number: int, epoch: int, coordinator: int, kind: int) -> None:
        known = self.producers.setdefault(number, Known(epoch))
        if epoch != known.epoch:
            known.epoch, known.batches = epoch, []
        offset = len(self.log)
        known.coordinator = coordinator
        if known.first >= 0 and kind == ABORT:
            self.aborted.append(Aborted(number, known.first, offset))
        known.first = -1
        fields = head(offset, TRANSACTIONAL | CONTROL, number, epoch, -1)
        self.log.append((fields, ControlContent(kind, coordinator)))


def head(offset: int, attributes: int, number: int, epoch: int, sequence: int) -> tuple[int, ...]:
    return offset, 0, 0, 2, 0, attributes, 0, NOW_MS, NOW_MS, number, epoch, sequence, 1


def seen(producers: Producers) -> Any:
    """The state in the words of the model."""
    entries = {
        entry.producer_id: Known(
            entry.epoch,
            entry.coordinator_epoch,
            [(row[0], row[2]) for row in entry.batches],
            entry.open_offset,
        )
        for entry in producers.entries()
    }
    known = producers.transactions
    opened = known.open if known is not None else {}
    aborted = known.aborted.ended_in(0, OFFSET_MAX) if known is not None else []
    return entries, opened, aborted


def expected(model: Model) -> Any:
    entries = {
        number: Known(known.epoch, known.coordinator, known.batches[-5:], known.first)
        for number, known in model.producers.items()
    }
    opened = {number: known.first for number, known in entries.items() if known.first >= 0}
    return entries, opened, model.aborted


def outcome(call: Callable[[], Any]) -> tuple[Any, ErrorCode | None]:
    """The result of a call, and the code it was refused with."""
    try:
        return call(), None
    except KafkaError as failure:
        return None, failure.code


class Pair:
    """The state and the model. `written`: the model as of what is written."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.model = Model()
        self.written = Model()

    def send(self, number: int, epoch: int, sequence: int, transactional: bool) -> None:
        answer = self.model.data(number, epoch, sequence, transactional=transactional)
        check = self.producers.check
        if transactional:
            check = partial(self.producers.check_transactional, guard=NOT_VERIFIED)
        original, code = outcome(lambda: check(number, epoch, sequence, sequence))
        assert (original[0] if original is not None else code) == answer
        if code is not None or original is not None:
            return
        offset = len(self.model.log)
        if transactional:
            batch = ProducerBatch(number, epoch, sequence, sequence, NOW_MS)
            self.producers.queue_transactional(batch, offset, NOW_MS)
        else:
            self.producers.queue(number, epoch, sequence, sequence, offset, NOW_MS)
        self.model.append(number, epoch, sequence, transactional=transactional)

    def mark(self, number: int, epoch: int, coordinator: int, version: int, kind: int) -> None:
        answer = self.model.marker(number, epoch, coordinator, version)
        marker = TransactionMarker(number, epoch, coordinator, kind, version)
        _, code = outcome(lambda: self.producers.check_marker(marker))
        assert code == answer
        if code is not None:
            return
        self.producers.queue_marker(marker, len(self.model.log), NOW_MS)
        self.model.end(number, epoch, coordinator, kind)

    def write(self) -> None:
        self.producers.depart()
        self.producers.apply_in_flight()
        self.written = copy.deepcopy(self.model)
        assert seen(self.producers) == expected(self.model)

    def fail(self) -> None:
        self.producers.depart()
        self.producers.rollback()
        self.model = copy.deepcopy(self.written)
        assert seen(self.producers) == expected(self.model)


STEPS = st.one_of(
    st.tuples(
        st.just("send"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 6), st.booleans()
    ),
    st.tuples(st.just("next"), st.integers(0, 2), st.booleans()),
    st.tuples(
        st.just("mark"), st.integers(0, 2), st.integers(0, 3), st.integers(0, 2),
        st.sampled_from((0, 2)), st.sampled_from((ABORT, COMMIT)),
    ),
    st.tuples(st.sampled_from(("write", "write", "fail"))),
)  # fmt: skip


def run(steps: list[Any]) -> Pair:
    pair = Pair()
    for name, *arguments in steps:
        if name == "next":
            number, transactional = arguments
            known = pair.model.producers.get(number, Known(0))
            sequence = known.batches[-1][0] + 1 if known.batches else 0
            pair.send(number, known.epoch, sequence, transactional)
        else:
            getattr(pair, name)(*arguments)
    pair.write()
    return pair


@settings(max_examples=15 * settings().max_examples)
@given(st.lists(STEPS, max_size=40))
def test_every_answer_and_state_is_the_model_s(steps: list[Any]) -> None:
    run(steps)


@settings(max_examples=10 * settings().max_examples)
@given(st.lists(STEPS, max_size=40), st.floats(0, 1))
def test_recovery_from_any_checkpoint_gives_the_same_state(steps: list[Any], part: float) -> None:
    model = run(steps).model
    checkpoint = round(len(model.log) * part)
    before = Producers()
    for fields, marker in model.log[:checkpoint]:
        before.replay(fields, marker)
    after = Producers()
    after.load(unpack_producers(pack_producers(before.entries())))
    for fields, marker in model.log[checkpoint:]:
        after.replay(fields, marker)
    entries, opened, aborted = expected(model)
    assert seen(after) == (entries, opened, [each for each in aborted if each[2] >= checkpoint])


@settings(max_examples=10 * settings().max_examples)
@given(st.lists(STEPS, max_size=40))
def test_the_last_stable_offset_at_each_high_watermark(steps: list[Any]) -> None:
    """Replay one batch at a time, the high watermark some batches after: no record below the last
    stable offset is of a transaction whose marker is not below the high watermark."""
    model = run(steps).model
    producers, stable = Producers(), 0
    markers = [(first, at) for _, first, at in _transactions(model)]
    for end, (fields, marker) in enumerate(model.log, 1):
        producers.replay(fields, marker)
        high_watermark = max(0, end - 2)
        known = producers.transactions
        now = known.stable(high_watermark) if known is not None else high_watermark
        undecided = [first for first, at in markers if first < end and at >= high_watermark]
        assert now == min([*undecided, high_watermark])
        assert now >= stable, "it never falls"
        stable = now


def _transactions(model: Model) -> list[tuple[int, int, int]]:
    """(producer ID, first offset, marker or the end of time) of every transaction."""
    opened: dict[int, int] = {}
    found = []
    for offset, (fields, marker) in enumerate(model.log):
        if marker is not None:
            if fields[9] in opened:
                found.append((fields[9], opened.pop(fields[9]), offset))
        elif fields[5] & TRANSACTIONAL:
            opened.setdefault(fields[9], offset)
    return [*found, *((number, first, OFFSET_MAX) for number, first in opened.items())]


@given(st.lists(st.sampled_from(("ask", "marker", "send")), max_size=12))
def test_no_guard_outlives_a_marker(steps: list[str]) -> None:
    """A late batch never opens a transaction after the marker that ended it (KIP-890)."""
    producers = Producers()
    held: list[Guard | None] = []
    offset = 0
    for step in steps:
        if step == "ask":
            held.append(producers.begin_verification(1, 0, 0, NOW_MS, adds=False))
        elif step == "marker":
            marker = TransactionMarker(1, 0, 0, ABORT, 0)
            producers.check_marker(marker)
            producers.queue_marker(marker, offset, NOW_MS)
            offset += 1
            for guard in held:
                late = partial(producers.check_transactional, 1, 0, -1, -1, guard)
                assert outcome(late)[1] is STATE
            held.clear()
        elif held:
            producers.check_transactional(1, 0, -1, -1, held[-1])
            producers.queue_transactional(ProducerBatch(1, 0, -1, -1, NOW_MS), offset, NOW_MS)
            offset += 1
