"""Arguments and options shared by several commands.

Options of only one command are declared with that command.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from kafkawire.cli.shared.output import fail
from kafkawire.client.notation import OptionError

INT16, INT32, INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""Maxima of integer fields of a request."""

LOCAL = "127.0.0.1:9092"


def not_empty(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """Return the value; ends the command with exit code 2 if a name in it is empty. The empty text
    that an option has as its default is accepted if the option is not given: an empty shell
    variable must not be taken for that."""
    source = context.get_parameter_source(str(parameter.name))
    if source is not None and source.name == "DEFAULT":
        return value
    if value == "" or (isinstance(value, list) and "" in value):
        name = str(parameter.metavar or parameter.name).strip("[]").removesuffix("...")
        option = parameter.opts[0] if parameter.param_type_name == "option" else name
        fail(OptionError(option, "", "a name that is not empty"), 2)
    return value


Server = Annotated[
    str,
    typer.Option(
        "--server", envvar="KAFKAWIRE_SERVER", metavar="HOST:PORT", help="Address of the broker."
    ),
]
Source = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="HOST:PORT|DIR|URL",
        help="Broker, data folder or s3://BUCKET/PREFIX to read.",
    ),
]
TailServer = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        callback=not_empty,
        help="Broker, for records of the source that are in no segment yet.",
    ),
]
BrokerOrFolder = Annotated[
    str,
    typer.Option(
        "--source",
        metavar="HOST:PORT|DIR",
        help="Broker to ask, or data folder to read. [default: the broker of --server]",
    ),
]
SparkMaster = Annotated[
    str, typer.Option("--master", metavar="URL", callback=not_empty, help="Spark master URL.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Wide = Annotated[
    bool, typer.Option("--wide", help="Show all columns, whatever the width of the terminal.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be restored.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
EachPartition = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show a line for each partition.")
]
COMMITTED = "read_committed"
Isolation = Annotated[
    str,
    typer.Option(
        "--isolation-level",
        metavar="LEVEL",
        help="read_committed, or read_uncommitted with records of aborted and open transactions.",
    ),
]


Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", callback=not_empty)]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", callback=not_empty)]
Group = Annotated[str, typer.Argument(metavar="GROUP", callback=not_empty)]
Data = Annotated[str, typer.Option("--data", metavar="DIR", help="The broker's data folder.")]
Metadata = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="KAFKAWIRE_METADATA",
        metavar="URL",
        callback=not_empty,
        help="Metadata database, if outside the data folder.",
    ),
]


# Options that several commands have together, declared once.


class OptionSet:
    """Base of a dataclass whose fields are options, each with a default."""


def with_options(run: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer with the options of each OptionSet among the parameters of a
    function, in its place; the function gets the OptionSet."""
    hints = get_type_hints(run, include_extras=True)
    sets = {name: kind for name, kind in hints.items() if _is_set(kind)}
    parameters: list[Parameter] = []
    for parameter in signature(run).parameters.values():
        if parameter.name in sets:
            parameters += _options(sets[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(run)
    def command(**given: Any) -> None:
        for name, kind in sets.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        run(**given)

    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _is_set(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionSet)


def _options(kind: Any) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
