"""`kafkawire groups why GROUP`: why a group makes no progress, in sentences."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Group, Json, Server
from kafkawire.client.group_causes import Cause, Observation, causes, observe_group
from kafkawire.client.notation import OptionError, parse_duration

COLUMNS = 80
MAX_OBSERVED_MS = 3_600_000


def why(
    group: Group,
    observe: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Time between the two observations that show progress; 0s: only one.",
        ),
    ] = "3s",
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Explain why a consumer group makes no progress.

    Checks members, rebalances, owners of partitions, committed offsets against the log, open
    transactions, times of commits, and whether the lag grows; of a share group members, partitions
    without one, open transactions, and the lag. Exit code 0 whatever it finds.

    Examples:

      kafkawire groups why billing

      kafkawire groups why billing --observe 30s --json
    """
    try:
        observe_ms = parse_duration("--observe", observe)
        if observe_ms > MAX_OBSERVED_MS:
            raise OptionError("--observe", observe, "at most 1h")
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster:
        seen = observe_group(cluster, group, observe_ms / 1000)
        found = causes(seen)
        if as_json:
            print_json(_as_json(seen, found))
            return
        for cause in found:
            mark = "! " if cause.stuck else "- "
            print(textwrap.fill(mark + cause.sentence, COLUMNS, subsequent_indent="  ",
                                break_long_words=False, break_on_hyphens=False))  # fmt: skip


def _as_json(seen: Observation, found: list[Cause]) -> dict[str, object]:
    return {
        "group": seen.group.description.group,
        "state": seen.group.description.state,
        "lag": seen.totals.lag,
        "stuck": any(cause.stuck for cause in found),
        "causes": [
            {
                "cause": cause.kind,
                "stuck": cause.stuck,
                "sentence": cause.sentence,
                "partitions": [f"{topic}:{index}" for topic, index in cause.partitions],
            }
            for cause in found
        ],
    }
