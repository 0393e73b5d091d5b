"""The option `--source`: a broker, a data folder or a remote tier to read. Pure but for one check
of whether a folder exists."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kafkawire.cli.shared.output import fail
from kafkawire.client.address import split_address
from kafkawire.client.notation import OptionError

if TYPE_CHECKING:
    from kafkawire.reading.model.source import Source

ALLOWED = "HOST:PORT of a broker, a data folder, or s3://BUCKET/PREFIX or the folder of a tier"


DATA_NAMES = ("brokers", "metadata.db")
"""Names in a data folder, which no tier has."""


class SourceKind(Enum):
    """Kinds of things that records or metadata can be read from."""

    BROKER = "broker"
    DATA_FOLDER = "data folder"
    TIER = "tier"


@dataclass(frozen=True, slots=True)
class SourceOption:
    """A parsed --source: HOST:PORT[,...], an absolute path, or a URL."""

    kind: SourceKind
    text: str


def folder_or_server(source: str, server: str) -> tuple[str | None, str]:
    """Return the data folder of --source, or None with the broker to ask: that of --source, or
    `server` without a --source. Ends the command with exit code 2 for anything else."""
    if not source:
        return None, server
    try:
        found = parse_source("--source", source)
        if "://" in found.text:
            raise OptionError("--source", source, "HOST:PORT of a broker or a data folder")
    except OptionError as error:
        fail(error, 2)
    return (None, found.text) if found.kind is SourceKind.BROKER else (source, server)


def parse_source(option: str, text: str) -> SourceOption:
    """Parse the value of --source. OptionError if it is neither an address, a URL nor a folder."""
    if text.startswith(("s3://", "file://")):
        return SourceOption(SourceKind.TIER, text)
    path = os.path.abspath(text)
    if "/" not in text and text and all(split_address(each) for each in text.split(",")):
        return SourceOption(SourceKind.BROKER, text)
    if not text or "\0" in text or not os.path.isdir(path):
        raise OptionError(option, text, ALLOWED)
    is_data = any(os.path.exists(os.path.join(path, name)) for name in DATA_NAMES)
    return SourceOption(SourceKind.DATA_FOLDER if is_data else SourceKind.TIER, path)


def source_of(text: str, bootstrap: str, isolation: str = "read_committed") -> Source:
    """Parse a URL, a folder or broker addresses, "" for `bootstrap` alone, into a source.
    SourceError."""
    from kafkawire.reading.model.source import READ_COMMITTED, READ_UNCOMMITTED, Source, SourceError

    if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise SourceError(
            f"--isolation-level={isolation}: it must be {READ_COMMITTED} or {READ_UNCOMMITTED}"
        )
    if text and all(split_address(each) for each in text.split(",")):
        text, bootstrap = "", text
    if text and "://" not in text:
        try:
            parse_source("--source", text)
        except OptionError as error:
            raise SourceError(str(error)) from None
    return Source(url=text, bootstrap=bootstrap, isolation=isolation)
