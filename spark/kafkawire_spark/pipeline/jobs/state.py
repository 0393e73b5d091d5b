"""State of a table in its folder `_kafkawire/`: intents, task results, records.

    table.json                      the table's job and its columns
    runs/<number>.json              the intent of a run; never deleted, so numbers are not reused
    runs/<number>/task-<i>.json     the result of one of its tasks; deleted once there is a record
    commits/<number>.json           the record of a run; in a Parquet table this is the commit
    compactions/<number>.json       which files become one; results of tasks as for runs
    replaced/<number>.json          a Parquet table's committed replacements
    snapshots/<number>.json         a Parquet table's files after that many runs
    expiry.json                     files of an Iceberg table to delete with expiring snapshots
    replays/<name>.json             the plan of a replay to a topic (replay.record)
    latest.json                     a hint: everything up to this number is settled

Numbers have 20 digits.

A run has an intent (Run), results of its tasks (Done), and a record (RunRecord).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.manifest.sealed_json import seal, unseal
from kafkawire.reading.model.source import Account, Damaged, OffsetGap, PartitionRange, SourceError
from kafkawire_spark.pipeline.values.spec import Format

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place


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
    def from_account(cls, account: Account, dead: int) -> Share:
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
    def from_results(
        cls, run: Run, done: Iterable[Done], at_ms: int = 0, seconds: float = 0.0
    ) -> RunRecord:
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
    # The checksum is necessary: one flipped bit in a digit would be other offsets.
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


FOLDER = "_kafkawire"
RUNS, COMPACTIONS = "runs", "compactions"
SNAPSHOT_EVERY = 64
"""Runs between two snapshots: `files()` reads at most so many records in addition to one
snapshot."""


class Hint(NamedTuple):
    """Runs and compactions up to these numbers are settled; `snapshot`: the newest, 0 for none."""

    run: int = 0
    compaction: int = 0
    snapshot: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """The intent of compaction `number`: each group of neighbouring files becomes one file."""

    number: int
    groups: tuple[tuple[FileFacts, ...], ...]


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A Parquet table's files after runs up to `run` and compactions up to `compaction`."""

    run: int
    compaction: int
    files: tuple[FileFacts, ...]


@dataclass(frozen=True, slots=True)
class Expiry:
    """Pending deletions of an Iceberg table: `files` are deleted once none of these snapshots
    exists."""

    snapshots: tuple[int, ...]
    files: tuple[str, ...]


class TableState:
    """The folder `_kafkawire/` of one table. Can be pickled, like its location."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def hint(self) -> Hint:
        plain = self._json("latest.json")
        return Hint(**plain) if plain else Hint()

    def put_hint(self, hint: Hint) -> None:
        self.place.put(f"{FOLDER}/latest.json", dump_json(hint._asdict()))

    def table(self) -> dict[str, Any] | None:
        """Read the description written by `write_description`; None for a new table."""
        return self._json("table.json")

    def write_description(self, plain: Mapping[str, Any], *, new: bool) -> None:
        """Write the description. Raises FileExistsError if `new` and it exists."""
        self.place.put(f"{FOLDER}/table.json", dump_json(plain), if_absent=new)

    def run(self, number: int) -> Run | None:
        plain = self._json(f"{RUNS}/{number:020}.json")
        return load_run(plain) if plain is not None else None

    def intend(self, run: Run) -> Run:
        """Write the intent of `run`; return the existing one if another driver was first."""
        if self._put(f"{RUNS}/{run.number:020}.json", dump(run)):
            return run
        there = self.run(run.number)
        assert there is not None  # intents are never deleted
        return there

    def read_record(self, number: int) -> RunRecord | None:
        plain = self._json(f"commits/{number:020}.json")
        return load_record(plain) if plain is not None else None

    def has_record(self, number: int) -> bool:
        return self._is_there(f"commits/{number:020}.json")

    def put_record(self, record: RunRecord) -> bool:
        """Write the record; return False if the run already had one."""
        return self._put(f"commits/{record.run:020}.json", dump(record))

    def read_records(self, first: int = 1) -> Iterator[RunRecord]:
        """Return the records of runs from `first` on, in order."""
        while (record := self.read_record(first)) is not None:
            yield record
            first += 1

    def last_record(self) -> int:
        """Return the number of the newest record, 0 if there is none."""
        number = self.hint().run
        while self.has_record(number + 1):
            number += 1
        return number

    def read_done(self, kind: str, number: int, task: int) -> Done | None:
        """Return the result of `task` of a run or compaction, None if it is not finished."""
        plain = self._json(_task(kind, number, task))
        return load_done(plain) if plain is not None else None

    def is_done(self, kind: str, number: int, task: int) -> bool:
        return self._is_there(_task(kind, number, task))

    def put_done(self, kind: str, number: int, done: Done) -> bool:
        """Write the result; return False if the task already had one."""
        return self._put(_task(kind, number, done.task), dump(done))

    def all_done(self, kind: str, number: int) -> dict[int, Done]:
        """Return existing results of a run's or compaction's tasks, by task."""
        prefix = f"{FOLDER}/{kind}/{number:020}/"
        names = (key.removeprefix(f"{FOLDER}/") for key in self.place.list(prefix))
        loaded = (load_done(self._there(name)) for name in names)
        return {done.task: done for done in loaded}

    def forget_done(self, kind: str, number: int, tasks: int) -> None:
        """Delete the results of this many tasks, without a listing, because it is called after each
        run."""
        self.place.delete([f"{FOLDER}/{_task(kind, number, task)}" for task in range(tasks)])

    def compaction(self, number: int) -> Compaction | None:
        plain = self._json(f"{COMPACTIONS}/{number:020}.json")
        if plain is None:
            return None
        return Compaction(plain["number"], tuple(load_files(group) for group in plain["groups"]))

    def intend_compaction(self, compaction: Compaction) -> Compaction:
        """Write the intent of `compaction`; return the existing one if another process was
        first."""
        number = compaction.number
        if self._put(f"{COMPACTIONS}/{number:020}.json", dump_json(asdict(compaction))):
            return compaction
        there = self.compaction(number)
        assert there is not None
        return there

    def read_replaced(self, number: int) -> tuple[list[str], list[FileFacts]] | None:
        """Return the paths that replacement `number` removed and the files it added, None if it
        does not exist."""
        plain = self._json(f"replaced/{number:020}.json")
        return (plain["old"], list(load_files(plain["new"]))) if plain else None

    def put_replaced(self, number: int, old: Sequence[str], new: Sequence[FileFacts]) -> bool:
        """Write the replacement; return False if it already existed."""
        plain = {"old": list(old), "new": [asdict(file) for file in new]}
        return self._put(f"replaced/{number:020}.json", dump_json(plain))

    def snapshot(self, number: int) -> TableSnapshot:
        """Read the snapshot. Raises FileNotFoundError."""
        plain = self._there(f"snapshots/{number:020}.json")
        return TableSnapshot(plain["run"], plain["compaction"], load_files(plain["files"]))

    def put_snapshot(self, snapshot: TableSnapshot) -> None:
        self._put(f"snapshots/{snapshot.run:020}.json", dump_json(asdict(snapshot)))

    def expiry(self) -> Expiry | None:
        plain = self._json("expiry.json")
        return Expiry(tuple(plain["snapshots"]), tuple(plain["files"])) if plain else None

    def put_expiry(self, expiry: Expiry | None) -> None:
        """Store pending deletions; None: they are done."""
        if expiry is None:
            self.place.delete([f"{FOLDER}/expiry.json"])
        else:
            self.place.put(f"{FOLDER}/expiry.json", dump_json(asdict(expiry)))

    def _is_there(self, name: str) -> bool:
        try:
            self.place.size(f"{FOLDER}/{name}")
        except FileNotFoundError:
            return False
        return True

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            return self._there(name)
        except FileNotFoundError:
            return None

    def _there(self, name: str) -> dict[str, Any]:
        key = f"{FOLDER}/{name}"
        return load_json(bytes(self.place.get(key)), self.place.where(key))

    def _put(self, name: str, data: bytes) -> bool:
        # Files are written if absent and never changed, except the hint. So any number of processes
        # may do the same work: the first write wins.
        try:
            self.place.put(f"{FOLDER}/{name}", data, if_absent=True)
        except FileExistsError:
            return False
        return True


def _task(kind: str, number: int, task: int) -> str:
    return f"{kind}/{number:020}/task-{task:06}.json"
