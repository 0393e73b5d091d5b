"""`kafkawire certs make`: an authority, a server and a client certificate, to try TLS out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kafkawire.cli.shared.output import fail
from kafkawire.client.notation import OptionError, parse_duration
from kafkawire.extras import need
from kafkawire.log_lines import reason_of

MAX_DAYS = 3650
DAY_MS = 86_400_000


def make(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder to write to.")],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host", metavar="HOST", help="Name or address of the broker; may be repeated."
        ),
    ] = [],  # noqa: B006
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Common name of the client certificate.")
    ] = "client",
    valid_for: Annotated[
        str, typer.Option(metavar="DURATION", help="How long they are valid, in days.")
    ] = "365d",
) -> None:
    """Make certificates to try TLS out: an authority, a server and a client.

    Writes ca.pem, server.pem, server.key, client.pem, client.key and client.properties to the
    folder. The server certificate is for localhost, 127.0.0.1, ::1 and each --host. An authority
    that is in the folder already is used again; other files are replaced.

    Examples:
      kafkawire certs make certs --host kafka.example.org
      kafkawire serve --listen TLS://127.0.0.1:9094 --set ssl.keystore.location=certs/server.pem
        --set ssl.key.location=certs/server.key
    """
    if not folder:
        fail(OptionError("DIR", folder, "a folder"), 2)
    for host in hosts:
        if not _is_host(host):
            fail(OptionError("--host", host, "a host name or an address"), 2)
    try:
        days = _days(valid_for)
    except OptionError as error:
        fail(error, 2)
    if not client.strip() or len(client) > 64:
        fail(OptionError("--client", client, "a name of 1 to 64 characters"), 2)
    need("certs", "certs make")
    from kafkawire.cli.certs import AUTHORITY, write

    try:
        write(Path(folder), hosts, client, days)
    except OSError as error:
        fail(f"{folder}: the certificates cannot be written ({error.strerror})")
    except ValueError as error:
        fail(f"{folder}: {AUTHORITY}.pem and {AUTHORITY}.key cannot be used ({reason_of(error)})")
    print(
        f"{folder}: ca.pem, server.pem, server.key, client.pem, client.key, client.properties; and "
        "ca.key, which signs more of them: keep it elsewhere"
    )


def _days(text: str) -> int:
    """Return the days of a duration; a bare number is one of days. OptionError."""
    days = parse_duration("--valid-for", f"{text}d" if text.isdecimal() else text) // DAY_MS
    if not 1 <= days <= MAX_DAYS:
        raise OptionError("--valid-for", text, f"a duration from 1d to {MAX_DAYS}d")
    return days


def _is_host(text: str) -> bool:
    plain = text.removeprefix("*.").replace("-", "a").replace(".", "a").replace(":", "a")
    return 0 < len(text) <= 253 and text.isascii() and plain.isalnum()
