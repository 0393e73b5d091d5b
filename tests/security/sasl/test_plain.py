"""PLAIN: the texts of Kafka's failures, and what is asked of the store of passwords."""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.security.sasl.plain import Plain
from kafkawire.security.sasl.replies import LoggedIn, LoginFailure, TokenReply


async def is_right(user: str, password: str) -> bool:
    return (user, password) == ("alice", "se:cret")


def test_log_in() -> None:
    for token in (b"\0alice\0se:cret", b"alice\0alice\0se:cret"):
        assert asyncio.run(Plain(is_right).step(token)) == TokenReply(b"", LoggedIn("alice"))


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0se\0cret\0x", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0bob\0se:cret", "Authentication failed: Invalid username or password"),
        (b"\0\xff\0se:cret", "Authentication failed: Invalid username or password"),
        (
            b"bob\0alice\0se:cret",
            "Authentication failed: Client requested an authorization id that is different from "
            "username",
        ),
    ],
)
def test_failures_have_texts_of_kafka(token: bytes, text: str) -> None:
    with pytest.raises(LoginFailure) as failure:
        asyncio.run(Plain(is_right).step(token))
    assert failure.value.text == text
    assert "cret" not in failure.value.cause
