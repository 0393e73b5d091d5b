"""`kafkawire serve` as a command of typer: its help, and its options for completion.

Both are made from the table in kafkawire.cli.serving.options, whose parser is used for the words
(START, see kafkawire.cli.command).
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from kafkawire.cli.serving import run
from kafkawire.cli.serving.options import OPTIONS, Option


def serve(**_: object) -> None:
    """Start a broker.

    Values come from the command line, the environment (KAFKAWIRE_LISTEN, KAFKAWIRE_DATA, ...,
    KAFKAWIRE_SET_NUM_PARTITIONS), the TOML file or the default, in this order of precedence.

    Examples:
      kafkawire serve --data /var/lib/kafkawire --listen 0.0.0.0:9092 --insecure
      kafkawire serve --tier s3://BUCKET/PREFIX --set num.partitions=4
      kafkawire serve --workers 4
      kafkawire serve --show-config
    """


def _parameter(option: Option) -> Parameter:
    kind: Any = bool
    default: Any = False
    text = option.help
    if option.is_list:
        kind, default = list[str], []
    elif option.metavar:
        kind, default = str | None, None
        if option.default and option.default[0]:
            text += f" [default: {option.default[0]}]"
    shown = typer.Option(
        f"--{option.name}",
        metavar=option.metavar or None,
        help=text,
        hidden=option.is_hidden,
        show_default=False,
    )
    return Parameter(
        option.name.replace("-", "_"),
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, shown],
    )


START = run.start
# typer reads the options of a command from the signature of its function.
serve.__signature__ = Signature([_parameter(each) for each in OPTIONS])  # type: ignore[attr-defined]
