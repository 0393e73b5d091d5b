"""The `kafkawire` command line: the table of all commands.

Called by kafkawire.cli.main, which starts `serve` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from kafkawire.cli import INTERRUPTED
from kafkawire.cli.command import PLAIN, LazyGroup, group
from kafkawire.cli.shared.command_config import COMMAND_CONFIG, COMMAND_CONFIG_OPTION
from kafkawire.cli.shared.output import fail
from kafkawire.extras import MissingExtra, explain, install_line

GROUPS = {
    "topics": group(
        "List, describe, create and delete topics.",
        {
            "list": "topics.commands:list_topics",
            "describe": "topics.commands:describe_topics",
            "create": "topics.commands:create_topics",
            "delete": "topics.commands:delete_topics",
            "add-partitions": "topics.change:add_partitions",
            "delete-records": "topics.change:delete",
            "copy": "topics.copy:copy",
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
            "list": "transactions:list_transactions",
            "describe": "transactions:describe",
            "abort": "transactions:abort",
            "hanging": "transactions:hanging",
        },
    ),
    "offsets": group(
        "Describe, validate and convert offsets, show statistics.",
        {
            "describe": "offsets.report:describe",
            "validate": "offsets.report:validate",
            "stats": "offsets.report:stats",
            "metrics": "offsets.report:show_metrics",
            "convert": "offsets.convert:run",
            "delete": "offsets.delete:delete",
        },
    ),
    "users": group(
        "Create, list and delete users of log-ins, change passwords.",
        {
            "create": "users:create",
            "list": "users:list_users",
            "delete": "users:delete",
            "password": "users:password",
        },
    ),
    "acls": group(
        "List, add and remove access rules, explain decisions.",
        {
            "list": "acls:list_acls",
            "add": "acls:add",
            "remove": "acls:remove",
            "explain": "acls:explain",
        },
    ),
    "quotas": group(
        "List, set and remove client quotas.",
        {
            "list": "quotas:list_quotas",
            "set": "quotas:change",
            "remove": "quotas:remove",
        },
    ),
    "security": group(
        "Restore users, access rules, quotas and tokens from a backup.",
        {"restore": "restore.security:restore"},
    ),
    "cluster": group(
        "Describe the cluster, move partitions between its brokers, remove brokers.",
        {
            "describe": "cluster.describe:describe",
            "balance": "cluster.moves:balance",
            "drain": "cluster.moves:drain",
            "decommission": "cluster.decommission:decommission",
            "moves": "cluster.moves:moves",
            "remove": "cluster.decommission:remove",
            "why": "cluster.why:why",
            "read-only": "cluster.read_only:read_only",
        },
    ),
    "configs": group(
        "Describe, set and unset configuration settings.",
        {
            "describe": "cluster.configs:describe",
            "set": "cluster.configs:change",
            "apply": "cluster.configs:apply",
            "unset": "cluster.configs:remove",
        },
    ),
    "certs": group("Make certificates to try TLS out.", {"make": "make_certs:make"}),
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
            "restore": "restore.from_bucket:restore",
        },
    ),
    "schedule": group(
        "Show schedule topics and what waits in them; cancel records.",
        {
            "list": "schedule:list_schedules",
            "show": "schedule:show",
            "why": "schedule:why",
            "cancel": "schedule:cancel",
        },
    ),
}

ENTRY_POINTS = "kafkawire.commands"
"""The group of entry points by which another distribution adds a group of commands: an object
`places`, see LazyGroup, under the group's name."""
PIPELINE = "Topics as tables, on Spark: run, compact, audit, replay, query, report."


class NotInstalled(TyperCommand):
    """A group of another distribution: its name, and its help among those of all commands."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Name the line that installs it. Raises MissingExtra."""
        raise MissingExtra(f"{self.name} needs kafkawire-spark: {install_line('spark')}")


class Commands(LazyGroup):
    """All commands and groups; Ctrl-C ends any of them without a traceback."""

    places: ClassVar[Mapping[str, str]] = {
        "consume": "records.consume:consume",
        "find": "records.find:find",
        "sql": "sql.command:query",
        "produce": "records.produce:produce",
        "export": "records.export:export",
        "import": "records.import_file:import_file",
        "backup": "backup:backup",
        "console": "console:console",
        "dev": "dev:dev",
        "mcp": "mcp.command:mcp",
        "restore": "restore.command:restore",
        "serve": "serving.command:serve",
        "dump": "dump.journal:run",
        "doctor": "doctor:doctor",
        "estimate": "estimate:estimate",
        "fsck": "fsck:run",
        "completion": "completion:completion",
        "version": "version:run",
    }

    def __init__(self, commands: Mapping[str, Any], **attributes: Any) -> None:
        pipeline = NotInstalled("pipeline", help=PIPELINE)
        super().__init__(commands={**commands, "pipeline": pipeline}, **attributes)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; those of another distribution are searched for only when one is named,
        as that reads the metadata of all that is installed."""
        found = super().get_command(ctx, cmd_name)
        return installed_group(found) if isinstance(found, NotInstalled) else found

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except ModuleNotFoundError as missing:
            sentence = explain(missing)
            if sentence is None:
                raise
            fail(sentence, 2)


def installed_group(named: NotInstalled) -> Any:
    """Return the group of another distribution, or `named` if that is not installed."""
    from importlib.metadata import entry_points

    for found in entry_points(group=ENTRY_POINTS, name=str(named.name)):
        return typer.main.get_command(group(named.help or "", found.load()))
    return named


app = typer.Typer(
    name="kafkawire",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)
for name, commands in GROUPS.items():
    app.add_typer(commands, name=name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kafkawire.cli.version import run

        run()
        raise typer.Exit


@app.callback()
def _root(
    command_config: Annotated[
        str,
        typer.Option(
            COMMAND_CONFIG_OPTION,
            envvar="KAFKAWIRE_COMMAND_CONFIG",
            metavar="FILE",
            help="Settings to reach a broker with encryption or log-in, as of Kafka's clients.",
        ),
    ] = "",
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """A message broker that works with unchanged Kafka clients.

    Exit codes of all commands: 0 done, 1 failed, 2 wrong input, 130 interrupted by Ctrl-C.
    """
    COMMAND_CONFIG.set(command_config)
