"""`kafkawire tier status|why|cost|pause|resume`: show and control the remote tier of a running
broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless
from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.parameters import LOCAL, EachPartition, Json, Server, Wide, not_empty
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.tier import pages, send_command
from kafkawire.plural import count
from kafkawire.units import ago, duration, money, size

STATUS = (
    "topic",
    "partition",
    "lag",
    TableColumn("error", keep=True, wrong=bool),
    "lag time",
    "lag bytes",
    "uploaded to",
    "log end",
    "last upload",
    "tiered",
    "log start",
    "local log start",
    "uploading to",
)
WHY = (
    "topic",
    "partition",
    "from",
    "to",
    TableColumn("reason", keep=True),
    TableColumn("waits", wrong=lambda text: text.endswith("(late)")),
    "bytes",
    "until",
    "detail",
)
Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", callback=not_empty, help="Show only this topic."),
]
REQUESTS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
COST = ("topic", TableColumn("cost", keep=True), "up", "down", *REQUESTS)


def status(
    topic: Topic = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include partitions that never had a record.")
    ] = False,
    verbose: EachPartition = False,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show the state of the remote tier and the upload progress of each topic, or with -v of each
    partition.

    Examples:
      kafkawire tier status
      kafkawire tier status --topic clicks -v --wide
    """
    with connect_cluster(server) as cluster:
        answers = list(pages(cluster, "status", topic=topic, all=every))
        tier = answers[-1]["tier"]
        rows = [row for answer in answers for row in answer["partitions"]]
        if as_json:
            print_json({"tier": tier, "partitions": rows})
            return
        print_tier(tier)
        now_ms = tier["now_ms"]
        if verbose:
            print_table([_status_row(row, now_ms) for row in rows], STATUS, "partitions", wide)
        else:
            print_table(
                by_topic(rows), _topic_columns(now_ms), "topics (-v shows partitions)", wide
            )


def why(
    topic: Topic = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Include completely uploaded partitions; empty partitions of internal topics "
            "only with --topic.",
        ),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show records that are not in the remote tier yet, with the reason.

    Exit code 0: no partition exceeds the tiering.max.lag.ms of its topic; 1: at least one does.

    Examples:
      kafkawire tier why
      kafkawire tier why --topic clicks --all
    """
    with connect_cluster(server) as cluster:
        answers = list(pages(cluster, "why", topic=topic, all=every))
    tier = answers[-1]["tier"]
    rows = [row for answer in answers for row in answer["pieces"]]
    late = sum(row["late"] for row in rows)
    if as_json:
        print_json({"tier": tier, "pieces": rows})
    else:
        if tier["error"]:
            print(f"{tier['url']}: {tier['error']}")
        if rows:
            title = "upload state of partitions" if every else "not in the remote tier yet"
            print_table([_why_row(row) for row in rows], WHY, title, wide)
        else:
            print("all records are in the remote tier")
        if late:
            exceed = "exceeds" if late == 1 else "exceed"
            print(f"{late} of these {exceed} the tiering.max.lag.ms of the topic")
    fail_unless(not late)


def cost(server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """Show requests, bytes and cost by topic, for this month and since the start.

    Examples:
      kafkawire tier cost
    """
    with connect_cluster(server) as cluster:
        answer = send_command(cluster, "cost")
        if as_json:
            print_json(answer)
            return
        currency, storage = answer["currency"], answer["storage"]
        rows = [_cost_row(row) for row in answer["topics"]]
        stored = {"topic": "(storage)", "up": size(storage["bytes"])}
        rows.append({**stored, "cost": money(storage["cost"])})
        rows.append({"topic": "(all)", "cost": money(answer["cost"])})
        print_table(rows, COST, f"{answer['month']}, in {currency} by {answer['prices']}", wide)
        month = money(storage["cost_of_a_month"])
        print(f"stored now: {size(storage['bytes'])}, {month} {currency} a month")
        if answer["budget"] is None:
            budget_set = "kafkawire configs set tier.budget.month=AMOUNT --brokers-default"
            print(f"no budget; to set one: {budget_set}")
        else:
            budget = f"{answer['budget']:g} {currency}"
            print(f"monthly budget: {budget}, {answer['budget_percent']} % spent")


def pause(server: Server = LOCAL, as_json: Json = False) -> None:
    """Pause uploads and deletions until `resume`.

    Reads continue. The pause survives a restart.

    Examples:
      kafkawire tier pause
    """
    _set_paused(server, "pause", as_json)


def resume(server: Server = LOCAL, as_json: Json = False) -> None:
    """Resume uploads and deletions after `pause`.

    Examples:
      kafkawire tier resume
    """
    _set_paused(server, "resume", as_json)


def _set_paused(server: str, name: str, as_json: bool) -> None:
    with connect_cluster(server) as cluster:
        answer = send_command(cluster, name)
        if as_json:
            print_json(answer)
        elif answer["paused"]:
            print("uploads and deletions are paused; to resume: kafkawire tier resume")
        else:
            print("uploads and deletions are resumed")


def print_tier(tier: Mapping[str, Any]) -> None:
    """Print the state of the tier as a whole."""
    now_ms = tier["now_ms"]
    print(f"{tier['url']}: {tier['error'] or tier['state']}")
    uploads = f"{count(tier['uploads'], 'object')}, {size(tier['uploaded_bytes'])}"
    print(
        f"  owner epoch {tier['owner_epoch']}, manifest {tier['manifest_sequence']}; "
        f"uploaded since the start: {uploads}; waiting: {tier['segments_waiting']}"
    )
    last = f"  last upload {ago(tier['last_upload_ms'], now_ms)}"
    if tier["last_error"]:
        last += f"; last error {ago(tier['last_error_ms'], now_ms)}: {tier['last_error']}"
    print(last)
    _print_log_objects(tier["log_objects"])
    if tier["promises_missed"]:
        print(f"  over their tiering.max.lag.ms: {', '.join(tier['promises_missed'])}")


def _print_log_objects(found: Mapping[str, Any]) -> None:
    """Print how many log objects are needed, and where; nothing if there never were any."""
    places = found["unreleased"]
    if found["stored"] or places:
        print(
            f"  log objects: {count(sum(places.values()), 'object')} of "
            f"{size(found['unreleased_bytes'])} not released, stored since the start: "
            f"{found['stored']}"
        )
    for url, number in sorted(places.items()):
        print(f"    {count(number, 'object')} in {url}")
    if found["refusal"]:
        print(f"  produces with durability=s3 are refused: {found['refusal']}")


def by_topic(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each topic: sums, the longest wait, the last upload, the first error."""
    topics: dict[str, dict[str, Any]] = {}
    for row in rows:
        topic = topics.setdefault(
            row["topic"],
            {"topic": row["topic"], "partitions": 0, "tiered": row["tiered"], "lag": 0,
             "lag_bytes": 0, "lag_s": 0.0, "last_upload_ms": None, "error": None},
        )  # fmt: skip
        topic["partitions"] += 1
        topic["lag"] += row["lag_records"]
        topic["lag_bytes"] += row["lag_bytes"]
        topic["lag_s"] = max(topic["lag_s"], row["lag_s"])
        topic["last_upload_ms"] = max(topic["last_upload_ms"] or 0, row["last_upload_ms"] or 0)
        topic["error"] = topic["error"] or row["error"]
    return list(topics.values())


def _topic_columns(now_ms: int) -> list[TableColumn]:
    return [
        TableColumn("topic", keep=True),
        TableColumn("partitions"),
        TableColumn("tiered"),
        TableColumn("lag", keep=True),
        TableColumn("lag_bytes", show=size),
        TableColumn("lag_s", "lag time", show=duration),
        TableColumn("last_upload_ms", "last upload", show=lambda at: ago(at, now_ms)),
        TableColumn("error", wrong=bool),
    ]


def _status_row(row: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    return {
        **row,
        "log start": row["log_start"],
        "local log start": row["local_log_start"],
        "uploaded to": row["commit"],
        "uploading to": row["dispatch"],
        "log end": row["high_watermark"],
        "lag": row["lag_records"],
        "lag bytes": size(row["lag_bytes"]),
        "lag time": duration(row["lag_s"]),
        "last upload": ago(row["last_upload_ms"], now_ms),
    }


def _why_row(row: Mapping[str, Any]) -> dict[str, Any]:
    until = None
    if row["until_ms"] is not None:
        at = datetime.fromtimestamp(row["until_ms"] / 1000, UTC)
        until = f"{at:%H:%M:%S}Z (in {duration(row['until_s'])})"
    elif row["reason"] == "paused":
        until = "kafkawire tier resume"
    waits = None if row["waits_s"] is None else duration(row["waits_s"])
    if row["late"]:
        waits = f"{waits} (late)"
    detail = row["detail"]
    if row["segments"] > 1:
        detail = count(row["segments"], "segment") + (f", {detail}" if detail else "")
    numbers = {"bytes": size(row["bytes"]), "waits": waits, "until": until}
    return {**row, **numbers, "detail": detail or None}


def _cost_row(row: Mapping[str, Any]) -> dict[str, Any]:
    requests = {kind: f"{row['requests'].get(kind, 0):.6g}" for kind in REQUESTS}
    transfer = {"up": size(row["in_bytes"]), "down": size(row["out_bytes"])}
    return {"topic": row["topic"], **requests, **transfer, "cost": money(row["cost"])}
