"""Findings of a check: problems as sentences, each with its repair, if there is one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

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
        """Add a problem."""
        self.problems.append(Problem(where, text, repair, fix, harmless, skip=skip))

    @property
    def clean(self) -> bool:
        """Return whether no problem is left unrepaired."""
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
                if problem.skip not in skipped:  # problems of one segment share it
                    skipped.add(problem.skip)
                    await problem.skip()
                problem.repair = problem.repair or "left out with --skip-lost"
                problem.repaired = True
