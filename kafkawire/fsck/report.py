"""Findings of a check: problems as sentences, each with its repair, if there is one; and what
`--skip-lost` gives up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kafkawire.codec.segment.lost import DAMAGED, LostRange
from kafkawire.log.io.ports import Env
from kafkawire.log.journal.scan import Gap
from kafkawire.log.recovery.given_up import GivenUp, read_given_up, write_given_up

Fix: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Problem:
    """A problem. `where`: a journal, a segment, a partition. `repair` describes what `fix` does;
    without one no repair is possible that would not lose acknowledged data. `harmless`: left by an
    interrupted start, cut or write and removed by the next start. `skip` gives up what is lost."""

    where: str
    text: str
    repair: str = ""
    fix: Fix | None = None
    harmless: bool = False
    repaired: bool = False
    skip: Fix | None = None


@dataclass(slots=True)
class FsckReport:
    """Everything that was found, and how much was checked. `lone_markers`: markers of transactions
    without a record in their partition, which are legal."""

    problems: list[Problem] = field(default_factory=list)
    journals: int = 0
    segments: int = 0
    partitions: int = 0
    size_bytes: int = 0
    open_transactions: int = 0
    aborted_transactions: int = 0
    lone_markers: int = 0

    def add(
        self,
        where: str,
        text: str,
        repair: str = "",
        fix: Fix | None = None,
        harmless: bool = False,
        skip: Fix | None = None,
    ) -> None:
        self.problems.append(Problem(where, text, repair, fix, harmless, skip=skip))

    @property
    def clean(self) -> bool:
        return all(problem.harmless or problem.repaired for problem in self.problems)

    async def repair(self, skip_lost: bool = False) -> None:
        """Do the repairs that lose no acknowledged data; with `skip_lost` give up what is already
        lost. OSError, MetadataError."""
        skipped: set[Fix] = set()
        for problem in self.problems:
            if problem.fix is not None:
                await problem.fix()
                problem.repaired = True
            elif skip_lost and problem.skip is not None:
                # Problems of one segment share it.
                if problem.skip not in skipped:
                    skipped.add(problem.skip)
                    await problem.skip()
                problem.repair = problem.repair or "left out with --skip-lost"
                problem.repaired = True


class GiveUp:
    """Collects the lost ranges that a check finds, in no segment and no journal; `fix` gives all of
    them up.

    A range that was given up before and is not cut yet is harmless."""

    def __init__(self, env: Env, home: str) -> None:
        self._env = env
        self._home = home
        self._before = read_given_up(env.fs, home)
        self._now_ms = env.clock.now_ms()
        self._found = GivenUp()
        self.fix: Fix = self._write

    def damage(self, gap: Gap) -> bool:
        """Note damaged or missing bytes of a journal; return whether they were given up before."""
        found = gap.journal, gap.start, gap.end
        self._found.damage.add(found)
        return found in self._before.damage

    def offsets(self, number: int, topic_id: bytes, first: int, end: int) -> bool:
        """Note offsets [first, end) that the journals should contain, rising for one partition;
        return whether they were given up before."""
        before = self._before.ranges_of_partition(number, topic_id)
        known = next((one for one in before if one.first <= first and end <= one.end), None)
        noticed_ms = known.noticed_ms if known else self._now_ms
        reason = known.reason if known else DAMAGED
        _, ranges = self._found.ranges.setdefault(number, (topic_id, []))
        ranges.append(LostRange(first, end, noticed_ms, reason))
        return known is not None

    async def _write(self) -> None:
        # Only their list: the next start cuts past the ranges, with the broker's cutter, and moves
        # the damaged journals into the quarantine.
        write_given_up(self._env.fs, self._home, self._found)
