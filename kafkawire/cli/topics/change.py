"""`kafkawire topics add-partitions` and `delete-records`, against any Kafka broker."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, print_results, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT32, INT64, LOCAL, Json, Server, Topics, Yes
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.cli.shared.tables import print_table
from kafkawire.cli.shared.times import parse_time
from kafkawire.client.admin import create_partitions, delete_records, plan_deletion
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import (
    Partition,
    leaders,
)
from kafkawire.plural import count

PLAN = ("topic", "partition", "log_start", "new_log_start", "records")
"""`records` counts offsets: those of transaction markers and of compacted records have none."""


def add_partitions(
    names: Topics,
    total: Annotated[
        int | None, typer.Option(min=1, max=INT32, help="Number of partitions to have.")
    ] = None,
    by: Annotated[
        int | None, typer.Option("--by", min=1, max=INT32, help="Number of partitions to add.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check whether the broker would do it.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Add partitions to topics.

    Partitions cannot be removed again, and records of one key may go to another partition than
    before.

    Examples:

      kafkawire topics add-partitions orders --total 12

      kafkawire topics add-partitions orders clicks --by 2
    """
    if (total is None) == (by is None):
        given = "none" if total is None else "both"
        fail(OptionError("add-partitions", given, "exactly one of --total and --by"), 2)
    with connect_cluster(server) as cluster:
        before = {name: 0 for name in names}
        for name, _ in leaders(cluster, names):
            before[name] += 1
        totals = {name: total if by is None else has + by for name, has in before.items()}
        wanted = {name: number for name, number in totals.items() if number is not None}
        for name, number in wanted.items():
            if number > INT32:
                raise ClientError(f"topic {name} cannot have {number} partitions")
        results = create_partitions(cluster, wanted, validate_only=dry_run)
        rows: list[dict[str, Any]] = [
            {
                "topic": name,
                "before": before[name],
                "partitions": wanted[name],
                "error": error_text(result.code, result.message),
            }
            for name, result in results.items()
        ]
        title = "would add partitions" if dry_run else "added partitions"
        report(title, rows, ("topic", "before", "partitions"), as_json)


def delete(
    chosen: Annotated[list[str], typer.Argument(metavar="TOPIC[:0,1,...]...")],
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Delete what is before the first record from this time."),
    ] = None,
    before_offset: Annotated[
        int | None, typer.Option(min=0, max=INT64, metavar="N", help="Delete offsets below N.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Delete all records up to the log end.")
    ] = False,
    yes: Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Delete the oldest records of topics, and the space they take.

    Shows what will be deleted and asks, unless --yes is given. Deleted records cannot be restored.

    Examples:

      kafkawire topics delete-records orders --before -7d --dry-run

      kafkawire topics delete-records orders:0,1 --before-offset 1000 --yes
    """
    try:
        partitions = [parse_partitions("TOPIC", text) for text in chosen]
        if (before is not None) + (before_offset is not None) + everything != 1:
            allowed = "exactly one of --before, --before-offset and --all"
            raise OptionError("delete-records", "the end", allowed)
        now_ms = time.time_ns() // 1_000_000
        at_ms = None if before is None else parse_time("--before", before, now_ms)
        if not (yes or dry_run) and (as_json or not _at_terminal()):
            raise OptionError("delete-records", "no terminal to ask at", "--yes or --dry-run")
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster:
        led_by = select(cluster, partitions)
        rows: list[dict[str, Any]] = [
            {
                "topic": place[0],
                "partition": place[1],
                "log_start": start,
                "new_log_start": new,
                "records": new - start,
                "error": None,
            }
            for place, (start, new) in plan_deletion(cluster, led_by, at_ms, before_offset).items()
        ]
        records = sum(row["records"] for row in rows)
        if dry_run:
            print_results(rows, PLAN, f"{count(records, 'offset')} would be deleted", as_json)
            return
        if not yes:
            print_table(rows, PLAN, f"{count(records, 'offset')} will be deleted")
            if input("Delete them? [y/N] ").strip().lower() not in ("y", "yes"):
                fail("nothing was deleted")
        _delete(cluster, led_by, rows)
        report(f"{count(records, 'offset')} deleted", rows, PLAN, as_json)


def _at_terminal() -> bool:
    return sys.stdin.isatty()


def _delete(cluster: Cluster, led_by: dict[Partition, int], rows: list[dict[str, Any]]) -> None:
    """Delete the records before the new log start offsets, and put the results into the rows."""
    wanted = {(row["topic"], row["partition"]): row["new_log_start"] for row in rows}
    results = delete_records(cluster, wanted, led_by)
    for row in rows:
        code, start = results.get((row["topic"], row["partition"]), (0, row["new_log_start"]))
        row["error"] = error_text(code)
        row["new_log_start"] = row["log_start"] if code else start
