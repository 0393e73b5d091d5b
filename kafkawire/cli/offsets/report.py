"""`kafkawire offsets describe|validate|stats TOPIC`: the offsets of a topic of any Kafka broker.

`stats --source DIR` reads the metadata of a data folder instead, broker running or not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.data_folder import open_metadata
from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless, print_results
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, BrokerOrFolder, Json, Server, Wide, not_empty
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.cli.shared.source import folder_or_server
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.admin import effective_setting
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError, check
from kafkawire.client.fetching import fetch_next
from kafkawire.client.notation import OptionError, time_text
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    Partition,
    fetch_committed_offsets,
    list_offsets,
)
from kafkawire.codec.batches import CONTROL
from kafkawire.offsets.catalog.port import DELETING, LIVE, STARTED
from kafkawire.offsets.catalog.sql.statements import metrics
from kafkawire.offsets.catalog.sql.statements import stats as select_stats
from kafkawire.offsets.integration import LiveSource
from kafkawire.offsets.registry import total_lag
from kafkawire.offsets.subscription import Seeker
from kafkawire.offsets.types import OffsetOutOfRange
from kafkawire.units import size

# Offsets stored in the metadata of a data folder, whether its broker runs or not.
#
# SQLite only, read-only: nothing is created or migrated.


StoredFolder = Annotated[str, typer.Option("--source", metavar="DIR", help="Data folder to read.")]
STORED = (
    "partition",
    "log_start",
    "checkpoint_offset",
    "records_in_segments",
    TableColumn("bytes_in_segments", show=size),
    "segments",
    TableColumn("last_activity_ms", "last activity", show=time_text),
    "number",
)
METRICS = (
    "checkpoints",
    "mappings",
    "segments_live",
    TableColumn("size_bytes", "size", show=size),
    TableColumn("live_bytes", "live", show=size),
    "segments_started",
    "segments_deleting",
)


def stored_stats(data: str, topic: str, indexes: list[int] | None = None) -> list[dict[str, Any]]:
    """Rows with the stored state of each partition of a topic, or of some; times in ms since
    1970."""
    with open_metadata(data) as session:
        found = session.rows(
            "SELECT p.idx, p.number FROM partitions p JOIN topics t ON t.id = p.topic_id"
            " WHERE t.name = ? AND t.deleted_ms IS NULL ORDER BY p.idx",
            (topic,),
        )
        if not found:
            raise ClientError(f"{data} has no topic {topic}")
        absent = set(indexes or ()) - {index for index, _ in found}
        if absent:
            raise ClientError(f"topic {topic} has no partition {min(absent)}")
        if indexes is not None:
            found = [row for row in found if row[0] in indexes]
        rows = select_stats(session, [number for _, number in found])
    return [
        {
            "partition": index,
            "number": number,
            "checkpoint_offset": _none_if_negative(rows[number].checkpoint_offset),
            "log_start": rows[number].log_start,
            "segments": rows[number].mappings,
            "records_in_segments": rows[number].records,
            "bytes_in_segments": rows[number].size_bytes,
            "last_activity_ms": _none_if_negative(rows[number].last_activity_ms),
        }
        for index, number in found
    ]


def show_metrics(source: StoredFolder, as_json: Json = False, wide: Wide = False) -> None:
    """Show number and size of the stored checkpoints, mappings and segments.

    Examples:
      kafkawire offsets metrics --source kafkawire-data
    """
    if not os.path.isdir(source):
        fail(OptionError("--source", source, "a data folder"), 2)
    try:
        with open_metadata(source) as session:
            found = metrics(session)
    except ClientError as error:
        fail(error)
    names = {STARTED: "started", LIVE: "live", DELETING: "deleting"}
    row: dict[str, Any] = {"checkpoints": found.checkpoints, "mappings": found.mappings}
    row |= {f"segments_{name}": found.segments.get(state, 0) for state, name in names.items()}
    row |= {"size_bytes": found.size_bytes, "live_bytes": found.live_bytes}
    if as_json:
        print_json(row)
    else:
        print_table([row], METRICS, f"{source}, stored offsets", wide)


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value


DESCRIBE_LOG_DIRS = 35
Partitions = Annotated[str, typer.Argument(metavar="TOPIC[:0,1,4-6]")]
VALIDATED = (
    "partition",
    "read_to",
    "records",
    TableColumn("bytes", show=size),
    TableColumn("problems", keep=True, wrong=bool),
    "missing",
    "contiguous",
    "batches",
)
SIZED = (
    "partition",
    "log_start",
    "log_end",
    "offsets",
    TableColumn("bytes", show=size),
    TableColumn("bytes_per_offset", show=size),
)
PROBLEMS_SHOWN = 20
"""Problems listed per partition."""


def describe(
    topic: Partitions,
    group: Annotated[
        str | None,
        typer.Option(callback=not_empty, help="Also show committed offsets and lag of this group."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show the log start offset and the log end offset of each partition.

    Examples:
      kafkawire offsets describe orders
      kafkawire offsets describe orders:0,4-6 --group kitchen
    """
    name, indexes = _parse_topic_option(topic)

    with connect_cluster(server) as cluster:
        led_by = select(cluster, [(name, indexes)])
        low = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
        high = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
        known = fetch_committed_offsets(cluster, group) if group is not None else {}
        rows = []
        for place in sorted(led_by):
            at = known[place][0] if place in known else None
            end = high.get(place)
            row: dict[str, Any] = {
                "partition": place[1],
                "log_start": low.get(place),
                "log_end": end,
                "offsets": None if end is None else end - low[place],
            }
            if group is not None:
                lag = None if at is None or end is None else total_lag([(at, end)])
                row |= {"committed": at, "lag": lag}
            rows.append(row)
        print_results(rows, tuple(rows[0]), f"{name}, offsets", as_json, wide)


INT64_DIGITS = 19


@dataclass(slots=True)
class Walk:
    """Findings from reading all batch heads of a partition."""

    next_offset: int
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    missing: int = 0  # offsets without a batch or a record
    epoch: int = -1
    problems: list[str] = field(default_factory=list)

    def problem(self, sentence: str) -> None:
        """Record one problem."""
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(sentence)


def parse_range(text: str) -> tuple[int, int]:
    """Parse `START..END`, END exclusive. Raises OptionError."""
    start, dots, end = text.partition("..")
    digits = start.isdecimal() and end.isdecimal() and len(max(start, end, key=len)) <= INT64_DIGITS
    if not dots or not digits or int(start) > int(end):
        raise OptionError(
            "--range", text, "START..END, two offsets, the second one exclusive and not lower"
        )
    return int(start), int(end)


def _parse_topic_option(text: str) -> tuple[str, list[int] | None]:
    try:
        return parse_partitions("TOPIC", text)
    except OptionError as error:
        fail(error, 2)


def validate(
    topic: Partitions,
    offsets: Annotated[
        str | None,
        typer.Option(
            "--range", metavar="START..END", help="Offset range to read; all of it must exist."
        ),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Read every batch and check offsets, checksums and leader epochs.

    Offsets must be contiguous (except in compacted topics) and leader epochs must not decrease.
    Exit code 0: valid, 1: not.

    Examples:
      kafkawire offsets validate orders
      kafkawire offsets validate orders:0 --range 100..200
    """
    try:
        wanted = None if offsets is None else parse_range(offsets)
    except OptionError as error:
        fail(error, 2)
    name, indexes = _parse_topic_option(topic)

    with connect_cluster(server) as cluster:
        led_by = select(cluster, [(name, indexes)])
        gaps_allowed = "compact" in effective_setting(cluster, name, "cleanup.policy")
        rows = []
        for place in sorted(led_by):
            walk = _walk(cluster, place, led_by, wanted, gaps_allowed)
            rows.append(
                {
                    "partition": place[1],
                    "read_to": walk.next_offset,
                    "batches": walk.batches,
                    "records": walk.records,
                    "bytes": walk.size_bytes,
                    "missing": walk.missing,
                    "contiguous": walk.missing == 0,
                    "problems": walk.problems,
                }
            )
        print_results(rows, VALIDATED, f"{name}, validated", as_json, wide)
        fail_unless(not any(row["problems"] for row in rows))


def _walk(
    cluster: Cluster,
    place: Partition,
    led_by: dict[Partition, int],
    wanted: tuple[int, int] | None,
    gaps_allowed: bool,
) -> Walk:
    source = LiveSource(cluster, place, led_by)
    start, end = wanted or (source.log_start(), source.high_watermark())
    walk = Walk(start)
    try:
        Seeker(source).check_range(start, end)
    except OffsetOutOfRange as error:
        walk.problem(str(error))
        return walk
    while walk.next_offset < end:
        try:
            got, _ = fetch_next(cluster, led_by[place], place, walk.next_offset)
        except ClientError as error:
            walk.problem(str(error))
            return walk
        before = walk.next_offset
        for position, head in got.batches():
            if not got.sound(position, head):
                walk.problem(f"the batch at offset {head.base_offset} has a CRC mismatch")
            _enter(walk, head, gaps_allowed)
        if walk.next_offset == before:
            walk.problem(f"no batch at offset {before}, below the log end offset {end}")
            return walk
    return walk


def _enter(walk: Walk, head: Any, gaps_allowed: bool) -> None:
    """Check that the next batch begins at the expected offset and has one record per offset."""
    first = walk.batches == 0  # the first may begin below the log start
    if head.base_offset < walk.next_offset and not first:
        walk.problem(
            f"offset {head.base_offset} follows {walk.next_offset - 1}: offsets do not rise"
        )
    gap = max(0, head.base_offset - walk.next_offset)
    if gap and not gaps_allowed:
        walk.problem(f"offsets {walk.next_offset}..{head.base_offset - 1} are missing")
    lost = head.last_delta + 1 - head.count
    if lost and not gaps_allowed and not head.attributes & CONTROL:
        walk.problem(f"the batch at offset {head.base_offset} has {head.count} records "
                     f"for {head.last_delta + 1} offsets")  # fmt: skip
    if head.leader_epoch < walk.epoch:
        walk.problem(f"leader epoch {head.leader_epoch} at offset {head.base_offset} is below "
            f"the previous one, {walk.epoch}")  # fmt: skip
    walk.epoch = max(walk.epoch, head.leader_epoch)
    walk.missing += gap + lost
    walk.batches += 1
    walk.records += head.count
    walk.size_bytes += head.size_bytes
    walk.next_offset = max(walk.next_offset, head.last_offset + 1)


def stats(
    topic: Partitions,
    source: BrokerOrFolder = "",
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show offsets and size of each partition.

    With a data folder as --source: its stored offset metadata, whether its broker runs or not.

    Examples:
      kafkawire offsets stats orders
      kafkawire offsets stats orders --source kafkawire-data
    """
    name, indexes = _parse_topic_option(topic)
    folder, server = folder_or_server(source, server)
    if folder is not None:
        from kafkawire.cli.offsets.report import STORED, stored_stats

        try:
            rows = stored_stats(folder, name, indexes)
        except ClientError as error:
            fail(error)
        print_results(rows, STORED, f"{name} in {folder}", as_json, wide)
        return

    with connect_cluster(server) as cluster:
        led_by = select(cluster, [(name, indexes)])
        low = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
        high = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
        sizes = _sizes(cluster, name, set(led_by.values()))
        rows = []
        for place in sorted(led_by):
            count = high[place] - low[place] if place in high else None
            stored = sizes.get(place)
            rows.append(
                {
                    "partition": place[1],
                    "log_start": low.get(place),
                    "log_end": high.get(place),
                    "offsets": count,
                    "bytes": stored,
                    "bytes_per_offset": round(stored / count) if stored and count else None,
                }
            )
        print_results(rows, SIZED, f"{name}, statistics", as_json, wide)


def _sizes(cluster: Cluster, topic: str, nodes: set[int]) -> dict[Partition, int]:
    from kafkawire.messages.describe_log_dirs import (
        DescribableLogDirTopic,
        DescribeLogDirsRequest,
    )

    indexes = [
        row.partition_index
        for entry in cluster.metadata([topic]).topics
        for row in entry.partitions
    ]
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic, indexes)])
    found: dict[Partition, int] = {}
    for node in sorted(node for node in nodes if node >= 0):
        for folder in cluster.node(node).request(DESCRIBE_LOG_DIRS, asked).results:
            check(f"log directories of broker {node}", folder.error_code)
            for entry in folder.topics:
                for row in entry.partitions:
                    found[entry.name, row.partition_index] = row.partition_size
    return found
