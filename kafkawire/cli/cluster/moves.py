"""`kafkawire cluster balance`, `drain` and `moves`: which broker leads which partition."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, report
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import INT32, LOCAL, Json, Server, Wide
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import BROKER, DELETE, SET, alter, broker_settings
from kafkawire.client.placement import (
    DECOMMISSIONING,
    DRAINING,
    PlannedMove,
    even,
    leaders,
    move,
    planned_moves,
    switched_on,
)
from kafkawire.plural import count

POLL_S = 0.5
COLUMNS = ("partition", "from", "to")

Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Return when all partitions are moved.")
]


def balance(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the moves, and make none.")
    ] = False,
    wait: Wait = True,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Move partitions so that all brokers lead about the same number.

    Partitions move between brokers that write to one data folder (`serve --workers`), those of
    topics with durability=s3 or replicated to any one: no record is copied. Clients follow without
    an error.

    Examples:
      kafkawire cluster balance --dry-run
      kafkawire cluster balance
    """
    with connect_cluster(server) as cluster:
        brokers = [node for node in cluster.nodes() if not is_draining(cluster, node)]
        moves = even(leaders(cluster), brokers)
        if dry_run or not moves:
            _print(moves, "moves", as_json, wide)
            return
        results = move(cluster, {each.partition: each.target for each in moves})
        rows = [{**_row(each), "error": error_text(*results[each.partition])} for each in moves]
        if wait:
            _wait_for(cluster, {each.partition for each in moves})
        report("moved" if wait else "asked for", rows, COLUMNS, as_json, wide)


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32)],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the broker lead partitions again.")
    ] = False,
    wait: Wait = True,
    server: Server = LOCAL,
) -> None:
    """Move all partitions of a broker to other brokers that write to its data folder, those with
    durability=s3 or replicated to any other broker.

    It gets no new ones until --undo. It still runs: stop it when it leads nothing.

    Examples:
      kafkawire cluster drain 3
      kafkawire cluster drain 3 --undo
    """
    with connect_cluster(server) as cluster:
        if not undo and cluster.nodes() == [broker]:
            fail(f"broker {broker} is the only broker: nothing can take its partitions")
        change = (DRAINING, None, DELETE) if undo else (DRAINING, "true", SET)
        alter(cluster, (BROKER, str(broker)), [change])
        if undo:
            print(f"broker {broker} may lead partitions again")
            return
        if wait:
            wait_until_idle(cluster, broker)
        led = Counter(leaders(cluster).values())[broker]
        print(f"broker {broker} leads {count(led, 'partition')}")


def moves(server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """List the partitions that are being moved.

    Examples:
      kafkawire cluster moves
    """
    with connect_cluster(server) as cluster:
        _print(planned_moves(cluster), "moves", as_json, wide)


def is_draining(cluster: Cluster, node: int) -> bool:
    """Return whether a broker is to lead nothing, which only the broker itself knows."""
    known = broker_settings(cluster, node=node)
    return not switched_on(known).isdisjoint({DRAINING, DECOMMISSIONING})


def _row(each: PlannedMove) -> dict[str, Any]:
    topic, index = each.partition
    return {"partition": f"{topic}-{index}", "from": each.leader, "to": each.target}


def _print(found: Sequence[PlannedMove], title: str, as_json: bool, wide: bool) -> None:
    rows = [_row(each) for each in found]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, COLUMNS, title, wide)


def _wait_for(cluster: Cluster, wanted: set[tuple[str, int]]) -> None:
    """Wait until none of these partitions is being moved."""
    _show(
        "partitions moved",
        len(wanted),
        lambda: sum(each.partition in wanted for each in planned_moves(cluster)),
    )


def wait_until_idle(cluster: Cluster, broker: int) -> None:
    """Wait until a broker leads nothing."""
    led = Counter(leaders(cluster).values())
    _show(
        f"partitions of broker {broker} moved",
        led[broker],
        lambda: Counter(leaders(cluster).values())[broker],
    )


def _show(what: str, total: int, left: Callable[[], int]) -> None:
    """Show progress until nothing is left."""
    with bars() as progress:
        while remaining := left():
            progress(what, max(0, total - remaining), max(total, remaining))
            time.sleep(POLL_S)
        if total:
            progress(what, total, total)
