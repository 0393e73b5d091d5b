"""Checks of folders, databases and tiers given on the command line.

Reads the disk, changes nothing. Every error is an OptionError: one sentence with the option, its
value and what is allowed. Called by kafkawire.cli.serving.run and by commands with such options.
"""

from __future__ import annotations

import os

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.output import fail, without_password

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
    if not separator or scheme not in DATABASES:
        allowed = "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
        raise OptionError(option, without_password(url), allowed)
    if scheme.startswith("sqlite"):
        _check_file(option, url, rest.removeprefix("/").partition("?")[0])


def _check_file(option: str, url: str, path: str) -> None:
    if not path or path.startswith((":memory:", "file:")):
        return
    if os.path.isdir(path):
        raise OptionError(option, url, "sqlite:///FILE with a file, not a folder")
    check_data_folder(option, os.path.dirname(os.path.abspath(path)))


def check_tier_apart(option: str, tier: str, data: str) -> None:
    """Check that neither of tier and data folder contains the other."""
    from kafkawire.objectstore.overlap import tier_in_data

    if tier_in_data(tier, data):
        raise OptionError(option, tier, f"outside the data folder {data}, and must not contain it")


def refuse_full(data: str) -> None:
    """End the command with exit code 2 unless a data folder can be restored here: the path must be
    free or an empty folder."""
    if not data or "\0" in data:
        fail(OptionError("--data", data, "a new folder"), 2)
    if os.path.lexists(data) and (not os.path.isdir(data) or os.listdir(data)):
        fail(f"{data} is not empty: restore into a new data folder", 2)
