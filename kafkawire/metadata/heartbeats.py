"""Statements on `broker_heartbeats`: a number for each broker, which the broker raises each second.

Called through a connection of its own (`Database`, quick), so that a long transaction on the other
one does not delay a heartbeat, and the disk need not sync for it: a lost heartbeat is followed by
the next. `kafkawire.broker.liveness` decides what the numbers mean. Functions here run inside a
transaction of the caller.
"""

from __future__ import annotations

from kafkawire.metadata.session import Session


def beat(session: Session, node_id: int) -> dict[int, int]:
    """Raise the number of a broker; return those of all brokers that have one."""
    session.run(
        "INSERT INTO broker_heartbeats (node_id, heartbeats) VALUES (?, 1) ON CONFLICT (node_id)"
        " DO UPDATE SET heartbeats = broker_heartbeats.heartbeats + 1",
        (node_id,),
    )
    rows = session.rows("SELECT node_id, heartbeats FROM broker_heartbeats")
    return {int(node): int(heartbeats) for node, heartbeats in rows}


def end(session: Session, node_id: int) -> None:
    """Delete the number of a broker."""
    session.run("DELETE FROM broker_heartbeats WHERE node_id = ?", (node_id,))
