"""Share sessions."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.share.sessions import LAST_EPOCH, Place, ShareSession, ShareSessions

A, B, C = ((bytes(16), index) for index in range(3))


def begun(limit: int = 10) -> tuple[ShareSessions, ShareSession]:
    sessions = ShareSessions(limit)
    return sessions, sessions.create_session("g", "m", [A, B], "connection")


def test_each_epoch_is_used_once_and_the_last_is_followed_by_the_first() -> None:
    sessions, session = begun()
    assert sessions.continue_session("g", "m", 1) is session
    with pytest.raises(KafkaError) as again:
        sessions.continue_session("g", "m", 1)
    assert again.value.code is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session.epoch = LAST_EPOCH
    sessions.continue_session("g", "m", LAST_EPOCH)
    assert session.epoch == 1
    with pytest.raises(KafkaError) as unknown:
        sessions.continue_session("other", "m", 1)
    assert unknown.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_session_has_exactly_what_was_sent() -> None:
    sessions, session = begun()
    # A client that only acknowledges a partition adds and forgets it in one request.
    sessions.update(session, [C, A], [C])
    assert list(session.partitions) == [A, B]
    sessions.update(session, [C], [A])
    assert list(session.partitions) == [B, C]
    turns: list[list[Place]] = [session.rotate(epoch) for epoch in (2, 3)]
    assert turns == [[B, C], [C, B]]


def test_a_new_session_replaces_the_one_of_the_same_member() -> None:
    sessions, _ = begun(limit=1)
    sessions.create_session("g", "m", [C], "new")
    assert sessions.of_connection("connection") == []
    assert sessions.of_connection("new") == [("g", "m")]
    with pytest.raises(KafkaError) as full:
        sessions.create_session("g", "other", [], "new")
    assert full.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.remove("g", "m")
    assert len(sessions) == 0
    assert ShareSession([], "x").rotate(5) == []


def test_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.share.sessions.PARTITIONS_MAX", 3)
    sessions, session = begun()
    with pytest.raises(KafkaError):
        sessions.create_session("g", "other", [A, B], "connection")
    with pytest.raises(KafkaError):
        sessions.update(session, [(bytes(16), index) for index in range(4)], [])
