"""The health of a broker, as reported by /health.

A broker is healthy if it accepts produces and answers reads, and its metadata is not known to be
damaged, which may prevent the next start. Failures of the remote tier are reported but do not make
it unhealthy, because a restart would not help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.server.monitored import MonitoredServer


def health(server: MonitoredServer) -> tuple[bool, dict[str, object]]:
    """Return (healthy, the fields of the response)."""
    broker = server.broker
    commit_log = broker.log.commit_log
    check = server.metadata_check
    damage = check.damage if check is not None else ""
    trouble = commit_log.failed or commit_log.refusal or damage or None
    facts: dict[str, object] = {
        "status": "ok" if trouble is None else "ill",
        "cluster_id": broker.cluster_id,
        "node_id": broker.node_id,
        "listeners": {name: list(address) for name, address in broker.listeners.items()},
        "topics": len(broker.catalog.by_name),
    }
    if trouble is not None:
        facts["reason"] = trouble
    return trouble is None, facts
