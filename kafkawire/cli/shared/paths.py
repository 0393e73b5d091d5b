"""Checks of folders, databases and tiers given on the command line.

Reads the disk, changes nothing. Every error is an OptionError: one sentence with the option, its
value and what is allowed. Called by kafkawire.cli.serving.run and by commands with such options.
"""

from __future__ import annotations

import os
import re
from glob import escape, iglob
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kafkawire.cli.shared.output import fail
from kafkawire.client.notation import OptionError

if TYPE_CHECKING:
    from kafkawire.objectstore.url import TierUrl

DATABASES = ("sqlite", "sqlite+aiosqlite", "postgresql", "postgresql+asyncpg")


def check_data_folder(option: str, path: str) -> None:
    """Check that the folder is writable or can be created."""
    folder = os.path.abspath(path)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise OptionError(option, path, "a folder, not a file")
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise OptionError(option, path, f"a folder, but {folder} in its path is a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OptionError(option, path, f"a writable folder, but {folder} is not writable")


def check_metadata_url(option: str, url: str) -> None:
    """Check that the URL is empty or names an SQLite file or a PostgreSQL database."""
    if not url:
        return
    scheme, separator, rest = url.partition("://")
    is_file = scheme.startswith("sqlite")
    known = separator and scheme in DATABASES
    if not known or (rest[:1] not in ("", "/") if is_file else not _is_of_server(url)):
        allowed = (
            "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, in which a password "
            "is quoted as in URLs (%20 for a space)"
        )
        raise OptionError(option, re.sub("://.*@", "://***@", url), allowed)
    if is_file:
        _check_file(option, url, rest.removeprefix("/").partition("?")[0])


def refuse_other_sqlite(option: str, url: str, data: str) -> None:
    """Refuse an SQLite file that is not that of the data folder: a new folder is built with its
    file in it, and appears at once."""
    if not url.startswith("sqlite"):
        return
    from kafkawire.metadata.store import sqlite_file

    own = os.path.join(data, "metadata.db")
    if os.path.abspath(sqlite_file(url, data) or "") != os.path.abspath(own):
        raise OptionError(
            option, url, f"a PostgreSQL database; without it the metadata is in {own}, in SQLite"
        )


def _is_of_server(url: str) -> bool:
    """Return whether a URL has a number as its port, or none, and no spaces, after which a password
    would not be recognized as one in a sentence."""
    try:
        return urlsplit(url).port != 0 and not re.search(r"\s", url)
    except ValueError:
        return False


def _check_file(option: str, url: str, path: str) -> None:
    if not path or path.startswith((":memory:", "file:")):
        return
    if os.path.isdir(path):
        raise OptionError(option, url, "sqlite:///FILE with a file, not a folder")
    check_data_folder(option, os.path.dirname(os.path.abspath(path)))


def check_tier_folder(option: str, tier: TierUrl) -> None:
    """Check that the folder of a tier is not a file."""
    if os.path.isfile(tier.folder):
        raise OptionError(option, tier.url, "s3://BUCKET/PREFIX or a folder")


def check_tier_apart(option: str, tier: str, data: str) -> None:
    """Check that neither of tier and data folder contains the other."""
    from kafkawire.objectstore.overlap import tier_in_data

    if tier_in_data(tier, data):
        raise OptionError(option, tier, f"outside the data folder {data}, and must not contain it")


def refuse_inside(option: str, path: str) -> None:
    """End the command with exit code 2 if a new folder would be in a data folder or tier, whose
    files are a broker's."""
    whole = os.path.realpath(path)
    while (parent := os.path.dirname(whole)) != whole:
        whole = parent
        for names, what in _SIGNS.items():
            if any(iglob(f"{escape(whole)}/{names}")):
                fail(f"{option} {path} is in {what}, {whole}: choose a folder outside of it", 2)


_SIGNS = {
    "brokers/*/journals": "a data folder",
    "manifest/current": "the tier of a broker",
    "brokers/*/manifest/current": "the tier of brokers",
}
"""Names in a folder by which it is recognized, the first that is there."""


def refuse_full(data: str) -> None:
    """End the command with exit code 2 unless a data folder can be restored here: the path must be
    free or an empty folder, and not in another data folder or a tier."""
    if not data or "\0" in data:
        fail(OptionError("--data", data, "a new folder"), 2)
    if os.path.lexists(data) and (not os.path.isdir(data) or os.listdir(data)):
        fail(f"{data} is not empty: restore into a new data folder", 2)
    refuse_inside("--data", data)
