"""Options of the command about metadata: `kafkawire metadata version`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import Json

metadata_app = typer.Typer(no_args_is_help=True, help="Inspect the metadata database.")


@metadata_app.callback()
def metadata() -> None:
    """Inspect the metadata database without changing it."""


@metadata_app.command("version")
def metadata_version(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Data folder.")
    ] = "kafkawire-data",
    url: Annotated[
        str,
        typer.Option(
            "--metadata", metavar="URL", help="Metadata database, if outside the data folder."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the schema revision, and whether this version uses, migrates or rejects it.

    Exit code 0: a broker of this version can use the metadata, 1: it cannot."""
    from kafkawire.cli.cluster.metadata_version import version

    version(data, url, as_json)
