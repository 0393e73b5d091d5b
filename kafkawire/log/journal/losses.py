"""Offsets lost by damage to acknowledged bytes: of which partitions, and where these continue.

An offset that may have been acknowledged is never assigned again: where a damaged range may have
contained the end of a partition's log, its next offset rises above everything that can have been in
it. This leaves a gap in which reads get an error (kafkawire.log.partition.read_plan). Pure, except
that it reads the bytes of journals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kafkawire.log.journal.file import POSITION_BITS
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.journal.salvage import DamagedFrame, explain
from kafkawire.log.journal.scan import Gap

MAX_NAMED = 10
"""Partitions named in one log line; the others are counted."""

Name = Callable[[int], str]
"""The name of a partition by its number, as `topic-0`."""


@dataclass(slots=True)
class Loss:
    """Offsets [first, last) of one partition that cannot be read; `last` is -1 where their number
    is unknown. They were in a damaged frame in bytes [start, end) of a journal; if not `certain`,
    it is unknown whether they were ever assigned."""

    number: int
    first: int
    last: int
    certain: bool = True
    journal: int = -1
    start: int = 0
    end: int = 0


@dataclass(slots=True)
class Damage:
    """One damaged range. `losses` are known from its bytes; `unexplained` of its bytes may have
    contained records of any partition; `doubted` has for a partition number how many bytes may have
    contained records of that one."""

    gap: Gap
    losses: list[Loss] = field(default_factory=list)
    unexplained: int = 0
    doubted: dict[int, int] = field(default_factory=dict)

    def description(self, name: Name) -> str:
        """Describe the damage of the journal and the lost offsets, to follow the journal's name."""
        gap, lost = self.gap, names(self.losses, name)
        if gap.missing:
            what = "is missing, though it was acknowledged"
        elif gap.cut_short:
            what = f"was cut short at byte {gap.start}, after which records were acknowledged"
        else:
            what = f"is damaged in bytes {gap.start}-{gap.end - 1}, which were acknowledged"
            lost = lost or "whose records they were is unknown"
        return f"{what}: {lost}" if lost else what


def names(losses: Iterable[Loss], name: Name) -> str:
    texts = []
    for loss in losses:
        if loss.last < 0:
            texts.append(f"some offsets of {name(loss.number)} are lost")
        else:
            verb = "are lost" if loss.certain else "may be lost"
            texts.append(f"offsets {loss.first}-{loss.last - 1} of {name(loss.number)} {verb}")
    more = [f"and of {len(texts) - MAX_NAMED} partitions more"] if len(texts) > MAX_NAMED else []
    return ", ".join(texts[:MAX_NAMED] + more)


def examine(gap: Gap, view: memoryview | None) -> Damage:
    """Read what can still be decoded of a damaged range; `view` is the journal's, None if it is
    missing."""
    damage = Damage(gap)
    # A missing journal: nothing is left of its records.
    if view is None:
        damage.unexplained = gap.end - gap.start
    # Its frame is intact, only the CRC of a batch was wrong.
    elif gap.number >= 0:
        where = gap.journal, gap.start, gap.end
        damage.losses.append(Loss(gap.number, gap.first, gap.last, True, *where))
    else:
        for part in explain(view, gap.journal, gap.start, gap.end):
            if not isinstance(part, DamagedFrame):
                damage.unexplained += part.end - part.start
            # Frames without records (number 0) lose no offsets.
            elif part.number > 0:
                where = gap.journal, part.start, part.end
                damage.losses.append(Loss(part.number, part.first, part.last, True, *where))
                # Its head was read, its offsets were not.
                if part.last < 0:
                    size = part.end - part.start
                    damage.doubted[part.number] = damage.doubted.get(part.number, 0) + size
    return damage


def examine_index(gap: Gap, rows: Mapping[int, IndexColumns]) -> Damage:
    """Find the batches of a missing journal's range in its index file; `rows` by partition."""
    damage = Damage(gap)
    for number, columns in rows.items():
        first = bisect_left(columns.log_position, gap.log_position)
        # The row before may reach into the range.
        if first and columns.log_position[first - 1] + columns.length[first - 1] > gap.log_position:
            first -= 1
        if first < len(columns):
            end = columns.base[-1] + columns.count[-1]
            damage.losses.append(Loss(number, columns.base[first], end))
    return damage


@dataclass(slots=True)
class DamagedEnds:
    """The ends of partitions as far as damaged frames show them. `known`: the offset after the last
    that a damaged frame is known to have contained; `doubted`: bytes in which more records of a
    partition may have been, with the log position of the last; `unexplained`: the same for any
    partition."""

    known: dict[int, int] = field(default_factory=dict)
    doubted: dict[int, tuple[int, int]] = field(default_factory=dict)
    unexplained: tuple[int, int] = (0, 0)

    def find_affected_partitions(self, bounds: Mapping[int, int] | None) -> set[int]:
        """Return the partitions that may have lost records."""
        # With unexplained bytes it may be any partition that the ledger knows.
        numbers = self.known.keys() | self.doubted.keys()
        return numbers | bounds.keys() if bounds and self.unexplained[0] else numbers

    def at_least(
        self,
        number: int,
        next_offset: int,
        last_log_position: int,
        bounds: Mapping[int, int] | None,
    ) -> int:
        """Return the offset at which a partition continues. `next_offset` follows from what can be
        read, `last_log_position` is that of its last frame, `bounds` are the ledger's if there is
        one."""
        # First: what is left of the damaged frames, and what can be read after them.
        known = max(next_offset, self.known.get(number, 0))
        parts = (self.doubted.get(number, (0, 0)), self.unexplained)
        # A frame of the partition after the damage shows all offsets before itself.
        size = sum(size for size, log_position in parts if last_log_position < log_position)
        if not size:
            return known
        # Second: the ledger's bound, above all acknowledged offsets.
        if bounds is not None:
            return max(known, bounds.get(number, 0))
        # An older version kept no ledger: each damaged byte counts as an offset, since a record
        # takes more than one byte.
        return known + size


def ends(damages: Iterable[Damage], log_position: int) -> DamagedEnds:
    """Combine what is known of all damage. `log_position` is the checkpoint's."""
    result = DamagedEnds()
    for damage in damages:
        gap, start = damage.gap, damage.gap.log_position
        # The checkpoint has the next offsets of everything before it.
        if gap.journal << POSITION_BITS | gap.end <= log_position and not gap.open:
            continue
        for loss in damage.losses:
            result.known[loss.number] = max(result.known.get(loss.number, 0), loss.last)
        for number, size in damage.doubted.items():
            result.doubted[number] = (result.doubted.get(number, (0, 0))[0] + size, start)
        if damage.unexplained or gap.open:
            # An open range lost an unknown number of bytes, at least one.
            size = max(damage.unexplained, 1)
            result.unexplained = (result.unexplained[0] + size, start)
    return result
