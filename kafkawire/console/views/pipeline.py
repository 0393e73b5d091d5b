"""Tables of pipelines: their job, last runs, and lag, from the state that each table has in its
folder `_kafkawire/` (kafkawire_spark.pipeline.jobs.state); Spark is not needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkawire.codec.format_errors import FormatError
from kafkawire.console.views.snapshot import ClusterSnapshot
from kafkawire.manifest.sealed_json import unseal

if TYPE_CHECKING:
    from kafkawire.reading.files.locations import Place

STATE = "_kafkawire"
SEALED_SINCE = 2
MAX_RUNS = 10
"""The last runs of a table that are shown."""
MAX_AHEAD = 64
"""Runs that are looked for after those that the hint of a table names."""
MAX_RECORD_BYTES = 16 << 20
"""A record of a run that is larger is not read."""


class RunRow(NamedTuple):
    """A committed run. `reasons`: offsets without a row by reason; `unexplained`: those without a
    row and a reason, 0 unless there is a defect."""

    number: int
    at_ms: int
    seconds: float
    offsets: int
    rows: int
    dead: int
    reasons: Mapping[str, int]
    unexplained: int


class TableRuns(NamedTuple):
    """A table. `lag`: by topic, offsets that no run has read, None if its log end is not known;
    `begun`: the number of a run that is in progress or was killed; `error`: why it is not shown."""

    url: str
    job: str
    runs: Sequence[RunRow]
    lag: Mapping[str, int | None]
    begun: int | None
    error: str


def describe_tables(urls: Sequence[str], snapshot: ClusterSnapshot | None) -> list[TableRuns]:
    """Return the tables at these URLs, each with what is wrong with it."""
    from kafkawire.reading.files.open import open_place
    from kafkawire.reading.model.source import SourceError

    found: list[TableRuns] = []
    for url in urls:
        try:
            found.append(_describe(open_place(url, "table"), url, snapshot))
        except FileNotFoundError:
            error = f"{url} is no table of a pipeline that has run"
            found.append(TableRuns(url, "", [], {}, None, error))
        except (SourceError, FormatError, KeyError, TypeError, ValueError) as failure:
            found.append(TableRuns(url, "", [], {}, None, f"{url} cannot be read: {failure}"))
    return found


def _describe(place: Place, url: str, snapshot: ClusterSnapshot | None) -> TableRuns:
    last = _find_last(place)
    records = list(_read_records(place, last))
    if not records:
        raise FileNotFoundError
    # After the results of the last run's tasks, which may still be there.
    intent = place.first_key(f"{STATE}/runs/", f"{STATE}/runs/{last:020}/~")
    return TableRuns(
        url,
        str(records[0]["job"]),
        [_run(record) for record in records],
        _lag(records[0]["ends"], snapshot),
        None if intent is None else int(intent.split("/")[2].removesuffix(".json")),
        "",
    )


def _key(kind: str, number: int) -> str:
    return f"{STATE}/{kind}/{number:020}.json"


def _json(place: Place, key: str) -> dict[str, Any]:
    """Return a file of the state. FileNotFoundError, FormatError; ValueError if it is too large."""
    if place.size(key) > MAX_RECORD_BYTES:
        raise ValueError(f"{key} has more than {MAX_RECORD_BYTES} bytes")
    return unseal(place.get(key), key, SEALED_SINCE, "version")


def _find_last(place: Place) -> int:
    """Return the number of the last committed run; 0 if there is none."""
    try:
        last = int(_json(place, f"{STATE}/latest.json")["run"])
    except FileNotFoundError:
        last = 0
    for _ in range(MAX_AHEAD):
        key = place.first_key(f"{STATE}/commits/", _key("commits", last))
        if key is None:
            break
        last = int(key.rpartition("/")[2].removesuffix(".json"))
    return last


def _read_records(place: Place, last: int) -> Iterator[dict[str, Any]]:
    """Yield the records of the last runs, the newest first."""
    for number in range(last, max(0, last - MAX_RUNS), -1):
        try:
            yield _json(place, _key("commits", number))
        except FileNotFoundError:  # it was given up
            continue


def _run(record: Mapping[str, Any]) -> RunRow:
    reasons: Counter[str] = Counter()
    offsets = rows = dead = 0
    for share in record["shares"]:
        _, _, base, end = share["range"]
        offsets += end - base
        rows += share["rows"]
        dead += share["dead"]
        reasons.update(share["counts"])
    left = offsets - rows - dead - reasons.total()
    return RunRow(
        record["run"], record["at_ms"], record["seconds"], offsets, rows, dead, dict(reasons), left
    )


def _lag(
    ends: Mapping[str, Mapping[str, int]], snapshot: ClusterSnapshot | None
) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for topic, read in ends.items():
        state = None if snapshot is None else snapshot.topics.get(topic)
        found[topic] = (
            None
            if state is None
            else sum(
                max(0, (row.log_end or 0) - read.get(str(row.partition), row.log_start or 0))
                for row in state.partitions
            )
        )
    return found
