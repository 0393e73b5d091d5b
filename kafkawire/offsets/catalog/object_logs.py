"""Statements on `object_logs`: from where to where the logs of brokers in their tiers are needed.

A log is the sequence of log objects that one process of a broker stores; its id is the broker epoch
of that process. Objects below `released` are not needed any more. The object with the sequence
number `ended` is a fence: nothing from there on belongs to the log.

Functions run inside a transaction of the caller (`Transactions.transact`). `broker_epoch` is that
of the calling process: once another process was started as the same broker, it changes nothing.

Callers keep this order:

- `open_log` is committed before the first object of a log is stored: the next process of the broker
  would not know that log.
- The fence is stored before `end` is called.
- `release` is committed before objects are deleted: the next process reads a log from `released`
  up to the first absent object.
- The fence is not deleted: a stalled writer would store an object with its sequence number, and
  acknowledge it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from kafkawire.metadata.session import Row, Session

_COLUMNS = "node_id, broker_epoch, url, released, ended, changed_ms"


@dataclass(frozen=True, slots=True)
class ObjectLog:
    """The stored state of one log. `url`: of the place in a tier that its keys are relative to;
    `released`: objects below this sequence number may be deleted; `ended`: the sequence number of
    the fence, None: the log is open; `changed_ms`: when the row was changed last."""

    node_id: int
    broker_epoch: int
    url: str
    released: int
    ended: int | None
    changed_ms: int

    @property
    def done(self) -> bool:
        """Whether it has ended, and nothing in it is needed any more."""
        return self.ended is not None and self.released >= self.ended


def open_log(session: Session, node_id: int, broker_epoch: int, url: str, now_ms: int) -> bool:
    """Insert the log of the calling process, if absent; return whether it is open. False if the
    process was superseded."""
    if not is_newest(session, node_id, broker_epoch):
        return False
    session.run(
        "INSERT INTO object_logs (node_id, broker_epoch, url, released, changed_ms)"
        " VALUES (?, ?, ?, 0, ?) ON CONFLICT (node_id, broker_epoch) DO NOTHING",
        (node_id, broker_epoch, url, now_ms),
    )
    log = _find(session, node_id, broker_epoch)
    return log is not None and log.ended is None


def enter(session: Session, logs: Iterable[ObjectLog]) -> None:
    """Insert logs that were found in a tier, and have the next life of their broker get a broker
    epoch above all of theirs. The brokers have rows."""
    for log in logs:
        session.run(
            "INSERT INTO object_logs (node_id, broker_epoch, url, released, ended, changed_ms)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            astuple(log),
        )
        session.run(
            "UPDATE brokers SET epoch = ? WHERE node_id = ? AND epoch < ?",
            (log.broker_epoch, log.node_id, log.broker_epoch),
        )


def load(session: Session, node_id: int) -> list[ObjectLog]:
    """Return the logs of a broker, by broker epoch."""
    return _logs(session, "WHERE node_id = ? ORDER BY broker_epoch", (node_id,))


def load_all(session: Session) -> list[ObjectLog]:
    """Return the logs of all brokers, by node id and broker epoch."""
    return _logs(session, "ORDER BY node_id, broker_epoch")


def end(
    session: Session, node_id: int, log_epoch: int, sequence: int, broker_epoch: int, now_ms: int
) -> int | None:
    """Store the sequence number of the fence of a log of an earlier broker epoch, unless it has
    one; return the stored one. None if the process was superseded, or the log is absent or not of
    an earlier epoch."""
    if log_epoch >= broker_epoch or not is_newest(session, node_id, broker_epoch):
        return None
    session.run(
        "UPDATE object_logs SET ended = ?, changed_ms = ?"
        " WHERE node_id = ? AND broker_epoch = ? AND ended IS NULL",
        (sequence, now_ms, node_id, log_epoch),
    )
    log = _find(session, node_id, log_epoch)
    return None if log is None else log.ended


def release(
    session: Session, node_id: int, log_epoch: int, sequence: int, broker_epoch: int, now_ms: int
) -> bool:
    """Raise `released` of a log to a sequence number; a lower one changes nothing. Return False,
    without a change, if the process was superseded, or the log is absent or ends below that
    number: its fence may not be deleted."""
    if not is_newest(session, node_id, broker_epoch):
        return False
    session.run(
        "UPDATE object_logs SET released = ?, changed_ms = ? WHERE node_id = ? AND broker_epoch = ?"
        " AND released < ? AND (ended IS NULL OR ended >= ?)",
        (sequence, now_ms, node_id, log_epoch, sequence, sequence),
    )
    log = _find(session, node_id, log_epoch)
    return log is not None and log.released >= sequence


def forget(session: Session, node_id: int, log_epoch: int, broker_epoch: int) -> bool:
    """Delete the row of a log that has ended and is released up to its end; return whether it was
    deleted."""
    if not is_newest(session, node_id, broker_epoch):
        return False
    deleted = session.run(
        "DELETE FROM object_logs WHERE node_id = ? AND broker_epoch = ? AND released >= ended",
        (node_id, log_epoch),
    )
    return deleted > 0


def is_newest(session: Session, node_id: int, broker_epoch: int) -> bool:
    """Return whether no other process was started as this broker; none can register before the
    transaction ends."""
    # The lock makes the next process wait, which registers first: so it loads everything that this
    # one has changed. SQLite has only one writer.
    lock = " FOR SHARE" if session.dialect == "postgresql" else ""
    query = f"SELECT 1 FROM brokers WHERE node_id = ? AND epoch = ?{lock}"
    return bool(session.rows(query, (node_id, broker_epoch)))


def _find(session: Session, node_id: int, log_epoch: int) -> ObjectLog | None:
    found = _logs(session, "WHERE node_id = ? AND broker_epoch = ?", (node_id, log_epoch))
    return found[0] if found else None


def _logs(session: Session, condition: str, values: Row = ()) -> list[ObjectLog]:
    found = session.read_checked("object_logs", _COLUMNS, condition, values)
    return [ObjectLog(*row) for row in found]
