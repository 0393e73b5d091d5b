"""Start options of the server: listeners, data folder, settings.

Plain validated data: the command line (kafkawire.cli) creates it from options, environment and
file, for kafkawire.server.run. Settings are strings here; kafkawire.codec.configs.settings has
their types, bounds and defaults.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass, field
from enum import Enum

from kafkawire.client.address import split_address


class SecurityProtocol(Enum):
    """The protocol of a listener; `tls`: encrypted, `sasl`: with a log-in."""

    PLAINTEXT = "PLAINTEXT"
    TLS = "TLS"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_TLS = "SASL_TLS"

    @property
    def tls(self) -> bool:
        return self in (SecurityProtocol.TLS, SecurityProtocol.SASL_TLS)

    @property
    def sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_TLS)


PROTOCOLS = {each.value: each for each in SecurityProtocol} | {
    "SSL": SecurityProtocol.TLS,
    "SASL_SSL": SecurityProtocol.SASL_TLS,
}
"""Protocols by the names that --listen accepts: ours, and Kafka's for the same."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One address to listen on. Port 0: the system chooses a free one."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    @property
    def tls(self) -> bool:
        """Return whether connections are encrypted."""
        return self.protocol.tls

    @property
    def sasl(self) -> bool:
        """Return whether clients must log in before their first request."""
        return self.protocol.sasl


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a listener on `host`. A name other than
    localhost may have any address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def parse_listener(text: str) -> Listener | None:
    """Parse `[NAME=]PROTOCOL://HOST:PORT`, `NAME://HOST:PORT` or `HOST:PORT`; None if it is none of
    them.

    Without a protocol it is PLAINTEXT; without a name the listener has that of its protocol, as
    given. Protocols are recognized in any case, so that `tls://` is never a plaintext listener of
    that name.
    """
    name, equals, rest = text.strip().partition("=")
    found = split_address(rest if equals else text)
    if found is None:
        return None
    prefix, host, port = found
    protocol = PROTOCOLS.get((prefix or SecurityProtocol.PLAINTEXT.value).upper())
    host = "" if host == "*" else host
    if not equals:
        name = prefix or SecurityProtocol.PLAINTEXT.value
        name = name.upper() if protocol is not None else name
        return Listener(name, host, port, protocol or SecurityProtocol.PLAINTEXT)
    is_name = re.fullmatch(r"[A-Za-z0-9_.-]+", name) is not None
    if not is_name or prefix is None or protocol is None:
        return None
    return Listener(name, host, port, protocol)


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """Descriptors of listening sockets that a worker got from the supervisor, for one listener.
    `shared`: those of the address in --listen, on which all workers accept; `own`: those of the
    worker's own address, whose port is `port`."""

    shared: tuple[int, ...]
    own: tuple[int, ...]
    port: int


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """The role of a broker process that is a worker of `serve --workers`.

    `workers`: their number; `first`: whether it does what is done once for all of them; `drain`:
    whether it is more than --workers asks for, and is to hand over what it leads; `control`:
    descriptor of the connection to the supervisor; `sockets` of each listener, in their order;
    `metrics`: those of its own address for monitors; `restarted`: whether it has served before,
    since the supervisor was started; `after`: the epoch of the broker on another machine that it
    takes over, or -1."""

    workers: int
    first: bool
    drain: bool
    control: int
    sockets: tuple[InheritedSockets, ...]
    metrics: tuple[int, ...] = ()
    restarted: bool = False
    after: int = -1

    def option_value(self) -> str:
        """Return it as the value of the option --worker."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> WorkerRole | None:
        """Return the role that `option_value` made; None if it is something else."""
        try:
            found = json.loads(text)
            sockets = tuple(
                InheritedSockets(_numbers(each["shared"]), _numbers(each["own"]), int(each["port"]))
                for each in found["sockets"]
            )
            return cls(
                int(found["workers"]), bool(found["first"]), bool(found["drain"]),
                int(found["control"]), sockets, _numbers(found["metrics"]),
                bool(found["restarted"]), int(found["after"]),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _numbers(found: list[int]) -> tuple[int, ...]:
    return tuple(int(each) for each in found)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of one broker process, or of the supervisor of several.

    `advertised` has an entry for every listener by name: the host and port that Metadata and
    FindCoordinator return to clients of that listener (port 0: the port that was bound). `data` is
    the absolute path of the data folder, `metadata_url` an SQL URL (empty: SQLite in that
    folder), `settings` the broker settings that differ from their defaults (name -> validated
    string), `listener_settings` those of single listeners (listener.name.NAME.SETTING). `workers`:
    how many processes serve; `worker_ports`: the ports of their own addresses as given; `worker`:
    the role of this process, if it is one of them; `console`: the address of its
    pages, or empty.
    """

    listeners: list[Listener]
    advertised: dict[str, tuple[str, int]]
    data: str
    metadata_url: str = field(repr=False)  # may have a password
    settings: dict[str, str] = field(default_factory=dict, repr=False)  # may be secret
    listener_settings: dict[str, str] = field(default_factory=dict, repr=False)
    log_level: str = "info"
    log_format: str = "text"
    workers: int = 1
    worker_ports: tuple[str, ...] = ()
    worker: WorkerRole | None = None
    console: str = ""
