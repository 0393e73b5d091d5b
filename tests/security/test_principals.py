"""Names of principals, as Kafka writes and reads them."""

from __future__ import annotations

import pytest

from kafkawire.security.principals import Principal, parse_principal


@pytest.mark.parametrize("text", ["User:alice", "User:", ":x", "User:CN=a:b,O=c", "User:*"])
def test_a_principal_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_principal(text)) == text


def test_the_first_colon_ends_the_kind() -> None:
    assert parse_principal("User:a:b") == Principal("User", "a:b")


def test_a_text_without_colon_is_no_principal() -> None:
    with pytest.raises(ValueError, match="no colon is present"):
        parse_principal("alice")
