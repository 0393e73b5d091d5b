"""`kafkawire console`: topics, records and groups of a cluster in a browser."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import client_security
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL, Server, not_empty
from kafkawire.client.address import parse_servers, split_address
from kafkawire.client.errors import ClientError
from kafkawire.extras import need
from kafkawire.log_lines import address_of
from kafkawire.objectstore.url import parse_tier

if TYPE_CHECKING:
    from kafkawire.console.web.frame import ConsoleOptions

LISTEN = "127.0.0.1:8080"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
MAX_CONNECTIONS = 500
"""Open connections of browsers, each with six at most; one more is answered with 503."""
SHUTDOWN_S = 10
"""How long pages may last after Ctrl-C; one that reads records takes 5 s at most."""


def console(
    server: Server = LOCAL,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the pages, on the loopback interface; port 0: any free one.",
        ),
    ] = LISTEN,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Allow changes, not only reading.")
    ] = False,
    pipeline: Annotated[
        list[str],
        typer.Option(
            metavar="URL",
            callback=not_empty,
            help="Table of a pipeline to show, a folder or s3://BUCKET/PREFIX; may be repeated.",
        ),
    ] = [],  # noqa: B006
    child: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Serve a console: topics, records and groups of any Kafka cluster in a browser.

    It shows more where the broker is kafkawire. It starts without a broker, too, and shows its
    pages when that answers. It has no log-in yet, so it listens on the loopback interface only.

    Examples:
      kafkawire console
      kafkawire console --server kafka.example.com:9092 --listen 127.0.0.1:8081
    """
    need("console", "kafkawire console")
    try:
        parse_servers("--server", server)
        host, port = parse_listen("--listen", listen)
    except (ClientError, OptionError) as error:
        fail(error, 2)
    try:
        tables = [parse_tier(url, what="table").url for url in pipeline]
    except ValueError as wrong:
        fail(f"--pipeline: {wrong}", 2)
    security = client_security()
    try:
        accepting = _inherit(child) if child else _listen(host, port)
    except OptionError as error:
        fail(error, 2)
    except OSError as error:
        fail(f"--listen={listen}: it cannot be listened on ({_reason(error)})")
    from kafkawire.console.web.frame import ConsoleOptions

    options = ConsoleOptions(
        server, (*LOOPBACK_NAMES, host.lower()), security, allow_changes, tables
    )
    print(f"http://{address_of(host, int(accepting.getsockname()[1]))}/", flush=True)
    _serve(options, accepting)


def _inherit(child: str) -> socket.socket:
    """Return the listening socket of a broker, with which this process ends; `child`: the id of its
    process, and the descriptor. OptionError."""
    from kafkawire.childprocess.child_end import kill_with_parent

    parent, _, number = child.partition(",")
    if parent != str(os.getppid()) or not number.isdecimal():
        raise OptionError("--child", child, "what serve --console gives its console")
    kill_with_parent()
    if parent != str(os.getppid()):  # it has ended meanwhile
        raise SystemExit(1)
    return socket.socket(fileno=int(number))


def parse_listen(option: str, text: str) -> tuple[str, int]:
    """Parse HOST:PORT with a host of the loopback interface. OptionError."""
    found = split_address(text)
    if found is None or found[0] is not None or not _is_loopback(found[1]):
        allowed = (
            "HOST:PORT of the loopback interface, such as 127.0.0.1:8080, because the console has "
            "no log-in"
        )
        raise OptionError(option, text, allowed)
    return found[1:]


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def _reason(error: OSError) -> str:
    """Return the system's text for an error; that of `socket` repeats the address."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


def _serve(options: ConsoleOptions, accepting: socket.socket) -> None:
    """Serve the pages on a listening socket until SIGINT or SIGTERM."""
    import uvicorn

    from kafkawire.console.app import application

    server: uvicorn.Server | None = None
    config = uvicorn.Config(
        application(options, lambda: server is not None and server.should_exit),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[accepting])
