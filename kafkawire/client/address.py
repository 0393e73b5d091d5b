"""Addresses of brokers and listeners, from text. Pure."""

from __future__ import annotations

import re

from kafkawire.client.errors import ClientError

MAX_SERVERS = 100
"""As first addresses of a cluster; a few are enough."""

_ADDRESS = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_.-]+)://)?(?P<host>\[[^][/\s]+\]|[^:/\[\]\s]*):(?P<port>[0-9]+)"
)


def split_address(text: str) -> tuple[str | None, str, int] | None:
    """`[NAME://]HOST:PORT` -> (name or None, host without brackets, port 0-65535); None: it is
    no address."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or len(found["port"]) > 5 or int(found["port"]) > 65535:
        return None
    return found["name"], found["host"].strip("[]"), int(found["port"])


def parse_servers(option: str, text: str) -> list[tuple[str, int]]:
    """`HOST:PORT[,HOST:PORT...]`, brokers to connect to; a NAME:// before one is ignored.

    ClientError names `option`, which `text` was given as.
    """
    servers: list[tuple[str, int]] = []
    for each in text.split(","):
        found = split_address(each)
        if found is None or not found[1] or not found[2]:
            raise ClientError(f"{option}={text}: it must be HOST:PORT of a broker")
        servers.append(found[1:])
    if len(servers) > MAX_SERVERS:
        raise ClientError(f"{option}: {len(servers)} brokers; at most {MAX_SERVERS} are allowed")
    return servers
