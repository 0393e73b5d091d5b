"""`kafkawire tier estimate`: estimate PUT requests and cost of settings before they are applied.

For the traffic of a running broker, or for an assumed rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.options import parse_choice
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import INT32, LOCAL, Json, Server
from kafkawire.cli.shared.tables import print_table
from kafkawire.cli.tier.commands import Topic
from kafkawire.client.notation import OptionError, parse_rate, split_setting
from kafkawire.client.tier import send_command
from kafkawire.plural import count
from kafkawire.units import money, size

_ROWS = (
    ("a cut every", "cut_every_s", "seconds"),
    ("objects per day", "objects_a_day", "count"),
    ("bytes per object", "object_bytes", "bytes"),
    ("PUTs a day", "puts_a_day", "count"),
    ("  of segments", "segment_puts_a_day", "count"),
    ("  of merged segments", "merge_puts_a_day", "count"),
    ("  of the manifest", "manifest_puts_a_day", "count"),
    ("  of log objects", "log_puts_a_day", "count"),
    ("GETs a day", "gets_a_day", "count"),
    ("uploaded per day", "up_bytes_a_day", "bytes"),
    ("write amplification", "write_amplification", "count"),
    ("stored at steady state", "stored_bytes", "bytes"),
    ("unreleased log objects", "log_unreleased_bytes", "bytes"),
    ("requests per month", "requests_cost_a_month", "money"),
    ("transfer per month", "transfer_cost_a_month", "money"),
    ("storage per month", "storage_cost_a_month", "money"),
    ("of these, log objects", "log_cost_a_month", "money"),
)
_LOG = "log_"
"""Begin of the keys about log objects, which are shown if there are any."""


def estimate(
    topic: Topic = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="Setting to try; may be repeated."),
    ] = [],  # noqa: B006
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES/s",
            help="Assumed write rate of all topics, such as 5MB/s; needs no broker.",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=INT32, help="With --rate: number of partitions.")
    ] = 1,
    durability: Annotated[
        str | None,
        typer.Option(metavar="local|s3", help="Durability of the topics to try."),
    ] = None,
    reads: Annotated[
        str | None,
        typer.Option(metavar="BYTES/s", help="Assumed read rate from the tier, such as 1MB/s."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Estimate PUT requests a day and monthly cost of settings before they are applied.

    Examples:
      kafkawire tier estimate --topic clicks --set tiering.max.lag.ms=10s
      kafkawire tier estimate --rate 5MB/s --partitions 100
      kafkawire tier estimate --rate 5MB/s --durability s3
    """
    try:
        changes = dict(split_setting("--set", text) for text in settings)
        if durability is not None:
            changes["durability"] = parse_choice("--durability", durability, ["local", "s3"])
        read_rate = None if reads is None else parse_rate("--reads", reads)
        if rate is not None:
            bytes_per_s = parse_rate("--rate", rate)
            if partitions < 1:
                raise OptionError("--partitions", partitions, "at least 1")
            answer = _estimate_topic(bytes_per_s, partitions, read_rate or 0.0, changes)
            _show(answer, ("then",), as_json)
            return
    except ValueError as error:
        fail(error, 2)

    with connect_cluster(server) as cluster:
        answer = send_command(cluster, "estimate", topic=topic, set=changes, reads=read_rate)
        _show(answer, ("now", "then") if changes or reads else ("now",), as_json)


def _estimate_topic(
    bytes_per_s: float, partitions: int, read_rate: float, changes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the estimate of a single topic on an otherwise empty broker. ValueError."""
    from kafkawire.tiering.cost.estimate import estimate
    from kafkawire.tiering.cost.traffic import as_values, describe_traffic, typed_load

    load, machine, prices = typed_load(
        partitions, bytes_per_s, changes, tier="estimated", read_rate=read_rate
    )
    found = estimate([load], machine, prices)
    return {
        "then": as_values(found),
        "assumed": describe_traffic([load], read_rate),
        "currency": prices.currency,
    }


def _show(answer: Mapping[str, Any], which: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json({name: answer[name] for name in (*which, "assumed", "currency")})
        return
    rows = [
        {"": title, **{name: _cell(answer[name][key], kind) for name in which}}
        for title, key, kind in _ROWS
        if not key.startswith(_LOG) or any(answer[name][key] for name in which)
    ]
    print_table(rows, ("", *which), f"estimate, in {answer['currency']}")
    for line in _assumptions(answer["assumed"]):
        print(line)


def _assumptions(assumed: Mapping[str, Any]) -> list[str]:
    """Print the traffic an estimate assumes."""
    topics = assumed["topics"]
    if topics and not topics[0]["topic"]:
        source = "as typed"
    else:
        source = f"average of {assumed['window_hours']} hours, or since creation for newer topics"
    read = assumed["tier_read_bytes_per_s"]
    lines = [
        f"assumed: constant {size(assumed['bytes_per_s'])}/s ({source}), in "
        f"{count(assumed['flowing_topics'], 'topic')}; {size(read)}/s read from the tier by clients"
    ]
    for row in topics:
        if row["topic"]:
            local = "" if row["copied"] else ", not copied to the tier"
            lines.append(
                f"  {row['topic']}: {size(row['bytes_per_s'])}/s in "
                f"{count(row['partitions'], 'partition')}{local}"
            )
    return lines


def _cell(value: float, kind: str) -> str:
    if kind == "seconds":
        return f"{value:g} s" if value else "never"
    if kind == "bytes":
        return "grows without limit" if value < 0 else size(value)
    return money(value) if kind == "money" else f"{value:,}"
