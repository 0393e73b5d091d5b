"""Passwords in URLs are not printed."""

from __future__ import annotations

import pytest

from kafkawire.cli.shared.output import without_password


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:hush@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:hu@sh@h/d", "postgresql://u:***@h/d"),
        ("postgresql://:hush@h:5432/d", "postgresql://:***@h:5432/d"),
        ("postgresql://h/d?user=u&password=hush&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("--metadata=x://u:hush@h: no, as in y://v:hush@k", None),
        ("http://127.0.0.1:9092/a@b", "http://127.0.0.1:9092/a@b"),
        ("listen=127.0.0.1:9092: it must be free", "listen=127.0.0.1:9092: it must be free"),
    ],
)
def test_passwords_in_urls_are_hidden(text: str, shown: str | None) -> None:
    found = without_password(text)
    assert "hush" not in found
    assert "sh@" not in found
    assert shown is None or found == shown
