"""The health of a broker, as reported by /health.

A broker is healthy if it accepts produces and answers reads, its metadata is not known to be
damaged, which may prevent the next start, and no other broker owns its remote tier: two brokers
then believe to have the same topics. A remote tier that is lost or that refuses this broker makes
it degraded: what is only there cannot be read, but it serves the rest, and an operator has to act.
Failures of the remote tier that are retried do not change its health.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.server.monitored import MonitoredServer


def health(server: MonitoredServer) -> tuple[bool, dict[str, object]]:
    """Return (healthy, the fields of the response). A degraded broker is healthy: without it no
    client would get what it does serve."""
    broker = server.broker
    commit_log = broker.log.commit_log
    check = server.metadata_check
    damage = check.damage if check is not None else ""
    refusal = commit_log.refusal.message if commit_log.refusal is not None else ""
    fenced = broker.tiering.fence.why if broker.tiering is not None else ""
    trouble = commit_log.failed or refusal or fenced or damage
    refused = broker.tiering.refused if broker.tiering is not None else ""
    facts: dict[str, object] = {
        "status": "ill" if trouble else "degraded" if refused else "ok",
        "cluster_id": broker.cluster_id,
        "node_id": broker.node_id,
        "listeners": {name: list(address) for name, address in broker.listeners.items()},
        "topics": len(broker.catalog.by_name),
    }
    if trouble or refused:
        facts["reason"] = trouble or refused
    return not trouble, facts
