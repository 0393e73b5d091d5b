"""`kafkawire groups why GROUP`: why a group makes no progress, in sentences."""

from __future__ import annotations

import textwrap
import time
from typing import Annotated

import typer

from kafkawire.cli.groups.causes import Cause, Observation, OpenTransaction, causes
from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import connected
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Group, Json, Server
from kafkawire.cli.shared.units import parse_duration
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.lag import GroupLag, lag_of
from kafkawire.client.offsets import Partition
from kafkawire.client.transaction_admin import list_transactions, producers

COLUMNS = 80
MAX_DESCRIBED = 100
"""Partitions with an open transaction whose producers are requested."""
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
    transactions, times of commits, and whether the lag grows. Exit code 0 whatever it finds.

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
    with connected(server) as cluster:
        seen = observed(cluster, group, observe_ms / 1000)
        found = causes(seen)
        if as_json:
            print_json(_as_json(seen, found))
            return
        for cause in found:
            mark = "! " if cause.stuck else "- "
            print(textwrap.fill(mark + cause.sentence, COLUMNS, subsequent_indent="  ",
                                break_long_words=False, break_on_hyphens=False))  # fmt: skip


def observed(cluster: Cluster, group: str, seconds: float) -> Observation:
    """Observe a group once, or twice with `seconds` between."""
    (found,) = lag_of(cluster, [(group, None)], stable=True)
    before = None
    if seconds:
        time.sleep(seconds)
        before = found
        (found,) = lag_of(cluster, [(group, None)], stable=True)
    names = _transactional_ids(cluster, found)
    return Observation(
        found,
        time.time_ns() // 1_000_000,
        before,
        seconds,
        _transactions(cluster, found, names),
        names,
    )


def _held(group: GroupLag) -> dict[Partition, int]:
    """Return the partitions that readers of committed records cannot read to the end, with their
    leaders."""
    return {
        row.partition: row.leader
        for row in group.partitions
        if row.stable is not None and row.log_end is not None and row.stable < row.log_end
    }


def _transactional_ids(cluster: Cluster, group: GroupLag) -> dict[int, str]:
    """Return the transactional ids of producers by producer id, if they matter for the group."""
    pending = () if group.active is None else group.active.pending_producers
    if not pending and not _held(group):
        return {}
    try:
        return {row.producer_id: row.transactional_id for row in list_transactions(cluster)}
    except ClientError:
        return {}  # a broker without this API: producers are named by id


def _transactions(
    cluster: Cluster, group: GroupLag, names: dict[int, str]
) -> dict[Partition, OpenTransaction | None]:
    held = _held(group)
    found: dict[Partition, OpenTransaction | None] = dict.fromkeys(held)
    described = dict(list(held.items())[:MAX_DESCRIBED])
    try:
        for row in producers(cluster, described):
            known = found[row.partition]
            if row.start_offset >= 0 and (known is None or row.start_offset < known.start_offset):
                found[row.partition] = OpenTransaction(
                    row.producer_id,
                    names.get(row.producer_id),
                    row.last_timestamp_ms,
                    row.start_offset,
                )
    except ClientError:
        return found  # it may have ended meanwhile, or the broker lacks this API
    return found


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
