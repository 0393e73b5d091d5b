"""`kafkawire console`: topics, records and groups of a cluster in a browser."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from kafkawire.cli.shared.outcomes import client_security
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL, Server, not_empty
from kafkawire.client.address import parse_servers, split_address
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.extras import need
from kafkawire.log_lines import address_of, reason_of
from kafkawire.objectstore.url import parse_tier

if TYPE_CHECKING:
    from kafkawire.console.web.frame import ConsoleOptions

LISTEN = "127.0.0.1:8080"
ALL_INTERFACES = ("0.0.0.0", "::")
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
            help="Address of the pages; port 0: any free one. Interfaces other than loopback need "
            "--login and TLS.",
        ),
    ] = LISTEN,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Allow changes, not only reading.")
    ] = False,
    login: Annotated[
        bool,
        typer.Option(
            "--login", help="Users log in with the broker's SASL users; ACLs apply to them."
        ),
    ] = False,
    host: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            callback=not_empty,
            help="Name or address by which browsers reach it; may be repeated.",
        ),
    ] = [],  # noqa: B006
    tls_cert: Annotated[
        str,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            callback=not_empty,
            help="PEM file with the certificate for browsers.",
        ),
    ] = "",
    tls_key: Annotated[
        str,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            callback=not_empty,
            help="PEM file with its key, if --tls-cert has none.",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on any interface without --login or TLS, in a trusted network.",
        ),
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
    pages when that answers. --command-config says how the broker is reached; with --login it needs
    no user, and its sasl.mechanism is SCRAM-SHA-512 by default.

    Examples:
      kafkawire console
      kafkawire console --server kafka.example.com:9092 --listen 127.0.0.1:8081
      kafkawire console --listen 0.0.0.0:8443 --host console.example.com --login --allow-changes
        --tls-cert console.pem --tls-key console.key
    """
    need("console", "kafkawire console")
    try:
        parse_servers("--server", server)
        address, port = parse_listen("--listen", listen)
        _check_reach(listen, address, host, login and bool(tls_cert), insecure)
        if tls_key and not tls_cert:
            raise OptionError("--tls-key", tls_key, "given together with --tls-cert")
        if tls_cert:
            _check_certificate(tls_cert, tls_key)
    except (ClientError, OptionError) as error:
        fail(error, 2)
    try:
        tables = [parse_tier(url, what="table").url for url in pipeline]
    except ValueError as wrong:
        fail(f"--pipeline: {wrong}", 2)
    security = client_security(login=not login)
    try:
        accepting = _inherit(child) if child else _listen(address, port)
    except OptionError as error:
        fail(error, 2)
    except OSError as error:
        fail(f"--listen={listen}: it cannot be listened on ({_reason(error)})")
    from kafkawire.console.web.frame import ConsoleOptions

    names = {name.lower().strip("[]") for name in (*LOOPBACK_NAMES, address, *host)}
    options = ConsoleOptions(
        server, names, security, allow_changes, login, tls_cert, tls_key, pipelines=tables
    )
    shown = address_of(host[0] if host else address, int(accepting.getsockname()[1]))
    _serve(options, accepting, f"{'https' if tls_cert else 'http'}://{shown}/")


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
    """Parse HOST:PORT. OptionError."""
    found = split_address(text)
    if found is None or found[0] is not None or not found[1]:
        raise OptionError(option, text, "HOST:PORT, such as 127.0.0.1:8080")
    return found[1:]


def _check_reach(
    listen: str, address: str, hosts: Sequence[str], protected: bool, insecure: bool
) -> None:
    """Raise OptionError if others could reach the pages without a log-in or TLS, or under no name
    that the console accepts."""
    if _is_loopback(address):
        return
    if not protected and not insecure:
        allowed = (
            "an address of the loopback interface, such as 127.0.0.1:8080, without --login and "
            "--tls-cert (or --insecure in a trusted network)"
        )
        raise OptionError("--listen", listen, allowed)
    if address in ALL_INTERFACES and not hosts:
        allowed = "given together with --host NAME: the name by which browsers reach the console"
        raise OptionError("--listen", listen, allowed)


def _check_certificate(certificate: str, key: str) -> None:
    """Raise OptionError unless the files are a certificate and its key."""
    import ssl

    for option, path in (("--tls-cert", certificate), ("--tls-key", key or certificate)):
        if not os.access(path, os.R_OK):
            raise OptionError(option, path, "a readable file")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key with a pass phrase would be asked for at a terminal.
        context.load_cert_chain(certificate, key or None, password="")
    except (OSError, ValueError) as error:
        allowed = f"a certificate, and --tls-key its key without a pass phrase ({reason_of(error)})"
        raise OptionError("--tls-cert", certificate, allowed) from None


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


def _serve(options: ConsoleOptions, accepting: socket.socket, url: str) -> None:
    """Print the URL, and serve the pages on a listening socket until SIGINT or SIGTERM."""
    import uvicorn

    from kafkawire import log_format
    from kafkawire.console.app import application
    from kafkawire.console.web.connections import HttpConnection, SocketConnection
    from kafkawire.console.web.security import MAX_BODY_BYTES

    class Server(uvicorn.Server):
        """A server that ends in SHUTDOWN_S at most. Further signals would make uvicorn leave its
        tasks, which it logs as an error."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if not self.should_exit:
                super().handle_exit(sig, frame)

    # The audit of changes; uvicorn says nothing below a warning.
    log_format.setup("info", "text")
    server: Server | None = None
    config = uvicorn.Config(
        application(options, lambda: server is not None and server.should_exit),
        log_config=None,
        log_level="warning",
        # Else a client says from which address it comes, and failed log-ins are counted by address.
        proxy_headers=False,
        ssl_certfile=options.certificate or None,
        ssl_keyfile=options.key or None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
        http=HttpConnection,
        ws=SocketConnection,
        ws_max_size=MAX_BODY_BYTES,
        ws_per_message_deflate=False,  # it takes 64 KiB of memory for each connection
    )
    server = Server(config)
    print(url, flush=True)
    server.run(sockets=[accepting])
