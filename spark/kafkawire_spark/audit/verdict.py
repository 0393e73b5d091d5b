"""Report of an audit, as text and as data. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kafkawire_spark.audit.continuity import (
    DUPLICATE,
    OUTSIDE,
    UNEXPECTED,
    UNEXPLAINED,
    Found,
    Range,
)

MISSING = "missing rows"
"""Kind of problem: records of the source that the table should have."""
SHOWN = 3
"""Ranges listed in a sentence; --json has more."""
_WORDS = {
    UNEXPLAINED: "without a row or a reason",
    DUPLICATE: "more than once",
    UNEXPECTED: "with a row where the account of their run has none",
    OUTSIDE: "with a row that no committed run has read",
}


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """One problem: `kind` for programs, `text` a sentence. `ranges`: first offsets."""

    kind: str
    text: str
    offsets: int = 0
    ranges: tuple[Range, ...] = ()


@dataclass(slots=True)
class SourceState:
    """The partition in the source now: log start, end (-1: deleted)."""

    start: int
    end: int


class Uncompared(NamedTuple):
    """Offsets [base, end) whose number of records in the source is unknown, with the reason."""

    base: int
    end: int
    why: str


@dataclass(slots=True)
class AuditCounts:
    """The source has `records` records, including control batches and aborted transactions, in
    `offsets` of the offsets that the table has read; `read` of the offsets were read to count them.
    `cleaned`: records of the table that compaction has removed from the source since; `trusted`:
    records without a row that run reports have as control records, aborted or damaged; `confirmed`:
    those of which the source says so, too; `differ`: whether the counts differ; `uncompared`: other
    offsets."""

    records: int = 0
    offsets: int = 0
    read: int = 0
    cleaned: int = 0
    trusted: int = 0
    confirmed: int = 0
    differ: bool = False
    uncompared: list[Uncompared] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Return the result in a few words."""
        if self.differ:
            return "differ"
        if not self.offsets:
            return "not compared"
        words = "equal" if not self.cleaned else f"equal, {self.cleaned} cleaned since"
        left = sum(each.end - each.base for each in self.uncompared)
        return f"{words}, {left} offsets not compared" if left else words

    def notes(self) -> Iterator[str]:
        if self.cleaned:
            records = "1 record" if self.cleaned == 1 else f"{self.cleaned} records"
            yield f"the source was compacted after the run: the table has {records} more"
        if self.trusted:
            yield (
                f"{self.trusted} of the source's records are control or aborted ones, or damaged, "
                "by the runs' accounts"
            )
        for base, end, why in self.uncompared[:SHOWN]:
            yield f"records of offsets [{base}, {end}) are not compared by number: {why}"
        if len(self.uncompared) > SHOWN:
            yield f"nor are those of {len(self.uncompared) - SHOWN} more ranges"

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        plain = {"verdict": self.verdict, **asdict(self)}
        plain["uncompared"] = [each._asdict() for each in self.uncompared]
        return plain


@dataclass(slots=True)
class PartitionReport:
    """One topic partition. `first`, `last`: of rows and dead letters, -1 if there are none; `next`:
    start of the next run, -1 without run reports; `gaps`: explained offsets without a row by
    reason; `dead`: dead letters, those of damaged ranges not counted."""

    topic: str
    partition: int
    first: int = -1
    last: int = -1
    next: int = -1
    rows: int = 0
    dead: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    problems: list[AuditProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    source: SourceState | None = None
    counts: AuditCounts | None = None

    @property
    def where(self) -> str:
        """TOPIC-PARTITION."""
        return f"{self.topic}-{self.partition}"

    @property
    def clean(self) -> bool:
        """Whether every offset is there once, or explained."""
        return not self.problems and not self.found

    def all_problems(self) -> Iterator[AuditProblem]:
        """All problems, those of single offsets first."""
        for kind in (UNEXPLAINED, DUPLICATE, UNEXPECTED, OUTSIDE):
            if kind in self.found:
                yield _problem(kind, self.found[kind])
        yield from self.problems

    def all_notes(self) -> list[str]:
        """All notes, those on counts last."""
        return [*self.notes, *(self.counts.notes() if self.counts is not None else ())]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "first": self.first if self.first >= 0 else None,
            "last": self.last if self.last >= 0 else None,
            "next": None if self.next < 0 else self.next,
            "rows": self.rows,
            "dead_letters": self.dead,
            "gaps": self.gaps,
            "source": None if self.source is None else asdict(self.source),
            "counts": None if self.counts is None else self.counts.plain(),
            "clean": self.clean,
            "problems": [_plain(problem) for problem in self.all_problems()],
            "notes": self.all_notes(),
        }


def _problem(kind: str, found: Found) -> AuditProblem:
    shown = ", ".join(span_of(each) for each in found.first[:SHOWN])
    more = ", ..." if found.ranges > SHOWN else ""
    offsets = "1 offset" if found.offsets == 1 else f"{found.offsets} offsets"
    text = f"{offsets} {_WORDS[kind]}: {shown}{more}"
    return AuditProblem(kind, text, found.offsets, tuple(found.first))


def span_of(each: Range) -> str:
    """Describe its offsets."""
    return str(each.base) if each.end - each.base == 1 else f"{each.base}..{each.end - 1}"


def _plain(problem: AuditProblem) -> dict[str, Any]:
    plain = asdict(problem)
    plain["ranges"] = [[each.base, each.end] for each in problem.ranges]
    return plain


@dataclass(slots=True)
class TableReport:
    """The whole report. `problems`: those of no partition; `notes`: worth knowing, but no
    problem."""

    table: str
    format: str
    runs: int
    files: int
    size_bytes: int
    partitions: list[PartitionReport]
    problems: list[AuditProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @property
    def clean(self) -> bool:
        """Whether there are no problems (exit code 0)."""
        return not self.problems and all(each.clean for each in self.partitions)

    def sentences(self) -> Iterator[str]:
        """Return every problem as a line."""
        for problem in self.problems:
            yield problem.text
        for each in self.partitions:
            for problem in each.all_problems():
                yield f"{each.where}: {problem.text}"

    def plain(self) -> Mapping[str, Any]:
        """For JSON."""
        return {
            "table": self.table,
            "format": self.format,
            "clean": self.clean,
            "runs": self.runs,
            "files": self.files,
            "bytes": self.size_bytes,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "problems": [_plain(problem) for problem in self.problems],
            "notes": self.notes,
            "partitions": [each.plain() for each in self.partitions],
        }
