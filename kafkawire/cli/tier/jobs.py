"""`kafkawire tier scrub|move`: start and watch background jobs of a running broker.

Ending the command does not end the work.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outage import Outage
from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Json, Server, not_empty
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.tier import send_command
from kafkawire.objectstore.url import parse_tier
from kafkawire.plural import count
from kafkawire.units import duration_ms, size

WATCH_S = 0.5


def scrub(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Delete orphaned objects and repair damage where possible."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every object and verify its checksums.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="With --repair: skip batches of which no copy is left."),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Compare the bucket with the broker's metadata. Exit code 0: they agree, 1: they do not.

    With --skip-lost consumers skip lost batches, and `pipeline audit` explains the gaps.

    Examples:
      kafkawire tier scrub
      kafkawire tier scrub --repair --deep
    """

    if skip_lost and not repair:
        fail("--skip-lost changes data: use it together with --repair", 2)
    with connect_cluster(server) as cluster:
        answer = send_command(cluster, "scrub", repair=repair, deep=deep, skip_lost=skip_lost)
        outage = Outage(cluster)
        with bars() as progress:
            while answer["state"] == "scrubbing":
                if answer["what"]:
                    progress(answer["what"], answer["done"], answer["of"])
                answer = _next(cluster, outage, "scrub")
        if answer["state"] != "done":
            raise ClientError(
                f"tier scrub: {answer.get('error', 'the broker was restarted; run it again')}"
            )
        if as_json:
            print_json({name: value for name, value in answer.items() if name != "state"})
        else:
            _show_scrub(answer)
        findings = answer["findings"]
        fail_unless(all(each["action"] for each in findings) and (repair or not findings))


def _next(cluster: Cluster, outage: Outage, job: str) -> dict[str, Any]:
    """Return the state of a job after a while, also if the broker is restarted meanwhile."""
    time.sleep(WATCH_S)
    while True:
        try:
            answer = send_command(cluster, job, watch=True)
        except ClientError as error:
            outage.handle_failure(error)
        else:
            outage.note_success()
            return answer


def _show_scrub(report: dict[str, Any]) -> None:
    counts = (
        f"{count(report['objects'], 'object')}, {size(report['bytes'])}, "
        f"{count(report['rows'], 'row')}"
    )
    if not report["findings"]:
        print(f"bucket and broker agree: {counts}")
        _show_young(report)
        return
    columns = ("kind", "key", "text", "action")
    done = "done" if report["repaired"] else "possible with --repair"
    rows = [{**row, "action": row["action"] or None} for row in report["findings"]]
    print_table(rows, columns, f"{counts}; action: {done}")
    if report["more"]:
        print(f"and {report['more']} more")
    _show_young(report)


def _show_young(report: dict[str, Any]) -> None:
    """Print the number of young objects, which a scrub cannot classify yet."""
    if report["young"]:
        are = "is" if report["young"] == 1 else "are"
        print(
            f"{count(report['young'], 'object')} without metadata {are} younger than "
            f"{duration_ms(report['young_ms'])} and may be uploads in progress: run this again "
            "later to detect orphans"
        )


def move(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            callback=not_empty,
            help="New tier: s3://BUCKET/PREFIX or a folder.",
        ),
    ] = "",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip batches of which no copy is left.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Move the remote tier to another bucket or provider while the broker runs.

    Objects are copied, verified byte by byte and switched one by one; new uploads go to the new
    tier at once. The move continues after a restart of the broker: run this again to watch it.

    Examples:
      kafkawire tier move --to s3://OTHER/PREFIX
    """
    try:
        to = parse_tier(to).url if to else ""
    except ValueError as wrong:
        fail(f"--to: {wrong}", 2)

    with connect_cluster(server) as cluster:
        answer = send_command(cluster, "move", to=to, skip_lost=skip_lost)
        outage = Outage(cluster)
        with bars() as progress:
            while answer["state"] == "copying":
                total = answer["bytes"] + answer["left_bytes"]
                progress(f"bytes to {answer['to']}", answer["bytes"], total)
                answer = _next(cluster, outage, "move")
        if as_json:
            print_json(answer)
        else:
            _show_move(answer)
        fail_unless(answer["state"] in ("waiting", "done"))


def _show_move(answer: dict[str, Any]) -> None:
    if answer["state"] not in ("waiting", "done"):
        for line in answer["failed"]:
            print(f"  {line}")
        reason = answer["error"] or "no move is in progress"
        raise ClientError(f"tier move: {reason}; run kafkawire tier move to retry")
    moved = f"{count(answer['objects'], 'object')}, {size(answer['bytes'])}"
    print(f"all objects are in {answer['to']}: {moved}")
    if answer["state"] == "waiting":
        print("the old objects are deleted after tier.delete.delay.ms (at least one hour)")
    print(f"set tier.url={answer['to']} before the next start of the broker")
    if answer["log_objects"]:
        print(
            f"not moved: {count(answer['log_objects'], 'log object')}; keep the old tier until "
            "`kafkawire tier status` shows none there"
        )
