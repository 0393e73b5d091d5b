"""Bytes of records as values of JSON. Pure."""

from __future__ import annotations

import base64


def text_of(value: bytes | None) -> str | dict[str, str] | None:
    """Return UTF-8 as text, other bytes as {"base64": ...}."""
    if value is None:
        return None
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
