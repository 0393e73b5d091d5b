"""`kafkawire cluster read-only`: whether clients may only read from the cluster."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from kafkawire.cli.cluster.configs import NOT_ALIVE, NOT_REACHED
from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless, print_results
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL, Json, Server, Wide
from kafkawire.cli.shared.tables import TableColumn
from kafkawire.client.cluster import Cluster, find_registered_brokers
from kafkawire.client.configs import (
    BROKER,
    DELETE,
    SET,
    SOURCES,
    Change,
    alter,
    settings,
)
from kafkawire.client.errors import ClientError

READ_ONLY, COMMITS = "broker.read.only", "broker.read.only.commits"
REFUSED = "commits_refused"
COLUMNS = (
    "broker", TableColumn("read_only", "read only"), TableColumn(REFUSED, "commits refused"),
    "state",
)  # fmt: skip
WITHIN_S = 10.0
"""For so long brokers may take to apply the setting: usually 0.3 seconds."""
POLL_S = 0.1


def read_only(
    state: Annotated[str, typer.Argument(metavar="[on|off]", show_default=False)] = "",
    commits: Annotated[
        bool, typer.Option("--commits", help="With on: committed offsets cannot change either.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Let clients only read, or also write again; without on or off show what each broker does.

    Returns when all living brokers have applied it; exit code 1 if one has not, for example because
    it has a value of its own.

    Examples:
      kafkawire cluster read-only on
      kafkawire cluster read-only off
    """
    if state not in ("", "on", "off"):
        fail(f"{state}: it must be on or off", 2)
    if commits and state != "on":
        fail("--commits is given together with on", 2)
    with connect_cluster(server) as cluster:
        if state:
            alter(cluster, (BROKER, ""), _changes(state == "on", commits))
        wanted = {"on": True, "off": False}.get(state)
        until_s = time.monotonic() + WITHIN_S
        while True:
            rows = _list_states(cluster, wanted)
            late = [row for row in rows if row["state"] in (LATE, NOT_REACHED)]
            if not late or time.monotonic() >= until_s:
                break
            time.sleep(POLL_S)
        print_results(rows, COLUMNS, "reading only", as_json, wide)
        fail_unless(wanted is None or all(row["state"] in (APPLIED, NOT_ALIVE) for row in rows))


APPLIED, LATE, OWN = "applied", "not applied yet", "has a value of its own"


def _changes(on: bool, commits: bool) -> list[Change]:
    if not on:
        return [(READ_ONLY, "false", SET), (COMMITS, None, DELETE)]
    return [(READ_ONLY, "true", SET), *([(COMMITS, "true", SET)] if commits else [])]


def _list_states(cluster: Cluster, wanted: bool | None) -> list[dict[str, Any]]:
    """Return for each broker what it does, as it says itself, compared with what is `wanted`."""
    rows: list[dict[str, Any]] = []
    for node, alive in sorted(find_registered_brokers(cluster.first).items()):
        row: dict[str, Any] = {"broker": node, "read_only": None, REFUSED: None}
        row["state"] = NOT_REACHED if alive else NOT_ALIVE
        try:
            found = settings(cluster, (BROKER, str(node)), [READ_ONLY, COMMITS]) if alive else []
        except ClientError:
            cluster.disconnect(node)
            found = []
        for each in found:
            row[REFUSED if each["name"] == COMMITS else "read_only"] = each["value"] == "true"
            if each["name"] == READ_ONLY:
                own = each["source"] == SOURCES[2]
                agrees = wanted is None or wanted == (each["value"] == "true")
                row["state"] = APPLIED if agrees else OWN if own else LATE
        if row[REFUSED]:
            row[REFUSED] = row["read_only"]  # it has an effect only then
        rows.append(row)
    return rows
