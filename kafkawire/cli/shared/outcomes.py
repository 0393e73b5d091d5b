"""Helpers of the admin commands: connect, print results, name error codes.

Called by kafkawire.cli.topics.commands, kafkawire.cli.groups and others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafkawire.cli.shared.output import fail, print_json, print_table, without_password
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.codec.errors import ErrorCode


@contextmanager
def connected(server: str) -> Iterator[Cluster]:
    """Connect to the cluster of a broker; a ClientError ends the command with exit code 1."""
    try:
        with Cluster(server) as cluster:
            yield cluster
    except ClientError as error:
        fail(error)


def fail_unless(succeeded: bool) -> None:
    """End the command with exit code 1 if it did not succeed; the reasons are already printed."""
    if not succeeded:
        raise SystemExit(1)


def print_results(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str, as_json: bool
) -> None:
    """Print the result per item, as JSON or as a table."""
    if as_json:
        print_json(list(rows))
    else:
        print_table(rows, columns, title)


def error_text(code: int, message: str | None = None) -> str | None:
    """Return None for code 0, else `NAME: sentence`."""
    if not code:
        return None
    known = ErrorCode(code) if code in set(ErrorCode) else None
    if known is None:
        return f"error {code}: {message or 'unknown error'}"
    return f"{known.name}: {message or known.sentence}"


def report(title: str, rows: list[dict[str, Any]], columns: Sequence[str], as_json: bool) -> None:
    """Print the results, and each error on standard error: exit code 1 if there is one."""
    failed = [row for row in rows if row["error"] is not None]
    if as_json:
        print_json(rows)
    else:
        done = [row for row in rows if row["error"] is None]
        if done or not failed:
            print_table(done, columns, title)
    if not as_json:
        for row in failed:
            text = without_password(f"{row[columns[0]]}: {row['error']}")
            print(f"kafkawire: {text}", file=sys.stderr)
    fail_unless(not failed)
