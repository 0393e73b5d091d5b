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

Each has a checksum: one flipped bit in a digit would be other offsets. Numbers have 20 digits. All
except the hint are written if absent and never changed, so that any number of processes may do the
same work: the first write wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkawire_spark.pipeline.jobs.runs import (
    Done,
    FileFacts,
    Run,
    RunRecord,
    dump,
    dump_json,
    load_done,
    load_files,
    load_json,
    load_record,
    load_run,
)

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

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

    def settled(self, hint: Hint) -> None:
        self.place.put(f"{FOLDER}/latest.json", dump_json(hint._asdict()))

    def table(self) -> dict[str, Any] | None:
        """Read the description written by `describe`; None for a new table."""
        return self._json("table.json")

    def describe(self, plain: Mapping[str, Any], *, new: bool) -> None:
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

    def record(self, number: int) -> RunRecord | None:
        plain = self._json(f"commits/{number:020}.json")
        return load_record(plain) if plain is not None else None

    def has_record(self, number: int) -> bool:
        return self._is_there(f"commits/{number:020}.json")

    def put_record(self, record: RunRecord) -> bool:
        """Write the record; return False if the run already had one."""
        return self._put(f"commits/{record.run:020}.json", dump(record))

    def records(self, first: int = 1) -> Iterator[RunRecord]:
        """Return the records of runs from `first` on, in order."""
        while (record := self.record(first)) is not None:
            yield record
            first += 1

    def last_record(self) -> int:
        """Return the number of the newest record, 0 if there is none."""
        number = self.hint().run
        while self.has_record(number + 1):
            number += 1
        return number

    def done(self, kind: str, number: int, task: int) -> Done | None:
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

    def replaced(self, number: int) -> tuple[list[str], list[FileFacts]] | None:
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
        """Return pending deletions."""
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
        try:
            self.place.put(f"{FOLDER}/{name}", data, if_absent=True)
        except FileExistsError:
            return False
        return True


def _task(kind: str, number: int, task: int) -> str:
    return f"{kind}/{number:020}/task-{task:06}.json"
