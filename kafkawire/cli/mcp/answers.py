"""Answers of tools as JSON of bounded size. Pure.

What other people have written, as keys, values and names, is only ever a value of the JSON, and
control characters and those that change the direction of text are shown as code points.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from kafkawire.console.views.decoding import visible

MAX_ANSWER_BYTES = 64 << 10
"""Bytes of an answer, about 20,000 tokens of a model."""
MAX_VALUE_BYTES = 4 << 10
"""Bytes of a key, value or header in an answer."""


def to_json(found: Mapping[str, Any]) -> str:
    """Return an answer as JSON. The longest lists of one that is too large are cut, and `cut` says
    how many of their rows are there."""
    plain = _plain(found)
    cut: dict[str, str] = {}
    while len(text := json.dumps(plain, ensure_ascii=False).encode()) > MAX_ANSWER_BYTES:
        lists = {name: each for name, each in plain.items() if isinstance(each, list) and each}
        if not lists:
            shown = text[: MAX_ANSWER_BYTES // 2].decode(errors="ignore")
            return json.dumps({"cut": f"of {len(text):,} bytes", "begin": shown})
        name = max(lists, key=lambda each: len(json.dumps(lists[each])))
        total = cut.get(name, f"of {len(lists[name])}").rpartition(" ")[2]
        plain[name] = lists[name][: len(lists[name]) // 2]
        cut[name] = f"{len(plain[name])} of {total}"
        plain["cut"] = cut
    return text.decode()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)  # of an Enum, too
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        return show_bytes(value)
    if isinstance(value, Enum):
        return _plain(value.value)
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {_name(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [_plain(each) for each in value]
    return visible(str(value))


def _name(name: object) -> str:
    return "-".join(map(str, name)) if isinstance(name, tuple) else visible(str(name))


def show_bytes(data: bytes | None) -> dict[str, Any] | None:
    """Return bytes as `json`, `text` or `base64`; `bytes`: how many there are, if not all are
    shown."""
    if data is None:
        return None
    shown = bytes(data[:MAX_VALUE_BYTES])
    more = {} if len(shown) == len(data) else {"bytes": len(data)}
    try:
        text = shown.decode("utf-8", errors="strict" if not more else "ignore")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(shown).decode(), **more}
    if not more and text.lstrip()[:1] in ("{", "["):
        try:
            # Numbers stay as they are written: a float would change 64-bit identifiers.
            return {"json": _plain(json.loads(text, parse_float=str))}
        except (ValueError, RecursionError):
            pass
    return {"text": visible(text), **more}
