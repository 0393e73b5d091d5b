"""A checker of transactional histories, of the kind of Jepsen's: pure, over a `History`.

It returns every violation with its kind. Kinds:

| kind | |
|---|---|
| aborted read | a reader saw a record whose transaction was aborted, or never asked for a commit |
| early read | a reader saw a record before its commit was asked for |
| lost | a record of a committed transaction cannot be read |
| torn | one part of a transaction is visible and another is not |
| duplicate | one record is stored at two offsets |
| reordered | records of one producer are stored in another order than it sent them |
| inconsistent | two reads, or a read and an answer, disagree on what is at an offset |
| skipped | a fetch passed over a committed record |
| past stable | a fetch returned records at or above the last stable offset it reported |
| stable back | the last stable offset or the high watermark went back |
| early offset | an OffsetFetch returned an offset whose transaction had not asked for its commit |
| stale offset | a stable OffsetFetch returned less than was committed before |
| offsets out of step | the committed offset is not the one of the last committed transaction |
| processed twice | two committed transactions used the same input |
| not processed | an input below the committed offset was used by no committed transaction |
| zombie | an instance wrote or committed after its successor had started, or equals it |
| hanging | something is still open when all clients are gone and the broker has had its time |
| damaged | what is stored at an offset cannot be read |

Not demanded, because transactions give no isolation of writes: that records of two transactions do
not interleave, and that a commit becomes visible in all partitions at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.kit.exactly_once.history import (
    Attempt,
    Final,
    History,
    Instance,
    Key,
    Outcome,
    Partition,
    Poll,
    Row,
)

NONE = -1
"""The offset that OffsetFetch returns where there is none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(history: History) -> list[Finding]:
    """Every violation in a history that has settled."""
    view = _View(history)
    found: list[Finding] = []
    for part in (
        _everything_is_readable,
        _offsets_agree,
        _stored_once,
        _visible_only_if_committed,
        _committed_is_visible,
        _in_order,
        _polls_are_complete,
        _stable_offset_rises,
        _offset_reads,
        _offsets_in_step,
        _inputs_once,
        _fenced,
    ):
        found += part(view)
    found += [Finding("hanging", each) for each in history.hanging]
    for partition, final in history.final.items():
        if final.stable != final.high:
            found.append(Finding("hanging", f"{partition}: LSO {final.stable}, end {final.high}"))
    return found


class _View:
    """A history with the tables that the checks share."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.by_value = {
            write.value: attempt
            for attempt in history.attempts.values()
            for write in attempt.writes
        }
        self.visible: dict[Partition, set[str]] = {
            partition: {value for _, value in final.committed}
            for partition, final in history.final.items()
        }

    def alive(self, partition: Partition) -> Final | None:
        """The final state of a partition, None if its topic was deleted."""
        return None if partition[0] in self.history.deleted else self.history.final.get(partition)

    def shown(self, attempt: Attempt) -> list[bool]:
        """For each acknowledged write that must be in a log that still exists: is it visible?"""
        found = []
        for write in attempt.writes:
            final = self.alive(write.partition)
            if write.acked is not None and final is not None and write.offset >= final.start:
                found.append(write.value in self.visible[write.partition])
        return found

    def took_effect(self, attempt: Attempt) -> bool | None:
        """Whether a transaction was committed; None if it is unknown."""
        if attempt.commit_sent is None:
            return False
        if attempt.outcome is not Outcome.UNKNOWN:
            return attempt.outcome is Outcome.COMMITTED
        shown = self.shown(attempt)
        return any(shown) if shown else None


def _reads(history: History) -> Iterator[tuple[str, Partition, list[Row]]]:
    for poll in history.polls:
        yield f"reader {poll.reader}", poll.partition, poll.rows
    for partition, final in history.final.items():
        yield "the last committed read", partition, final.committed
        yield "the last uncommitted read", partition, final.written


def _everything_is_readable(view: _View) -> Iterator[Finding]:
    for partition, final in view.history.final.items():
        if final.damaged:
            text = f"{partition}: offsets {final.damaged[0]} to {final.damaged[-1]}"
            yield Finding("damaged", text)


def _offsets_agree(view: _View) -> Iterator[Finding]:
    known: dict[tuple[Partition, int], tuple[str, str]] = {}
    for write in view.history.writes.values():
        if write.acked is not None and write.offset >= 0:
            at = write.partition, write.offset
            other = known.setdefault(at, (write.value, "the answer to Produce"))
            if other[0] != write.value:
                text = f"{at}: answered for {other[0]} and for {write.value}"
                yield Finding("inconsistent", text)
    for who, partition, rows in _reads(view.history):
        for offset, value in rows:
            other = known.setdefault((partition, offset), (value, who))
            if other[0] != value:
                text = f"{partition} {offset}: {value} ({who}), {other[0]} ({other[1]})"
                yield Finding("inconsistent", text)


def _stored_once(view: _View) -> Iterator[Finding]:
    offsets: dict[str, set[tuple[Partition, int]]] = defaultdict(set)
    for _, partition, rows in _reads(view.history):
        for offset, value in rows:
            offsets[value].add((partition, offset))
    for value, places in offsets.items():
        if len(places) > 1:
            yield Finding("duplicate", f"{value} at {sorted(places)}")


def _visible_only_if_committed(view: _View) -> Iterator[Finding]:
    for poll in view.history.polls:
        for offset, value in poll.rows:
            attempt = view.by_value.get(value)
            where = f"{value} at {poll.partition} {offset}, seen by {poll.reader}"
            if attempt is None:
                yield Finding("inconsistent", f"{where}: it was never sent")
            elif _never_committed(attempt):
                yield Finding("aborted read", where)
            elif attempt.commit_sent is not None and poll.answered < attempt.commit_sent:
                yield Finding("early read", where)
    for partition, final in view.history.final.items():
        for offset, value in final.committed:
            attempt = view.by_value.get(value)
            if attempt is None or _never_committed(attempt):
                yield Finding("aborted read", f"{value} at {partition} {offset}, in the end")


def _never_committed(attempt: Attempt) -> bool:
    return attempt.commit_sent is None or attempt.outcome is Outcome.ABORTED


def _committed_is_visible(view: _View) -> Iterator[Finding]:
    for attempt in view.history.attempts.values():
        shown = view.shown(attempt)
        if attempt.commit_sent is None or all(shown):
            continue
        if any(shown):
            yield Finding("torn", f"{attempt.number}: {shown.count(False)} of {len(shown)} missing")
        elif attempt.outcome is Outcome.COMMITTED:
            yield Finding("lost", f"{attempt.number}: all {len(shown)} records")


def _in_order(view: _View) -> Iterator[Finding]:
    """Instances of one id start one after another, and nothing of the former ones follows."""
    order = {each.name: each.producer for each in view.history.instances.values()}
    ids = {each.name: each.transactional_id for each in view.history.instances.values()}
    sent: dict[tuple[str, Partition], list[tuple[tuple[int, int], int, str]]] = defaultdict(list)
    for number, attempt in enumerate(view.history.attempts.values()):
        for write in attempt.writes:
            key = ids[attempt.instance], write.partition
            sent[key].append((order[attempt.instance], number, write.value))
    places = {
        value: offset for final in view.history.final.values() for offset, value in final.committed
    }
    for (transactional_id, partition), writes in sent.items():
        seen = [value for *_, value in sorted(writes, key=lambda w: w[:2]) if value in places]
        for earlier, later in pairwise(seen):
            if places[earlier] >= places[later]:
                text = f"{transactional_id} in {partition}: {later} is before {earlier}"
                yield Finding("reordered", text)


def _polls_are_complete(view: _View) -> Iterator[Finding]:
    for poll in view.history.polls:
        final = view.alive(poll.partition)
        if poll.stable >= 0:
            for offset, value in poll.rows:
                if offset >= poll.stable:
                    text = f"{value} at {poll.partition} {offset}, LSO {poll.stable}"
                    yield Finding("past stable", text)
        if final is None:
            continue
        yield from _compare(poll, final)


def _compare(poll: Poll, final: Final) -> Iterator[Finding]:
    """A poll must have what the last read finds in its range."""
    low = bisect_left(final.committed, (poll.start, ""))
    high = bisect_left(final.committed, (poll.end, ""))
    expected = dict(final.committed[low:high])
    got = dict(poll.rows)
    for offset, value in expected.items():
        if offset not in got:
            text = f"{value} at {poll.partition} {offset}, by {poll.reader} reading {poll.start}"
            yield Finding("skipped", f"{text} to {poll.end}")
    for offset, value in got.items():
        if offset >= final.start and offset not in expected and poll.start <= offset < poll.end:
            text = f"{value} at {poll.partition} {offset}, seen by {poll.reader}, is gone"
            yield Finding("inconsistent", text)


def _stable_offset_rises(view: _View) -> Iterator[Finding]:
    by_partition: dict[Partition, list[Poll]] = defaultdict(list)
    for poll in view.history.polls:
        if poll.stable >= 0:
            by_partition[poll.partition].append(poll)
    for partition, polls in by_partition.items():
        for what in ("stable", "high"):
            yield from _rises(partition, polls, what)


def _rises(partition: Partition, polls: list[Poll], what: str) -> Iterator[Finding]:
    """A poll that was asked for after another was answered sees no less."""
    answered = sorted(polls, key=lambda poll: poll.answered)
    most, at = -1, 0
    for poll in sorted(polls, key=lambda poll: poll.asked):
        while at < len(answered) and answered[at].answered < poll.asked:
            most = max(most, getattr(answered[at], what))
            at += 1
        if getattr(poll, what) < most:
            text = f"{partition}: {what} {getattr(poll, what)} after {most}"
            yield Finding("stable back", text)


def _commits_of(view: _View) -> dict[Key, list[Attempt]]:
    found: dict[Key, list[Attempt]] = defaultdict(list)
    for attempt in view.history.attempts.values():
        for key in attempt.offsets:
            found[key].append(attempt)
    return found


def _offset_reads(view: _View) -> Iterator[Finding]:
    commits = _commits_of(view)
    for read in view.history.offset_reads:
        tried = commits[read.key]
        allowed = {NONE} | {
            each.offsets[read.key]
            for each in tried
            if each.commit_sent is not None
            and each.commit_sent <= read.answered
            and each.outcome is not Outcome.ABORTED
        }
        if read.offset not in allowed:
            yield Finding("early offset", f"{read.key}: {read.offset}")
        done = [
            each.offsets[read.key]
            for each in tried
            if each.outcome is Outcome.COMMITTED and each.ended is not None
            if each.ended <= read.asked
        ]
        if read.stable and read.offset < max(done, default=NONE):
            yield Finding("stale offset", f"{read.key}: {read.offset} after {max(done)}")


def _offsets_in_step(view: _View) -> Iterator[Finding]:
    for key, tried in _commits_of(view).items():
        if key not in view.history.final_offsets:
            continue
        effects = [(view.took_effect(each), each.offsets[key]) for each in tried]
        surely = max((offset for effect, offset in effects if effect), default=NONE)
        maybe = {offset for effect, offset in effects if effect is None and offset > surely}
        got = view.history.final_offsets[key]
        if got != surely and got not in maybe:
            text = f"{key}: {got} is committed, transactions committed {surely}"
            yield Finding("offsets out of step", text)


def _inputs_once(view: _View) -> Iterator[Finding]:
    used: dict[tuple[str, Partition, int], str] = {}
    for attempt in view.history.attempts.values():
        if not view.took_effect(attempt):
            continue
        for place in attempt.inputs:
            other = used.setdefault(place, attempt.number)
            if other != attempt.number:
                yield Finding("processed twice", f"{place}: by {other} and {attempt.number}")
    maybe = {
        place
        for attempt in view.history.attempts.values()
        if view.took_effect(attempt) is None
        for place in attempt.inputs
    }
    for (group, topic, index), offset in view.history.final_offsets.items():
        final = view.alive((topic, index))
        if final is None:
            continue
        for at, value in final.committed:
            place = (group, (topic, index), at)
            if at < offset and place not in used and place not in maybe:
                yield Finding("not processed", f"{place}: {value}")


def _fenced(view: _View) -> Iterator[Finding]:
    """Nothing that an instance begins after its successor has started may succeed."""
    lives: dict[str, list[Instance]] = defaultdict(list)
    for each in view.history.instances.values():
        lives[each.transactional_id].append(each)
    for transactional_id, instances in lives.items():
        for producer, count in Counter(each.producer for each in instances).items():
            if count > 1:
                yield Finding("zombie", f"{count} instances of {transactional_id} are {producer}")
    for attempt in view.history.attempts.values():
        instance = view.history.instances[attempt.instance]
        others = lives[instance.transactional_id]
        later = [each.started for each in others if each.producer > instance.producer]
        if not later:
            continue
        fenced = min(later)
        for write in attempt.writes:
            if write.acked is not None and write.sent > fenced:
                yield Finding("zombie", f"{write.value} of {instance.name} at {write.partition}")
        late = attempt.commit_sent is not None and attempt.commit_sent > fenced
        if late and attempt.outcome is Outcome.COMMITTED:
            yield Finding("zombie", f"commit {attempt.number} of {instance.name}")


def kinds(found: Iterable[Finding]) -> set[str]:
    """The kinds of violations."""
    return {each.kind for each in found}
