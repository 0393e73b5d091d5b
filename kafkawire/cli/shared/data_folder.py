"""A data folder on this machine: the brokers in it, and its SQLite metadata, read only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kafkawire.client.errors import ClientError
from kafkawire.log.io.ports import LogError
from kafkawire.log.recovery.identity import rebuild_command
from kafkawire.metadata import damage, schema
from kafkawire.metadata.database import revision_of
from kafkawire.metadata.session import Session
from kafkawire.metadata.sqlite import integrity_check, sqlite_transaction
from kafkawire.metadata.store import DamagedMetadata, MetadataError


def node_ids(folder: str) -> list[int]:
    """Return the IDs of the brokers with data in a folder. LogError if there is none."""
    home = os.path.join(folder, "brokers")
    try:
        names = [name for name in os.listdir(home) if name.isdigit()]
    except FileNotFoundError:
        names = []
    if not names:
        raise LogError(f"{folder} is not a data folder: it has no folder brokers/<node id>")
    return sorted(map(int, names))


def check_sqlite(path: str) -> None:
    """Raise MetadataError unless the SQLite file exists, passes its integrity check, and has no row
    that does not match its checksum."""
    command = rebuild_command(os.path.dirname(path))
    if not os.path.isfile(path):
        raise MetadataError(
            f"{path} does not exist: give the URL of the metadata with --metadata, or "
            f"rebuild it with {command}"
        )
    found = integrity_check(path)
    if found != "ok":
        detail = " ".join(found.split())
        raise MetadataError(f"{path} is damaged ({detail}): rebuild it with {command}")
    try:
        with sqlite_transaction(path, "ro") as session:
            current = revision_of(session) == schema.REVISION  # earlier ones have no checksums
        if current:
            damage.check_file(path)
    except DamagedMetadata as found_rows:
        raise MetadataError(f"{found_rows.what}: rebuild it with {command}") from None


@contextmanager
def open_metadata(data: str) -> Iterator[Session]:
    """Open the metadata file of a data folder for reading. ClientError if that fails."""
    path = os.path.join(os.path.abspath(data), "metadata.db")
    if not os.path.isfile(path):
        raise ClientError(
            f"{path} does not exist: {data} is not a data folder with SQLite metadata"
        )
    try:
        with sqlite_transaction(path, "ro") as session:
            found = revision_of(session)
            if found != schema.REVISION:
                raise ClientError(
                    f"{path} has schema revision {found or 'none'}, this version needs "
                    f"{schema.REVISION}: start a broker of this version once to migrate it"
                )
            yield session
    except MetadataError as error:
        raise ClientError(str(error)) from None
