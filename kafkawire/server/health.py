"""The health of a broker, as reported by /health.

A broker is healthy if it accepts produces and answers reads, its metadata is not known to be
damaged, which may prevent the next start, and no other broker owns its remote tier: two brokers
then believe to have the same topics. Other failures of the remote tier do not make it unhealthy,
because a restart would not help.
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
    refusal = commit_log.refusal.message if commit_log.refusal is not None else ""
    fenced = broker.tiering.fence.why if broker.tiering is not None else ""
    trouble = commit_log.failed or refusal or fenced or damage or None
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
