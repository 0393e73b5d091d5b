"""Lines of standard input and files as bytes, with bounded memory."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from kafkawire.cli.shared.options import OptionError
from kafkawire.client.errors import ClientError

MAX_LINE_BYTES = 64 << 20
"""Bytes of a line or file that becomes a record: far more than brokers accept."""
CHUNK_BYTES = 256 << 10
IDLE_S = 0.1
"""Time without input after which the caller sends what it has collected."""
STANDARD = "-"


def lines_of(
    files: Sequence[str], idle: Callable[[], None], *, whole: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Yield (place, line without its end) of files, of standard input without any; each file as one
    with `whole`. `idle` is called while standard input has nothing. ClientError for a line that is
    too long or a file that cannot be read."""
    for name in files or [STANDARD]:
        with _opened(name) as stream:
            try:
                if whole:
                    yield name, _all(name, stream)
                    continue
                prefix = "line" if len(files) < 2 else f"{name}, line"
                for number, line in enumerate(_lines(stream, idle), 1):
                    yield f"{prefix} {number}", line
            except OSError as error:
                raise ClientError(f"{name} cannot be read: {error.strerror}") from None


def check_files(files: Sequence[str]) -> None:
    """Check, before the first line is read, that every file can be read: a wrong second name must
    not be found after the records of the first file are stored. Opens none, as a pipe can be opened
    only once. Raises OptionError."""
    for name in files:
        if name == STANDARD:
            continue
        readable = bool(name) and "\0" not in name and os.access(name, os.R_OK)
        if not readable or os.path.isdir(name):
            raise OptionError("FILE", name, "a file that can be read, or - for standard input")


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        stream = open(name, "rb")  # noqa: SIM115  (closed below)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClientError(f"{name} cannot be read: {reason}") from None
    with stream:
        yield stream


def _all(name: str, stream: IO[bytes]) -> bytes:
    data = stream.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise ClientError(f"{name} is larger than {MAX_LINE_BYTES >> 20} MiB")
    return data


def _lines(stream: IO[bytes], idle: Callable[[], None]) -> Iterator[bytes]:
    rest = bytearray()
    number = 1
    for chunk in _chunks(stream, idle):
        searched = len(rest)  # has no line end
        rest += chunk
        begin = 0
        while (end := rest.find(b"\n", max(begin, searched))) >= 0:
            yield bytes(rest[begin:end])
            begin, number = end + 1, number + 1
        del rest[:begin]
        if len(rest) > MAX_LINE_BYTES:
            raise ClientError(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
    if rest:
        yield bytes(rest)


def _chunks(stream: IO[bytes], idle: Callable[[], None]) -> Iterator[bytes]:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        descriptor = -1
    while True:
        if descriptor < 0:
            chunk = stream.read(CHUNK_BYTES)
        else:
            if not select.select([descriptor], [], [], IDLE_S)[0]:
                idle()
                select.select([descriptor], [], [])
            chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk
