"""The metadata store of a URL or of an SQLite file."""

from __future__ import annotations

from pathlib import PurePath

from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import sqlite_file


def open_metadata(url: str, folder: str) -> SqlMetadata:
    """Return the store for an SQLAlchemy URL; without one SQLite in `folder`. Nothing is opened
    yet. Raises MetadataError for an unsupported URL."""
    path = sqlite_file(url, folder)
    return SqlMetadata(url) if path is None else sqlite_metadata(path)


def sqlite_metadata(path: str) -> SqlMetadata:
    """Return the store in an SQLite file of any name; in a URL a `?` would end the name."""
    return SqlMetadata(PurePath(path))
