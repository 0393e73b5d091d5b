"""A broker with a metrics page, and the latencies on it that clients pushed (KIP-714)."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kafkawire.testing.process import BrokerProcess
from tests.kit.ports import free_ports

_ROW = re.compile(
    r'^kafkawire_client_latency_seconds{client="\w+",client_id="([^"]*)",'
    r'kind="(\w+)",stat="(\w+)"} (\S+)$',
    re.M,
)


@contextmanager
def broker_with_page(data: Path, settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Run a broker; yield its address and the URL of its metrics page."""
    (port,) = free_ports(1)
    page = f"127.0.0.1:{port}"
    with BrokerProcess(data, settings={**settings, "metrics.listener": page}) as process:
        yield process.bootstrap, f"http://{page}/metrics"


def pushed_latencies(url: str) -> dict[str, dict[tuple[str, str], float]]:
    """Return latencies in seconds by client id, kind and stat, from a metrics page."""
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, str], float]] = {}
    for client_id, kind, stat, seconds in _ROW.findall(text):
        found.setdefault(client_id, {})[kind, stat] = float(seconds)
    return found
