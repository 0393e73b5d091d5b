"""`kafkawire schedule list|show|why|cancel`: schedule topics of a running broker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless, print_results
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Json, Server, Wide, not_empty
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError, time_text
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import append
from kafkawire.client.schedules import describe_schedules
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.murmur2 import key_partition
from kafkawire.plural import count
from kafkawire.units import duration_ms

CANCELS = "kafkawire-cancels"
"""The header that cancels a record by its offset (docs/schedule.md)."""
LIST = (
    "topic",
    "target",
    "waiting",
    TableColumn("held", wrong=bool),
    "next_due",
    TableColumn("late_ms", "late", show=duration_ms),
    "delivered",
    TableColumn("undeliverable", wrong=bool),
)
PARTITIONS = ("partition", *LIST[2:], "followed", "log_end")
HOURS = ("hour", "records")
WHY = ("topic", "partition", "offset", "due", "held", TableColumn("reason", keep=True))

Topic = Annotated[str, typer.Argument(metavar="TOPIC", callback=not_empty)]


def _row(partitions: list[Any]) -> dict[str, Any]:
    """Return the sums of some partitions of a topic."""
    first = partitions[0]
    dues = [each.next_due_ms for each in partitions if each.next_due_ms >= 0]
    return {
        "topic": first.topic,
        "target": first.target_topic or f"header {first.target_header}",
        "waiting": sum(each.waiting for each in partitions),
        "held": sum(each.held for each in partitions),
        "next_due": time_text(min(dues)) if dues else None,
        "late_ms": max(each.late_ms for each in partitions),
        "delivered": sum(each.delivered for each in partitions),
        "undeliverable": sum(each.undeliverable for each in partitions),
    }


def _partition_row(each: Any) -> dict[str, Any]:
    more = {"partition": each.partition, "followed": each.followed, "log_end": each.log_end}
    return {**_row([each]), **more}


def list_schedules(server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """List schedule topics with the records that wait.

    Examples:
      kafkawire schedule list
    """
    with connect_cluster(server) as cluster:
        found = describe_schedules(cluster, None, details=False)
    topics: dict[str, list[Any]] = {}
    for each in found:
        topics.setdefault(each.topic, []).append(each)
    rows = [_row(partitions) for partitions in topics.values()]
    print_results(rows, LIST, count(len(rows), "schedule topic"), as_json, wide)


def show(topic: Topic, server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """Show the partitions of a schedule topic, and how many records are due in which hour.

    Examples:
      kafkawire schedule show later
    """
    with connect_cluster(server) as cluster:
        found = describe_schedules(cluster, topic, details=True)
    partitions = [_partition_row(each) for each in found]
    hours: dict[int, int] = {}
    for each in found:
        for hour in each.hours:
            hours[hour.start_ms] = hours.get(hour.start_ms, 0) + hour.records
    counted = [{"hour": time_text(at), "records": hours[at]} for at in sorted(hours)]
    if as_json:
        print_json({"topic": topic, "partitions": partitions, "hours": counted})
        return
    print_table(partitions, PARTITIONS, f"partitions of {topic}", wide)
    if counted:
        print_table(counted, HOURS, "records by the hour in which they are due", wide)


def why(topic: Topic, server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """Show records that are due and not delivered, with the reason.

    Exit code 0: there are none; 1: there are some.

    Examples:
      kafkawire schedule why later
    """
    with connect_cluster(server) as cluster:
        rows = list(_list_undelivered(describe_schedules(cluster, topic, details=True)))
    if rows or as_json:
        print_results(rows, WHY, f"not delivered from {topic}", as_json, wide)
    else:
        print(f"all records of {topic} that are due are delivered")
    fail_unless(not rows)


def _list_undelivered(partitions: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for each in partitions:
        for record in each.undelivered:
            yield {
                "topic": each.topic,
                "partition": each.partition,
                "offset": record.offset,
                "due": None if record.due_ms < 0 else time_text(record.due_ms),
                "held": record.held,
                "reason": record.reason,
            }


def cancel(
    topic: Topic,
    key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Cancel the record of this key.")
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(metavar="PARTITION:OFFSET", help="Cancel the record at this offset."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Cancel a record that waits in a schedule topic.

    By key only if the topic is compacted: the command writes a tombstone, as a producer would. By
    offset in any schedule topic.

    Examples:
      kafkawire schedule cancel open-orders --key order-17
      kafkawire schedule cancel later --record 0:4711
    """
    place = _place(key, record)
    now_ms = time.time_ns() // 1_000_000
    with connect_cluster(server) as cluster:
        partitions = describe_schedules(cluster, topic, details=False)
        if place is not None:
            index, offset = place
            name = f"{CANCELS}:{offset}".encode()  # a compacted topic takes no null keys
            made = Record(0, now_ms, name, b"", [(CANCELS, str(offset).encode())])
        else:
            assert key is not None
            if not partitions[0].compacted:
                text = f"the topic {topic} is not compacted: cancel its records with --record"
                raise ClientError(text)
            index = key_partition(key.encode(), len(partitions))
            made = Record(0, now_ms, key.encode(), None)
        where = (topic, index)
        leader = leaders(cluster, [topic]).get(where)
        if leader is None:
            raise ClientError(f"topic {topic} has no partition {index}")
        result = append(cluster, leader, {where: bytes(pack([made]))})[where]
        if result.code:
            raise ClientError(f"cancel: {result.message or result.code}")
    row = {"topic": topic, "partition": index, "key": key, "offset": place and place[1]}
    print_results([row], ("topic", "partition", "key", "offset"), "cancelled", as_json)


def _place(key: str | None, record: str | None) -> tuple[int, int] | None:
    """Return the partition and offset of --record; end with exit code 2 if options are wrong."""
    if (key is None) == (record is None):
        fail("one of --key and --record says which record to cancel", 2)
    if record is None:
        return None
    partition, colon, offset = record.partition(":")
    if not (colon and partition.isdecimal() and offset.isdecimal()) or len(record) > 30:
        fail(OptionError("--record", record, "PARTITION:OFFSET, such as 0:4711"), 2)
    return int(partition), int(offset)
