"""Addresses and other values of the command line, parsed into ServeOptions.

Pure: no file, no environment (that is kafkawire.cli.serving.sources). Every error is an OptionError
whose text is one sentence with the option, the value and what is allowed. Called by
kafkawire.cli.serving.run and by the other commands.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from kafkawire.broker.options import PROTOCOLS, Listener, parse_listener
from kafkawire.client.address import split_address
from kafkawire.client.notation import OptionError

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
LOG_FORMATS = ("text", "json")
DEFAULT_LISTENER = "PLAINTEXT"
WILDCARDS = ("", "0.0.0.0", "::", "*")


def parse_address(option: str, text: str) -> tuple[str | None, str, int]:
    """Parse `[NAME://]HOST:PORT` into (name or None, host without brackets, port 0-65535)."""
    found = split_address(text)
    if found is None:
        raise OptionError(option, text, "[NAME://]HOST:PORT with a port from 0 to 65535")
    return found


def parse_choice(option: str, text: str, choices: Sequence[str]) -> str:
    """Return the text if it is one of `choices`, ignoring case. OptionError."""
    if text.lower() not in choices:
        raise OptionError(option, text, "one of " + ", ".join(choices))
    return text.lower()


def parse_number(option: str, text: str, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`. OptionError."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    if not is_number or not low <= int(text) <= high:
        raise OptionError(option, text, f"a whole number from {low} to {high}")
    return int(text)


def parse_listeners(texts: Sequence[str]) -> list[Listener]:
    """Parse all --listen addresses; one without a name has that of its protocol, as in Kafka."""
    listeners: list[Listener] = []
    for text in texts:
        listener = parse_listener(text)
        if listener is None:
            protocols = ", ".join(PROTOCOLS)
            raise OptionError(
                "listen",
                text,
                "[[NAME=]PROTOCOL://]HOST:PORT with a port from 0 to 65535; protocols are "
                f"{protocols}",
            )
        if any(other.name == listener.name for other in listeners):
            raise OptionError(
                "listen", text, "NAME=PROTOCOL://HOST:PORT with a different NAME for each listener"
            )
        if listener.port and any(_same_place(other, listener) for other in listeners):
            raise OptionError("listen", text, "a different port for each listener")
        listeners.append(listener)
    return listeners


def _same_place(a: Listener, b: Listener) -> bool:
    same_host = a.host == b.host or a.host in WILDCARDS or b.host in WILDCARDS
    return a.port == b.port and same_host


def parse_advertised(
    texts: Sequence[str], listeners: Sequence[Listener]
) -> dict[str, tuple[str, int]]:
    """Advertised address of each listener: from --advertise if given, else the address it listens
    on; a listener on all addresses advertises this machine's host name."""
    given: dict[str, tuple[str, int]] = {}
    names = [listener.name for listener in listeners]
    for text in texts:
        name, host, port = parse_address("advertise", text)
        if name is None:
            name = names[0] if len(names) == 1 else DEFAULT_LISTENER
        if name not in names:
            allowed = "NAME://HOST:PORT with the NAME of a listener (" + ", ".join(names) + ")"
            raise OptionError("advertise", text, allowed)
        if host in WILDCARDS:
            raise OptionError("advertise", text, "a host that clients can connect to")
        if name in given:
            raise OptionError("advertise", text, "one address for each listener")
        given[name] = (host, port)
    for listener in listeners:
        host = socket.gethostname() if listener.host in WILDCARDS else listener.host
        given.setdefault(listener.name, (host, listener.port))
    return given
