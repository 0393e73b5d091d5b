"""The `kafkawire` command line: the table of all commands, and the options of `serve`.

Called by kafkawire.cli.main, which parses the plain form of `serve` itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import typer

from kafkawire.cli import INTERRUPTED
from kafkawire.cli.lazy_group import PLAIN, LazyGroup, group

GROUPS = {
    "topics": group(
        "List, describe, create and delete topics.",
        {
            "list": "topics:list_topics",
            "describe": "topics:describe_topics",
            "create": "topics:create_topics",
            "delete": "topics:delete_topics",
        },
    ),
    "groups": group(
        "List, describe and delete groups, show their lag, reset their offsets.",
        {
            "list": "groups.commands:list_groups",
            "describe": "groups.commands:describe_groups",
            "lag": "groups.lag:lag",
            "why": "groups.why:why",
            "delete": "groups.commands:delete_groups",
            "reset-offsets": "groups.reset_offsets:reset_offsets",
        },
    ),
    "transactions": group(
        "List, describe and abort transactions, find hanging ones.",
        {
            "list": "transactions.commands:list_transactions",
            "describe": "transactions.commands:describe",
            "abort": "transactions.commands:abort",
            "hanging": "transactions.commands:hanging",
        },
    ),
    "offsets": group(
        "Describe, validate and convert offsets, show statistics.",
        {
            "describe": "offsets.report:describe",
            "validate": "offsets.report:validate",
            "stats": "offsets.report:stats",
            "metrics": "offsets.stored:show_metrics",
            "convert": "offsets.convert:run",
        },
    ),
    "cluster": group("Describe the cluster.", {"describe": "cluster.describe:describe"}),
    "configs": group(
        "Describe, set and unset configuration settings.",
        {
            "describe": "cluster.configs:describe",
            "set": "cluster.configs:change",
            "unset": "cluster.configs:remove",
        },
    ),
    "metadata": group(
        "Inspect the metadata database.", {"version": "cluster.metadata_version:version"}
    ),
    "tier": group(
        "Show, control, check, move and restore the remote tier.",
        {
            "status": "tier.commands:status",
            "why": "tier.commands:why",
            "cost": "tier.commands:cost",
            "estimate": "tier.estimate:estimate",
            "pause": "tier.commands:pause",
            "resume": "tier.commands:resume",
            "scrub": "tier.jobs:scrub",
            "move": "tier.jobs:move",
            "restore": "tier.restore:restore",
        },
    ),
    "pipeline": group(
        "Topics as tables, on Spark: run, compact, audit, replay, query, report.",
        {
            "run": "pipeline.run:run",
            "compact": "pipeline.run:compact",
            "audit": "pipeline.audit:audit",
            "replay": "pipeline.replay:replay",
            "query": "pipeline.query:query",
            "report": "pipeline.report:report",
        },
    ),
}


class Commands(LazyGroup):
    """All commands and groups; Ctrl-C ends any of them without a traceback."""

    places: ClassVar[Mapping[str, str]] = {
        "consume": "consume:consume",
        "backup": "backup.backup:backup",
        "restore": "backup.restore:restore",
        "serve": "app:serve",
        "dump": "dump.journal:run",
        "fsck": "fsck:run",
        "version": "version:run",
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


app = typer.Typer(
    name="kafkawire",
    cls=Commands,
    help="A message broker that works with unchanged Kafka clients.",
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)
for name, commands in GROUPS.items():
    app.add_typer(commands, name=name)


def serve(
    listen: Annotated[
        list[str],
        typer.Option(metavar="[NAME://]HOST:PORT", help="Address to listen on; may be repeated."),
    ] = [],  # noqa: B006  (typer copies it)
    advertise: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME://]HOST:PORT", help="Address returned to clients of listener NAME."
        ),
    ] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data folder. [default: kafkawire-data]")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Metadata database. [default: SQLite in the data folder]"),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Remote tier: s3://BUCKET/PREFIX or a folder. [default: none]"
        ),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Broker setting (see docs/configs.md); may be repeated.",
        ),
    ] = [],  # noqa: B006
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration file in TOML.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text or json. [default: text]")
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print each setting, its value and its source, then exit."
        ),
    ] = False,
) -> None:
    """Start a broker.

    Values come from the command line, the environment (KAFKAWIRE_LISTEN, KAFKAWIRE_DATA, ...,
    KAFKAWIRE_SET_NUM_PARTITIONS), the TOML file or the default, in this order of precedence.
    """
    from kafkawire.cli.serve import Given, run

    options: dict[str, list[str]] = {"listen": listen, "advertise": advertise}
    once = {"data": data, "metadata": metadata, "tier": tier}
    once |= {"log-level": log_level, "log-format": log_format}
    options |= {name: [value] for name, value in once.items() if value is not None}
    options = {name: values for name, values in options.items() if values}
    raise SystemExit(run(Given(options, settings, config, show_config), os.environ))
