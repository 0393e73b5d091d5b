"""Helpers of the admin commands: connect, print results, name error codes.

Called by the commands of topics, groups and others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kafkawire.cli.shared.command_config import COMMAND_CONFIG
from kafkawire.cli.shared.output import fail, print_json, without_password
from kafkawire.cli.shared.tables import Columns, print_table
from kafkawire.client.address import parse_servers
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.security import NO_SECURITY, ClientSecurity, read_security
from kafkawire.codec.errors import ErrorCode


@contextmanager
def connect_cluster(server: str) -> Iterator[Cluster]:
    """Connect to the cluster of a broker. An invalid address ends the command with exit code 2, a
    ClientError with exit code 1."""
    try:
        parse_servers("--server", server)
    except ClientError as error:
        fail(error, 2)
    try:
        with Cluster(server, security=client_security()) as cluster:
            yield cluster
    except ClientError as error:
        fail(error)


def client_security(login: bool = True) -> ClientSecurity:
    """Return encryption and log-in as --command-config has them; without `login` it needs no user.
    An invalid file ends the command with exit code 2."""
    path = COMMAND_CONFIG.get()
    try:
        return read_security("--command-config", path, login) if path else NO_SECURITY
    except ClientError as error:
        fail(error, 2)


def fail_unless(succeeded: bool) -> None:
    """End the command with exit code 1 if it did not succeed; the reasons are already printed."""
    if not succeeded:
        raise SystemExit(1)


def print_results(
    rows: Sequence[dict[str, Any]], columns: Columns, title: str, as_json: bool, wide: bool = False
) -> None:
    """Print the result per item, as JSON or as a table."""
    if as_json:
        print_json(list(rows))
    else:
        print_table(rows, columns, title, wide)


def error_text(code: int, message: str | None = None) -> str | None:
    """Return None for code 0, else `NAME: sentence`."""
    if not code:
        return None
    known = ErrorCode(code) if code in set(ErrorCode) else None
    if known is None:
        return f"error {code}: {message or 'unknown error'}"
    return f"{known.name}: {message or known.sentence}"


def report(
    title: str, rows: list[dict[str, Any]], columns: Columns, as_json: bool, wide: bool = False
) -> None:
    """Print the results, and each error on standard error: exit code 1 if there is one."""
    failed = [row for row in rows if row["error"] is not None]
    if as_json:
        print_json(rows)
    else:
        done = [row for row in rows if row["error"] is None]
        if done or not failed:
            print_table(done, columns, title, wide)
    if not as_json:
        for row in failed:
            first = columns[0] if isinstance(columns[0], str) else columns[0].key
            text = without_password(f"{row[first]}: {row['error']}")
            print(f"kafkawire: {text}", file=sys.stderr)
    fail_unless(not failed)
