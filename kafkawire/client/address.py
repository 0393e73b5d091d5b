"""Parsing of broker and listener addresses. Pure."""

from __future__ import annotations

import re

from kafkawire.client.errors import ClientError

MAX_SERVERS = 100
"""Maximum number of bootstrap servers; a few are enough."""

_ADDRESS = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_.-]+)://)?(?P<host>\[[^][/\s]+\]|[^:/\[\]\s]*):(?P<port>[0-9]+)"
)


def split_address(text: str) -> tuple[str | None, str, int] | None:
    """Parse `[NAME://]HOST:PORT` into (name or None, host without brackets, port 0-65535); None if
    it is not an address."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or len(found["port"]) > 5 or int(found["port"]) > 65535:
        return None
    host = found["host"].strip("[]")
    return (found["name"], host, int(found["port"])) if _may_be_resolved(host) else None


def _may_be_resolved(host: str) -> bool:
    """Return whether DNS can have a name: its parts have 1 to 63 characters."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def parse_servers(option: str, text: str) -> list[tuple[str, int]]:
    """Parse `HOST:PORT[,HOST:PORT...]`, brokers to connect to; a NAME:// prefix is ignored.

    ClientError names `option`, the source of `text`.
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
