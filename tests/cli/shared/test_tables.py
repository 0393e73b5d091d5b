"""Tables fit the terminal without broken words, and mark what is wrong."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from kafkawire.cli.shared.tables import (
    TableColumn,
    cell_text,
    print_table,
    shorten,
    table_lines,
    width_of,
)
from kafkawire.units import size

ROWS: list[dict[str, Any]] = [
    {"topic": "orders", "partition": 0, "log_end": 1200, "bytes": 1_503_238_554,
     "error": "its leader is not available since the broker was stopped", "id": "a" * 22},
    {"topic": "payments-of-the-kitchen", "partition": 11, "log_end": None, "bytes": 0,
     "error": None, "id": "b" * 22},
]  # fmt: skip
COLUMNS = (
    "topic",
    "partition",
    "log_end",
    TableColumn("bytes", show=size),
    TableColumn("error", keep=True),
    "id",
)


def test_everything_is_shown_without_a_limit() -> None:
    lines = table_lines(ROWS, COLUMNS, None)
    assert lines[0].split() == ["topic", "partition", "log", "end", "bytes", "error", "id"]
    assert lines[2].startswith("orders" + " " * 19 + "        0     1200  1.4 GiB  its leader is")
    assert lines[3].startswith("payments-of-the-kitchen         11        -      0 B  -")
    assert len(lines) == 4


@pytest.mark.parametrize("limit", [40, 60, 80, 100, 120, 200])
def test_no_line_is_too_long_and_no_word_is_broken(limit: int) -> None:
    lines = table_lines(ROWS, COLUMNS, limit)
    assert max(map(len, lines)) <= limit
    words = {word for row in ROWS for value in row.values() for word in cell_text(value).split()}
    words |= {"1.4", "GiB", "B"}
    for line in lines[2:]:
        if not line.startswith("not shown"):
            shown = [word for word in line.split() if not word.endswith("...")]
            assert set(shown) <= words or limit == 40


def test_columns_are_left_out_from_the_right_but_for_those_to_keep() -> None:
    lines = table_lines(ROWS, COLUMNS, 80)
    assert lines[-1] == "not shown: id (--wide shows all columns)"
    lines = table_lines(ROWS, COLUMNS, 67)
    assert lines[-1] == "not shown: bytes, id (--wide shows all columns)"
    assert "error" in lines[0]


def test_a_value_longer_than_the_line_is_shortened() -> None:
    rows = [{"topic": "t" * 249, "error": "x" * 90}]
    lines = table_lines(rows, ("topic", TableColumn("error", keep=True)), 80)
    assert max(map(len, lines)) <= 80
    assert lines[2].count("...") == 2


def test_control_characters_are_escaped() -> None:
    assert cell_text("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
    assert cell_text(["a", None, True]) == "a, -, yes"


def test_wide_characters_are_measured() -> None:
    assert (width_of("abc"), width_of("日本"), width_of("e\u0301")) == (3, 4, 1)
    assert shorten("日本日本日本", 8) == "日本..."
    lines = table_lines([{"a": "日本", "b": 1}, {"a": "x", "b": 2}], ("a", "b"), 80)
    assert [width_of(line) for line in lines] == [7, 7, 7, 7]


def test_wrong_values_are_red_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("topic", TableColumn("error", wrong=bool))
    rows: list[dict[str, Any]] = [{"topic": "t", "error": "bad"}, {"topic": "u", "error": None}]
    print_table(rows, columns, "topics")
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_table(rows, columns, "topics")
    assert capsys.readouterr().out.count("\x1b[31m") == 1
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(rows, columns, "topics")
    assert "\x1b" not in capsys.readouterr().out


def test_a_terminal_limits_the_width_and_wide_lifts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_table(ROWS, COLUMNS, "topics")
    assert "b" * 22 in capsys.readouterr().out  # a pipe
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(ROWS, COLUMNS, "topics")
    assert "not shown: id" in capsys.readouterr().out
    print_table(ROWS, COLUMNS, "topics", wide=True)
    assert "b" * 22 in capsys.readouterr().out
    print_table([], COLUMNS, "topics")
    assert capsys.readouterr().out == "topics: none\n"
