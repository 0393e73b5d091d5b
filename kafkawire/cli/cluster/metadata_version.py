"""`kafkawire metadata version`: the schema revision of a metadata database, and that of this
version.

Only reads; the broker migrates the database when it starts.
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from kafkawire.cli.shared.output import fail, print_json, without_password
from kafkawire.cli.shared.parameters import Json, Metadata
from kafkawire.cli.shared.paths import check_metadata_url
from kafkawire.client.notation import OptionError
from kafkawire.metadata.schema import REVISION
from kafkawire.metadata.store import MetadataError

CURRENT, OLDER, NEWER = "current", "older", "newer"
MEANING = {
    CURRENT: "this version uses it unchanged",
    OLDER: "this version migrates it at the next start",
    NEWER: "this version rejects it: use the version that wrote it",
}


def version(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Data folder.")
    ] = "kafkawire-data",
    url: Metadata = "",
    as_json: Json = False,
) -> None:
    """Show the schema revision, and whether this version uses, migrates or rejects it.

    Exit code 0: a broker of this version can use the metadata, 1: it cannot.

    Examples:
      kafkawire metadata version --data kafkawire-data
      kafkawire metadata version --metadata postgresql://kafkawire@db/kafkawire
    """
    try:
        check_metadata_url("--metadata", url)
    except OptionError as error:
        fail(error, 2)
    if not url and not os.path.isdir(data):
        fail(OptionError("--data", data, "a data folder"), 2)
    name = without_password(url) or os.path.join(data, "metadata.db")
    try:
        stored = stored_revision(data, url)
    except MetadataError as error:
        fail(error)
    if stored is None or not stored.isdigit():
        fail(f"{name} is not a metadata database of kafkawire: it has no schema revision")
    state = state_of(stored)
    if as_json:
        print_json({"metadata": name, "revision": stored, "known": REVISION, "state": state})
    else:
        print(f"{name}: revision {stored} ({state}; this version has {REVISION}): {MEANING[state]}")
    raise SystemExit(1 if state == NEWER else 0)


def state_of(stored: str) -> str:
    """Return what this version does with a database of a schema revision."""
    if stored == REVISION:
        return CURRENT
    return OLDER if stored.isdigit() and int(stored) < int(REVISION) else NEWER


def file_of(data: str, url: str) -> str | None:
    """Return the file of the metadata of a data folder or a URL; None if it is on a server."""
    if url and not url.startswith("sqlite"):
        return None
    return url.partition(":///")[2] or os.path.join(data, "metadata.db")


def stored_revision(data: str, url: str) -> str | None:
    """Return the schema revision; None if the database has no revision table."""
    from kafkawire.metadata.database import Database, revision_of
    from kafkawire.metadata.sqlite import sqlite_transaction

    path = file_of(data, url)
    if path is None:
        return asyncio.run(Database(url).stored_revision())
    if not os.path.isfile(path):
        raise MetadataError(f"{path} does not exist")
    with sqlite_transaction(path, "ro") as session:
        return revision_of(session)
