"""Sentences about the addresses of a broker: those that it listens on, and those that cannot be
bound.

Imports nothing of the broker: the supervisor of `serve --workers` binds addresses too.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.broker.options import ServeOptions


class AddressError(ValueError):
    """An address that cannot be bound: one sentence with the option, its value and the reason."""


def cannot_bind(option: str, host: str, port: int, error: OSError) -> AddressError:
    """Return the error for an address of an option that cannot be bound."""
    where = f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"
    return AddressError(f"{option}={where}: {_reason(error)}")


def ready_line(options: ServeOptions, listeners: Mapping[str, tuple[str, int]]) -> str:
    """Return the addresses in the order of the listeners, and a command for the first one."""
    addresses = ["{}:{}".format(*listeners[each.name]) for each in options.listeners]
    first = options.listeners[0]
    names = {"TLS": "SSL", "SASL_TLS": "SASL_SSL"}
    protocol = names.get(first.protocol.value, first.protocol.value)
    more = "" if protocol == "PLAINTEXT" else f" -X security.protocol={protocol}"
    return (
        f"kafkawire listens on {', '.join(addresses)}; data in {options.data}; "
        f"try: kcat -b {addresses[0]}{more} -L"
    )


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host cannot be resolved ({error.strerror})"
    if error.errno == errno.EADDRINUSE:
        return "another process listens there"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    if error.errno == errno.EACCES:
        return "this user may not listen on that port"
    return f"cannot listen on it ({error.strerror or error})"
