"""Bytes of records as text."""

from __future__ import annotations

import pytest

from kafkawire.console.views.decoding import MAX_SHOWN_BYTES, decode, visible


@pytest.mark.parametrize(
    ("data", "how", "kind", "text", "note"),
    [
        (None, "auto", "null", "null", ""),
        (b"", "auto", "text", "", ""),
        (b"plain", "auto", "text", "plain", ""),
        ("grüße".encode(), "auto", "text", "grüße", ""),
        (b"\xff\x00", "auto", "hex", f"00000000  {'ff 00':<47}  ..", ""),
        (b"\xff", "text", "hex", f"00000000  {'ff':<47}  .", "not UTF-8"),
        (b'{"b":1,"a":[]}', "auto", "json", '{\n  "b": 1,\n  "a": []\n}', ""),
        (b"[1,{}]", "json", "json", "[\n  1,\n  {}\n]", ""),
        (b"{not", "auto", "text", "{not", ""),
        (b"{not", "json", "text", "{not", "not JSON"),
        (b'{"n":1}', "text", "text", '{"n":1}', ""),
    ],
)
def test_bytes_are_shown_as_what_they_are(
    data: bytes | None, how: str, kind: str, text: str, note: str
) -> None:
    assert decode(data, how) == (kind, text, note)


def test_numbers_of_json_keep_all_digits() -> None:
    text = '{"id":12345678901234567890,"x":0.10000000000000000001,"e":1E400}'
    assert "12345678901234567890" in decode(text.encode()).text
    assert "0.10000000000000000001" in decode(text.encode()).text
    assert "1E400" in decode(text.encode()).text


def test_deep_json_is_text() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert decode(deep[:50_000], "json").kind == "text"
    assert decode(b"[" * 200 + b"]" * 200).kind == "text"


def test_large_values_are_cut_with_a_note() -> None:
    cut = decode("ü".encode() * MAX_SHOWN_BYTES)
    assert cut.kind == "text"
    assert len(cut.text) == MAX_SHOWN_BYTES // 2
    assert cut.note == f"the first {MAX_SHOWN_BYTES:,} of {2 * MAX_SHOWN_BYTES:,} bytes"
    assert decode(b"a" + "ü".encode() * MAX_SHOWN_BYTES).kind == "text", "half a character"
    assert decode(b"{" + bytes(MAX_SHOWN_BYTES), "json").note.startswith("too large for JSON")


def test_control_and_direction_characters_are_code_points() -> None:
    assert visible("a\u202eb\x1b[0m\x00") == "a[U+202E]b[U+001B][0m[U+0000]"
    assert visible("a\nb\tc") == "a\nb\tc"
    assert "\u202e" not in decode('{"a": "\u202e"}'.encode()).text
    assert decode(b"a\nb").brief == "a⏎b"
