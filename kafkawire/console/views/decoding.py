"""Keys, values and headers of records as text for people. Pure.

What is shown is never what is stored: control characters, and those that change the direction of
text, are shown as code points, so a record cannot forge the line that it is on.
"""

from __future__ import annotations

import json
import unicodedata
from typing import NamedTuple

DECODERS = ("auto", "text", "json", "hex")
MAX_SHOWN_BYTES = 64 << 10
"""Bytes of a value that are shown; the rest is counted."""
MAX_BRIEF = 200
"""Characters of a value in a list."""
MAX_DEPTH = 100
"""Nesting of JSON that is indented: more would be a page of brackets."""
HEX_COLUMNS = 16
_KEPT = "\n\t"
_HIDDEN = ("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp")
"""Categories of characters that print nothing, or change what is around them."""


class ShownBytes(NamedTuple):
    """Bytes as text. `kind`: json, text, hex or null; `note`: why it is not what was wanted, or
    that a part is shown; empty if neither."""

    kind: str
    text: str
    note: str = ""

    @property
    def brief(self) -> str:
        """Return the beginning on one line."""
        line = " ".join(self.text.split()) if self.kind == "json" else self.text
        line = line.replace("\n", "⏎")
        return line if len(line) <= MAX_BRIEF else line[:MAX_BRIEF] + "…"


def decode(data: bytes | None, how: str = "auto") -> ShownBytes:
    """Return bytes as text; bytes that `how` cannot decode are hex with the reason."""
    if data is None:
        return ShownBytes("null", "null")
    shown = bytes(data[:MAX_SHOWN_BYTES])
    cut = len(data) > len(shown)
    note = f"the first {len(shown):,} of {len(data):,} bytes" if cut else ""
    if how == "hex":
        return ShownBytes("hex", _hex(shown), note)
    text = _text(shown, cut)
    if text is None:
        reason = "" if how == "auto" else "not UTF-8"
        return ShownBytes("hex", _hex(shown), "; ".join(filter(None, (reason, note))))
    if how == "text":
        return ShownBytes("text", visible(text), note)
    if how == "json" or text.lstrip()[:1] in ("{", "["):
        pretty = None if cut else _pretty(text)
        if pretty is not None:
            return ShownBytes("json", visible(pretty), note)
        if how == "json":
            reason = "too large for JSON" if cut else "not JSON"
            return ShownBytes("text", visible(text), "; ".join(filter(None, (reason, note))))
    return ShownBytes("text", visible(text), note)


def visible(text: str) -> str:
    """Return a text with control, format and unassigned characters as [U+202E]."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"[U+{ord(each):04X}]"
        if each not in _KEPT and unicodedata.category(each) in _HIDDEN
        else each
        for each in text
    )


def _text(data: bytes, cut: bool) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as wrong:
        # The last character of what is cut off may be incomplete.
        if cut and wrong.start >= len(data) - 3:
            return data[: wrong.start].decode("utf-8")
        return None


def _pretty(text: str) -> str | None:
    depth = most = 0
    for each in text:  # brackets in strings count, too: JSON that is refused is shown as text
        depth += (each in "[{") - (each in "]}")
        most = max(most, depth)
    if most > MAX_DEPTH:
        return None
    try:
        # Numbers stay as they are written: a float would change 64-bit identifiers.
        found = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        return _dump(found, 0)
    except (ValueError, RecursionError):
        return None


class _Number(str):
    """A number of JSON by its digits."""


def _dump(value: object, depth: int) -> str:
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict) and value:
        rows = [
            f"{pad}{json.dumps(name, ensure_ascii=False)}: {_dump(each, depth + 1)}"
            for name, each in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{end}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{pad}{_dump(each, depth + 1)}" for each in value) + f"\n{end}]"
    return json.dumps(value, ensure_ascii=False)


def _hex(data: bytes) -> str:
    rows = []
    for at in range(0, len(data), HEX_COLUMNS):
        part = data[at : at + HEX_COLUMNS]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        rows.append(f"{at:08x}  {part.hex(' '):<{3 * HEX_COLUMNS - 1}}  {text}")
    return "\n".join(rows)
