"""A run: its intent (Run), the results of its tasks (Done), and its record (RunRecord).

All three are JSON in the table's folder `_kafkawire/` (kafkawire_spark.pipeline.jobs.state). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kafkawire.codec.format_errors import FormatError
from kafkawire.manifest.sealed_json import seal, unseal
from kafkawire.reading.model.source import Account, Damaged, OffsetGap, PartitionRange, SourceError
from kafkawire_spark.pipeline.values.spec import Format

VERSION = 2
"""Files of version 1 have no checksum."""
BYTES = Format()

Positions = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> the offset at which the next run begins."""


class UnknownVersion(SourceError):
    """Written by a newer version of kafkawire."""


class DamagedState(Damaged):
    """A file of a table's state has another checksum; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of a table, with rows of the offsets [base, end) of one partition.

    `path`: from the table's root; `values`: name and text of each partition column, None for null;
    `run`: which run wrote its rows, the newest of them after a compaction; `stats`: Delta's
    statistics (JSON: numRecords, minValues, maxValues, nullCount), "" if there are none.
    """

    path: str
    rows: int
    size_bytes: int
    topic: str
    partition: int
    base: int
    end: int
    values: tuple[tuple[str, str | None], ...] = ()
    run: int = 0
    stats: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """Account of the offsets of one range: rows + dead + all of `counts` = end - base.

    `rows` are in the table, `dead` in the dead letters; `counts`: number of offsets without a row,
    by reason (kafkawire.reading.model.source.REASONS); `gaps`: the first ranges of those.
    """

    range: PartitionRange
    rows: int
    dead: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    gaps: tuple[OffsetGap, ...] = ()

    @classmethod
    def of(cls, account: Account, dead: int) -> Share:
        """Build the share of an account; `dead` of its rows are dead letters."""
        counts, gaps = dict(account.counts), tuple(account.gaps)
        return cls(account.range, account.rows - dead, dead, counts, gaps)

    @property
    def missing(self) -> int:
        """Number of unexplained offsets; 0 unless there is a defect."""
        gone = self.rows + self.dead + sum(self.counts.values())
        return self.range.end - self.range.base - gone


@dataclass(frozen=True, slots=True)
class Run:
    """Intent of a run: every retry of run `number` reads these ranges and writes files of these
    names.

    `tasks`: the ranges of each task, one of a partition at most; `ends`: where the next run begins,
    also for partitions that this one does not read; `value`, `key`: formats including their
    schemas, so that a retry decodes values identically; `ids`: topic ids in hex, if known: a new
    topic of the same name has other records at the same offsets.
    """

    job: str
    number: int
    tasks: tuple[tuple[PartitionRange, ...], ...]
    ends: Positions
    value: Format = BYTES
    key: Format = BYTES
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        return sum(part.end - part.base for task in self.tasks for part in task)


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a task: its files, those of dead letters, and its ranges' accounts, in order.

    `retried`: it was not the first attempt in its Spark job.
    """

    task: int
    files: tuple[FileFacts, ...]
    dead: tuple[FileFacts, ...]
    shares: tuple[Share, ...]
    retried: bool = False


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished run, as stored in `_kafkawire/commits/<number>.json`.

    `at_ms`: when it was committed; `seconds`: duration of its last attempt; `dead_letters`: the URL
    of the files in `dead`; `ids`: of all topics so far, as in Run.
    """

    job: str
    run: int
    files: tuple[FileFacts, ...]
    dead: tuple[FileFacts, ...]
    shares: tuple[Share, ...]
    ends: Positions
    at_ms: int = 0
    seconds: float = 0.0
    dead_letters: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, done: Iterable[Done], at_ms: int = 0, seconds: float = 0.0) -> RunRecord:
        """Build the record of a run from the results of its tasks, in task order."""
        ordered = sorted(done, key=lambda one: one.task)
        files = tuple(file for one in ordered for file in one.files)
        dead = tuple(file for one in ordered for file in one.dead)
        shares = tuple(share for one in ordered for share in one.shares)
        return cls(run.job, run.number, files, dead, shares, run.ends, at_ms, seconds, ids=run.ids)

    @property
    def rows(self) -> int:
        return sum(share.rows for share in self.shares)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def dump(value: Run | Done | RunRecord) -> bytes:
    """Return as JSON, with the format version."""
    return dump_json(asdict(value))


def dump_json(plain: Mapping[str, Any]) -> bytes:
    """Return as JSON with the format version and a checksum."""
    whole = {"version": VERSION, **plain}
    return seal(json.dumps(whole, separators=(",", ":"), ensure_ascii=False))


def load_json(data: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON of a file `name`, of this version, or of an older one, which most files did
    not name. Raises UnknownVersion, DamagedState."""
    try:
        plain = unseal(data, name, VERSION, "version")
    except FormatError as failure:
        raise DamagedState(str(failure)) from None
    version = plain.pop("version", 1)
    if version not in (1, VERSION):
        raise UnknownVersion(f"{name} has the version {version!r}, this kafkawire reads {VERSION}")
    return plain


def load_run(plain: dict[str, Any]) -> Run:
    plain["tasks"] = tuple(tuple(PartitionRange(*part) for part in task) for task in plain["tasks"])
    plain["value"], plain["key"] = Format(**plain["value"]), Format(**plain["key"])
    return Run(**{**plain, "ends": positions(plain["ends"])})


def load_done(plain: dict[str, Any]) -> Done:
    files, dead = _files(plain["files"]), _files(plain["dead"])
    return Done(plain["task"], files, dead, _shares(plain), plain["retried"])


def load_record(plain: dict[str, Any]) -> RunRecord:
    plain["files"], plain["dead"] = _files(plain["files"]), _files(plain["dead"])
    plain["shares"] = _shares(plain)
    return RunRecord(**{**plain, "ends": positions(plain["ends"])})


def positions(plain: Mapping[str, Mapping[str, int]]) -> Positions:
    """Parse JSON, whose keys are strings."""
    return {
        topic: {int(partition): offset for partition, offset in parts.items()}
        for topic, parts in plain.items()
    }


def load_files(plain: Iterable[Mapping[str, Any]]) -> tuple[FileFacts, ...]:
    """Load files from JSON."""
    return _files(plain)


def _files(plain: Iterable[Mapping[str, Any]]) -> tuple[FileFacts, ...]:
    return tuple(
        FileFacts(**{**one, "values": tuple((name, value) for name, value in one["values"])})
        for one in plain
    )


def _shares(plain: Mapping[str, Any]) -> tuple[Share, ...]:
    return tuple(
        Share(
            PartitionRange(*one["range"]),
            one["rows"],
            one["dead"],
            one["counts"],
            tuple(OffsetGap(*gap) for gap in one["gaps"]),
        )
        for one in plain["shares"]
    )
