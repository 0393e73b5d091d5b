"""Statements on `broker_heartbeats`: a number for each broker, which the broker raises each second.
While it reads its log at its start the number is negative and falls instead: the broker is started,
but serves nothing.

Called through a connection of its own (`Database`, quick), so that a long transaction on the other
one does not delay a heartbeat, and the disk need not sync for it: a lost heartbeat is followed by
the next. `kafkawire.broker.liveness` decides what the numbers mean. Functions here run inside a
transaction of the caller; `epoch` is the broker epoch of the caller, None if it has not registered:
a process writes nothing once another one was started as the same broker.
"""

from __future__ import annotations

from kafkawire.metadata.session import Session
from kafkawire.metadata.store import BrokerSuperseded, OlderMetadata

OF_EPOCH = "EXISTS (SELECT 1 FROM brokers WHERE node_id = ? AND epoch = ?)"


def beat(
    session: Session, node_id: int, epoch: int | None = None, starting: bool = False
) -> dict[int, int]:
    """Raise the number of a broker, or lower it if the broker is still starting; return those of
    all brokers that have one. Raises BrokerSuperseded, OlderMetadata."""
    valid, terms = _guard(node_id, epoch)
    step, same_sign = (-1, "<") if starting else (1, ">")
    raised = session.run(
        f"INSERT INTO broker_heartbeats (node_id, heartbeats) SELECT ?, {step} WHERE {valid}"
        " ON CONFLICT (node_id) DO UPDATE SET heartbeats = CASE"
        f" WHEN broker_heartbeats.heartbeats {same_sign} 0"
        f" THEN broker_heartbeats.heartbeats + {step} ELSE {step} END",
        (node_id, *terms),
    )
    if not raised:
        rows = session.rows("SELECT epoch FROM brokers WHERE node_id = ?", (node_id,))
        stored = int(rows[0][0]) if rows else 0
        if rows and epoch is not None and stored < epoch:
            raise OlderMetadata(f"its broker epoch is {stored}, and was {epoch} before")
        raise BrokerSuperseded(node_id, stored)
    rows = session.rows("SELECT node_id, heartbeats FROM broker_heartbeats")
    return {int(node): int(heartbeats) for node, heartbeats in rows}


def read(session: Session, node_id: int) -> tuple[int, int | None]:
    """Return the epoch of a broker, 0 for one that is not registered, and its number; None if it
    has none."""
    epochs = session.rows("SELECT epoch FROM brokers WHERE node_id = ?", (node_id,))
    rows = session.rows("SELECT heartbeats FROM broker_heartbeats WHERE node_id = ?", (node_id,))
    return int(epochs[0][0]) if epochs else 0, int(rows[0][0]) if rows else None


def end(session: Session, node_id: int, epoch: int | None = None) -> None:
    """Delete the number of a broker."""
    valid, terms = _guard(node_id, epoch)
    session.run(f"DELETE FROM broker_heartbeats WHERE node_id = ? AND {valid}", (node_id, *terms))


def _guard(node_id: int, epoch: int | None) -> tuple[str, tuple[int, ...]]:
    """Return a condition and its values."""
    return ("1 = 1", ()) if epoch is None else (OF_EPOCH, (node_id, epoch))
