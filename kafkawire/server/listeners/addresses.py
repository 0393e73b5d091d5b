"""Sentences about the addresses of a broker: those that it listens on, and those that cannot be
bound.

Imports nothing of the broker: the supervisor of `serve --workers` binds addresses too.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkawire.log_lines import address_of

if TYPE_CHECKING:
    from kafkawire.broker.options import ServeOptions


class AddressError(ValueError):
    """An address that cannot be bound: one sentence with the option, its value and the reason."""


def cannot_bind(option: str, host: str, port: int, error: OSError) -> AddressError:
    """Return the error for an address of an option that cannot be bound."""
    return AddressError(f"{option}={address_of(host, port)}: {_reason(error)}")


def ready_line(
    options: ServeOptions, listeners: Mapping[str, tuple[str, int]], console: str = ""
) -> str:
    """Return protocols and addresses in the order of the listeners, as --listen takes them, and a
    command for the first one; with the URL of a console a second line."""
    addresses = [address_of(*listeners[each.name]) for each in options.listeners]
    protocols = [each.protocol.value for each in options.listeners]
    named = ", ".join(map("{}://{}".format, protocols, addresses))
    # The file has the authority's certificate, or a user with a password.
    command = "kafkawire" if protocols[0] == "PLAINTEXT" else "kafkawire --command-config FILE"
    return (
        f"kafkawire listens on {named}; data in {options.data}; "
        f"try: {command} topics list --server {addresses[0]}"
        + (f"\nkafkawire console: {console}" if console else "")
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
