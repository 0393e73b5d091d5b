"""`kafkawire topics copy SOURCE TARGET`: copy a topic, within a cluster or to another one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.options import parse_choice
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Json, Server, not_empty
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.address import parse_servers
from kafkawire.client.admin import create_topic, topic_settings
from kafkawire.client.cluster import Cluster
from kafkawire.client.copying import Copier, PartitionCopy, record_at
from kafkawire.client.errors import ClientError
from kafkawire.client.lag import known_leaders
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
    leaders,
    list_offsets,
    partition_text,
    partitions_text,
)
from kafkawire.client.producer import Failure, Producer
from kafkawire.plural import count

ISOLATION_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
TIMESTAMP_TYPE = "message.timestamp.type"
APPEND_TIME = "LogAppendTime"
CREATION_S, CREATION_POLL_S = 15.0, 0.1
"""Time limit and interval of the wait for the leaders of a new topic."""
COLUMNS = ("partition", "records", "from_offset", "to_offset", "same_offsets")


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", callback=not_empty)],
    target: Annotated[str, typer.Argument(metavar="TARGET", callback=not_empty)],
    to_server: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Broker of another cluster to copy to."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a copy that was interrupted.")
    ] = False,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation-level",
            metavar="LEVEL",
            help="read_committed, or read_uncommitted with records of aborted and open "
            "transactions.",
        ),
    ] = "read_committed",
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Copy the records of a topic: keys, values, headers, timestamps, order and partitions.

    Copies up to the log end offsets of the start. A target that does not exist is created with the
    partitions and settings of the source; one that has records is refused, unless --resume is
    given. Offsets are the same if the source begins at 0 and has no gaps; the result says so.

    Examples:

      kafkawire topics copy orders orders-copy

      kafkawire topics copy orders orders --to-server other:9092 --resume
    """
    try:
        level = ISOLATION_LEVELS[parse_choice("--isolation-level", isolation, [*ISOLATION_LEVELS])]
        if source == target and to_server is None:
            raise OptionError("TARGET", target, "another topic than SOURCE, or in --to-server")
        if to_server is not None:
            parse_servers("--to-server", to_server)
    except (OptionError, ClientError) as error:
        fail(error, 2)
    with connect_cluster(server) as here, connect_cluster(to_server or server) as there:
        if source == target and here.metadata([]).cluster_id == there.metadata([]).cluster_id:
            raise ClientError(f"{target} is in the same cluster: it would be copied to itself")
        led_by = leaders(here, [source])
        starts, ends = _range(here, led_by, level)
        targets, made = _target(here, there, source, target, len(led_by))
        parts = _parts(led_by, starts, ends, target)
        producer = Producer(there, failed=_end_copy)
        copier = Copier(here, producer, isolation=level)
        if not made:
            _begin(there, targets, parts, copier, resume)
        _run(copier, producer, parts)
        _report(source, target, parts, starts, made, as_json)


def _end_copy(failure: Failure) -> None:
    """End the copy at the first record that is not stored: order would be lost."""
    raise ClientError(
        f"the copy ended at offset {failure.numbers[0]} of the source: {failure.reason} "
        "(continue with --resume)"
    )


def _range(
    cluster: Cluster, led_by: Mapping[Partition, int], level: int
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    starts = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
    ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by, level)
    for place in led_by:
        if place not in ends:
            raise ClientError(f"{partition_text(place)} has no leader")
    return starts, ends


def _target(
    here: Cluster, there: Cluster, source: str, target: str, partitions: int
) -> tuple[dict[Partition, int], bool]:
    """Return the leaders of the target, and whether it was created."""
    settings = topic_settings(here, source)
    targets = known_leaders(there, [target])
    if not targets:
        settings.pop(TIMESTAMP_TYPE, None)  # timestamps of the source are kept
        create_topic(there, target, partitions, settings)
        return _new_leaders(there, target), True
    if len(targets) < partitions:
        raise ClientError(
            f"{target} has {count(len(targets), 'partition')}, {source} has {partitions}: records "
            "keep their partition, so the target needs as many"
        )
    if topic_settings(there, target).get(TIMESTAMP_TYPE) == APPEND_TIME:
        raise ClientError(
            f"{target} has {TIMESTAMP_TYPE}={APPEND_TIME}, which would replace the timestamps"
        )
    return targets, False


def _new_leaders(there: Cluster, target: str) -> dict[Partition, int]:
    """Return the leaders of a new topic: Apache Kafka answers before its brokers know it."""
    deadline = time.monotonic() + CREATION_S
    while True:
        found = known_leaders(there, [target])
        if found and min(found.values()) >= 0:
            return found
        if time.monotonic() > deadline:
            raise ClientError(f"{target} was created, but has no leaders after {CREATION_S:g} s")
        time.sleep(CREATION_POLL_S)


def _parts(
    led_by: Mapping[Partition, int],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    target: str,
) -> list[PartitionCopy]:
    return [
        PartitionCopy(place, (target, place[1]), led_by[place], starts[place], ends[place])
        for place in sorted(led_by)
    ]


def _begin(
    there: Cluster,
    targets: Mapping[Partition, int],
    parts: list[PartitionCopy],
    copier: Copier,
    resume: bool,
) -> None:
    """Check that the target is empty, or with `resume` that it has the first records of the source,
    and skip those."""
    starts = list_offsets(there, dict.fromkeys(targets, EARLIEST), targets)
    ends = list_offsets(there, dict.fromkeys(targets, LATEST), targets)
    used = [place for place in sorted(targets) if ends.get(place, 0) > 0]
    if used and not resume:
        raise ClientError(
            f"the target has records in {', '.join(partitions_text(used))}: copy to a new topic, "
            "or continue an interrupted copy with --resume"
        )
    for part in parts:
        stored = ends.get(part.target, 0)
        if not stored:
            continue
        name = partition_text(part.target)
        if starts[part.target] > 0:
            raise ClientError(f"{name} has lost its first records, so the copy cannot be continued")
        last = copier.skip_records(part, stored)
        there_last = record_at(there, targets[part.target], part.target, stored - 1)
        if last is None or there_last is None or not _same(last, there_last):
            raise ClientError(
                f"{name} does not have the first {count(stored, 'record')} of "
                f"{partition_text(part.source)}, so the copy cannot be continued"
            )


def _same(one: Any, other: Any) -> bool:
    return (one.timestamp, one.key, one.value, list(one.headers)) == (
        other.timestamp,
        other.key,
        other.value,
        list(other.headers),
    )


def _run(copier: Copier, producer: Producer, parts: list[PartitionCopy]) -> None:
    begun = sum(part.position for part in parts)
    whole = sum(part.end for part in parts) - begun
    with bars() as progress:
        waiting = [part for part in parts if not part.done]
        while waiting:
            for part in waiting:
                copier.step(part)
            progress("offsets copied", sum(part.position for part in parts) - begun, whole)
            waiting = [part for part in waiting if not part.done]
        producer.flush()


def _report(
    source: str,
    target: str,
    parts: list[PartitionCopy],
    starts: Mapping[Partition, int],
    made: bool,
    as_json: bool,
) -> None:
    rows = [
        {
            "partition": part.source[1],
            "records": part.copied,
            "skipped": part.skipped,
            "from_offset": starts[part.source],
            "to_offset": part.end,
            "same_offsets": part.same_offsets,
        }
        for part in parts
    ]
    copied = sum(part.copied for part in parts)
    same = all(part.same_offsets for part in parts)
    if as_json:
        print_json(
            {
                "source": source,
                "target": target,
                "created": made,
                "records": copied,
                "same_offsets": same,
                "partitions": rows,
            }
        )
        return
    print_table(rows, COLUMNS, f"{count(copied, 'record')} copied from {source} to {target}")
    if same:
        print("Every record has the same offset in both.")
    else:
        print(
            "Offsets differ: the source has offsets without a record (deleted, compacted,\n"
            "transaction markers). Committed offsets of groups do not fit the copy."
        )
