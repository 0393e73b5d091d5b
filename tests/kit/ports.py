"""Free ports for servers that cannot choose one themselves."""

from __future__ import annotations

import random
import socket

PORTS = range(16_000, 32_000)
"""Below the ports that Linux assigns to outgoing connections and to servers that bind port 0
(ip_local_port_range, from 32768). Of those, a found one may be in use again before the server has
started, since clients of all workers of the run connect meanwhile."""
MAX_ATTEMPTS = 1000
_random = random.SystemRandom()
"""Not seeded: workers of a run, which may seed their generators alike, must find other ports."""


def free_port() -> int:
    """Return a port of this machine that no server listens on."""
    for _ in range(MAX_ATTEMPTS):
        port = _random.choice(PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # in use
            continue
        return port
    raise OSError(f"no free port of {PORTS} in {MAX_ATTEMPTS} attempts")


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine that no server listens on."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)
