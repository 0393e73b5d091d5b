"""A checker of histories without transactions: pure, over a `History` that has settled.

It returns every violation with its kind:

| kind | |
|---|---|
| lost | a record that was acknowledged with acks=all is not in the final read |
| divergence | an offset of a partition was read with two values |
| phantom | a record was read that was not sent to this partition before, or was refused |
| duplicate | a record of an idempotent producer was read at two offsets |
| reordered | records of an idempotent producer are in another order than it sent them |
| gap | offsets are missing in the final read |
| vanished | a record that was read is not in the final read, or a read position was refused |
| wrong offset | a record is not at the answered offset, or two records were answered the same |
| commit back | a committed offset is less than one acknowledged before, or was never committed |
| epoch back | a leader epoch is less than that of a lower offset, or an offset was read with two |
| no progress | a client did nothing successfully in a partition after everything was healed |
| unread | a partition to which records were sent has no final read: nothing above was checked |

Not judged: generations of groups and owners of partitions, which clients of this kind do not show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import pairwise

from tests.kit.exactly_once.checker import Finding
from tests.kit.exactly_once.history import Partition
from tests.kit.history.history import Event, Final, History, Kind, Result

LIVE_WITHIN_S = 30.0
"""Time in which every client makes progress after everything was healed: three times what a
takeover may last, and what Jepsen allowed Bufstream."""
PROGRESS = (Kind.PRODUCE, Kind.READ)
NONE = -1

Track = tuple[str, Partition]
"""A client or its group, and a partition: what progress is expected of."""


def check(
    history: History,
    *,
    sparse: Collection[str] = (),
    live_within_s: float = LIVE_WITHIN_S,
) -> list[Finding]:
    """Return every violation. `sparse`: topics in which offsets may be missing, because of control
    records or compaction; all records that were acknowledged must be there nevertheless, so give
    the records of a compacted topic different keys."""
    view = _View(history)
    return [
        *_unread(view),
        *_lost(view),
        *_divergence(view),
        *_phantom(view),
        *_duplicates(view),
        *_order(view),
        *_gaps(view, sparse),
        *_vanished(view),
        *_wrong_offsets(view),
        *_commits(view),
        *_epochs(view),
        *_progress(view, live_within_s),
    ]


class _View:
    """A history with the tables that the checks share.

    `sent`: by value; `ended`: the last event of each step; `seen`: for each partition and offset,
    the values there with who read them first; `places`: offsets of each value, by partition.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.sent: dict[str, Event] = {}
        self.ended: dict[int, Event] = {}
        self.reads: list[Event] = []
        self.seen: dict[Partition, dict[int, dict[str, str]]] = defaultdict(dict)
        self.places: dict[str, set[tuple[Partition, int]]] = defaultdict(set)
        for event in history.events:
            if event.result is not Result.INVOKE:
                self.ended[event.step] = event
            elif event.kind is Kind.PRODUCE:
                assert event.value not in self.sent, f"{event.value} was sent twice"
                self.sent[event.value] = event
            if event.kind is Kind.READ and event.result is Result.OK:
                self.reads.append(event)
                self._see(event.client, event.partition, event.offset, event.value)
        for partition, final in history.final.items():
            for offset, value, _ in final.rows:
                self._see("the final read", partition, offset, value)

    def _see(self, who: str, partition: Partition, offset: int, value: str) -> None:
        self.seen[partition].setdefault(offset, {}).setdefault(value, who)
        self.places[value].add((partition, offset))

    def acked(self) -> Iterator[Event]:
        """Ends of the sends that were acknowledged, with the offsets of the answers."""
        for event in self.ended.values():
            if event.kind is Kind.PRODUCE and event.result is Result.OK:
                yield event

    def rows(self) -> Iterator[tuple[Partition, int, dict[str, str]]]:
        """Partition, offset, and the values there with their first readers; by offset."""
        for partition, offsets in self.seen.items():
            for offset in sorted(offsets):
                yield partition, offset, offsets[offset]


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _unread(view: _View) -> Iterator[Finding]:
    for partition in sorted({each.partition for each in view.sent.values()}):
        if partition not in view.history.final:
            yield Finding("unread", f"{_name(partition)} was not read at the end")


def _lost(view: _View) -> Iterator[Finding]:
    finals = view.history.final
    values = {partition: {row[1] for row in final.rows} for partition, final in finals.items()}
    for event in view.acked():
        final = finals.get(event.partition)
        if final is None or not view.history.clients[event.client].acks_all:
            continue
        # Without an offset, deleted records cannot be distinguished from lost ones.
        deleted = event.offset < final.start if event.offset != NONE else final.start > 0
        if not deleted and event.value not in values[event.partition]:
            yield Finding("lost", f"{event.value} at {_name(event.partition)} {event.offset}")


def _divergence(view: _View) -> Iterator[Finding]:
    for partition, offset, values in view.rows():
        if len(values) > 1:
            text = ", ".join(f"{value} by {who}" for value, who in values.items())
            yield Finding("divergence", f"{_name(partition)} {offset}: {text}")


def _phantom(view: _View) -> Iterator[Finding]:
    for partition, offset, values in view.rows():
        for value, who in values.items():
            sent = view.sent.get(value)
            where = f"{value} at {_name(partition)} {offset}, read by {who},"
            if sent is None or sent.partition != partition:
                yield Finding("phantom", f"{where} was not sent there")
            elif (end := view.ended.get(sent.step)) and end.result is Result.FAIL:
                yield Finding("phantom", f"{where} was refused: {end.note}")
    for event in view.reads:
        sent = view.sent.get(event.value)
        if sent is not None and event.at < sent.at:
            yield Finding("phantom", f"{event.value} was read by {event.client} before it was sent")


def _duplicates(view: _View) -> Iterator[Finding]:
    for value, places in view.places.items():
        sent = view.sent.get(value)
        if sent is None or len(places) < 2 or not view.history.clients[sent.client].idempotent:
            continue
        where = ", ".join(f"{_name(partition)} {offset}" for partition, offset in sorted(places))
        yield Finding("duplicate", f"{value} at {where}")


def _order(view: _View) -> Iterator[Finding]:
    """Compare the first offsets of values: a duplicate is reported as such."""
    first: dict[tuple[str, Partition], list[tuple[int, str]]] = defaultdict(list)
    for value, sent in view.sent.items():  # in the order of sending
        if view.history.clients[sent.client].idempotent:
            offsets = [
                at for partition, at in view.places.get(value, ()) if partition == sent.partition
            ]
            if offsets:
                first[sent.client, sent.partition].append((min(offsets), value))
    for (client, partition), rows in first.items():
        for (offset, value), (next_offset, next_value) in pairwise(rows):
            if next_offset < offset:
                text = f"{client} in {_name(partition)}: {next_value} at {next_offset}"
                yield Finding("reordered", f"{text} was sent after {value} at {offset}")


def _gaps(view: _View, sparse: Collection[str]) -> Iterator[Finding]:
    for partition, final in view.history.final.items():
        offsets = [row[0] for row in final.rows]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            yield Finding("gap", f"{_name(partition)}: offsets of the final read do not rise")
        elif partition[0] not in sparse:
            yield from _missing(partition, final, offsets)


def _missing(partition: Partition, final: Final, offsets: list[int]) -> Iterator[Finding]:
    for before, after in pairwise([final.start - 1, *offsets, final.end]):
        if after != before + 1:
            text = f"{_name(partition)}: nothing from {before + 1} to {after - 1}"
            yield Finding("gap", f"{text} of [{final.start}, {final.end})")


def _vanished(view: _View) -> Iterator[Finding]:
    for event in view.history.events:
        if event.kind is Kind.READ and event.result is Result.FAIL:
            yield Finding(
                "vanished",
                f"{event.client} may not read on in {_name(event.partition)}: {event.note}",
            )
    for partition, final in view.history.final.items():
        there = {row[0] for row in final.rows}
        for offset, values in sorted(view.seen[partition].items()):
            if offset >= final.start and offset not in there:
                text = ", ".join(f"{value} by {who}" for value, who in values.items())
                yield Finding("vanished", f"{_name(partition)} {offset}, read before: {text}")


def _wrong_offsets(view: _View) -> Iterator[Finding]:
    answered: dict[tuple[Partition, int], str] = {}
    for event in view.acked():
        if event.offset == NONE:  # the answer to a record that the broker had already
            continue
        place = event.partition, event.offset
        where = f"{_name(event.partition)} {event.offset}"
        other = answered.setdefault(place, event.value)
        if other != event.value:
            yield Finding("wrong offset", f"{where} was answered for {other} and {event.value}")
        places = view.places.get(event.value)
        if places and place not in places:
            read = ", ".join(f"{_name(partition)} {offset}" for partition, offset in sorted(places))
            yield Finding("wrong offset", f"{event.value}: {where} was answered, read at {read}")
        others = [
            value
            for value in view.seen[event.partition].get(event.offset, ())
            if value != event.value
        ]
        if others:
            text = f"{where} was answered for {event.value}, read was {others[0]}"
            yield Finding("wrong offset", text)


def _commits(view: _View) -> Iterator[Finding]:
    """A commit or a fetch that begins after an acknowledged commit of an offset has no less."""
    floors: dict[Track, int] = {}
    tried: dict[Track, set[int]] = defaultdict(set)
    begun: dict[int, int] = {}
    for event in view.history.events:
        if event.kind not in (Kind.COMMIT, Kind.COMMITTED):
            continue
        track = event.group, event.partition
        where = f"{event.group} in {_name(event.partition)}"
        if event.result is Result.INVOKE:
            begun[event.step] = floors.get(track, NONE)
            if event.kind is Kind.COMMIT:
                tried[track].add(event.offset)
        elif event.result is Result.OK:
            floor = begun[event.step]
            if event.offset < floor:
                text = f"{where}: {event.kind.value} {event.offset} by {event.client}"
                yield Finding("commit back", f"{text} after {floor} was acknowledged")
            if event.kind is Kind.COMMIT:
                floors[track] = max(event.offset, floors.get(track, NONE))
            elif event.offset != NONE and event.offset not in tried[track]:
                yield Finding("commit back", f"{where}: {event.offset} was never committed")


def _epochs(view: _View) -> Iterator[Finding]:
    epochs: dict[Partition, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for event in view.reads:
        epochs[event.partition][event.offset].add(event.epoch)
    for partition, final in view.history.final.items():
        for offset, _, epoch in final.rows:
            epochs[partition][offset].add(epoch)
    for partition, offsets in epochs.items():
        most = NONE
        for offset in sorted(offsets):
            known = offsets[offset] - {NONE}
            if len(known) > 1:
                text = f"{_name(partition)} {offset}: epochs {sorted(known)}"
                yield Finding("epoch back", text)
            elif known and min(known) < most:
                text = f"{_name(partition)} {offset}: epoch {min(known)} after {most}"
                yield Finding("epoch back", text)
            most = max([most, *known])


def _progress(view: _View, live_within_s: float) -> Iterator[Finding]:
    """Judge each time when everything was healed for long enough."""
    events = view.history.events
    for number, event in enumerate(events):
        if event.kind is not Kind.HEALED:
            continue
        due = event.at + live_within_s
        faults = (later.at for later in events[number + 1 :] if later.kind is Kind.FAULT)
        if next(faults, due) >= due:
            yield from _stuck(view, number, due)


def _stuck(view: _View, healed: int, due: float) -> Iterator[Finding]:
    """Clients that ran when the event `healed` was reported, and had no success until `due`."""
    running: dict[str, None] = {}
    for event in view.history.events[:healed]:
        if event.kind is Kind.BEGAN:
            running[event.client] = None
        elif event.kind is Kind.ENDED:
            running.pop(event.client, None)
    clients = view.history.clients
    expected: dict[Track, None] = {
        (clients[name].group or name, partition): None
        for name in running
        for partition in clients[name].partitions
    }
    for event in view.history.events[healed:]:
        if event.at > due:
            break
        if event.kind in PROGRESS and event.result is Result.OK:
            expected.pop((event.group or event.client, event.partition), None)
    for who, partition in expected:
        yield Finding("no progress", f"{who} in {_name(partition)}")
