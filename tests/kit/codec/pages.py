"""Examples of bytes in documents of stored formats."""

from __future__ import annotations

import re


def example(page: str) -> bytes:
    """The bytes of the hexadecimal example at the end of a page."""
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?){1,16})", page, re.MULTILINE)
    assert [int(at, 16) for at, _ in lines] == list(range(0, 16 * len(lines), 16))
    return bytes.fromhex("".join(text for _, text in lines))
