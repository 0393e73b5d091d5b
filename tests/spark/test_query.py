"""SQL over topics: splitting into statements, error messages, printing of rows."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.cli.shared.query_rows import plain, unique
from kafkawire.cli.shared.source import source_of
from kafkawire.reading.model.source import Source, SourceError
from kafkawire_spark import query
from kafkawire_spark.cli import query as pipeline_query
from kafkawire_spark.cli.query import run, show
from kafkawire_spark.query import (
    QueryError,
    Result,
    in_utc,
    is_blank,
    names_once,
    parts_of,
    shorten_error,
    split,
)

PIECES = ["a", " ", "\n", "'x;y'", '"x;\'y"', "`x;y`", "-- c;'\n", "/* ; ' */", "'\\';'", "1"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6), max_size=5))
def test_statements_end_at_semicolons_that_are_not_quoted(many: list[list[str]]) -> None:
    texts = ["".join(pieces) for pieces in many]
    statements, rest = split(";".join(texts))
    assert statements == [text.strip() for text in texts[:-1] if not is_blank(text)]
    assert rest == (texts[-1] if texts else "")


def test_open_quote_continues_on_next_line() -> None:
    for text in (
        "select ';",
        'select ";',
        "select `;",
        "select /* ;",
        "select -- ;",
        "select '\\';",
    ):
        assert split(text) == ([], text)
    assert is_blank(" -- nothing\n /* here */ ")
    assert not is_blank("-- a\n1")


def test_names_are_unquoted() -> None:
    assert parts_of("`orders`") == ["orders"]
    assert parts_of("`a`.`b-c`") == ["a", "b-c"]
    assert parts_of("`a``b.c`") == ["a`b.c"]


def test_filters_are_pushed_if_table_is_read_once() -> None:
    assert names_once("SELECT * FROM `a.b` WHERE offset < 3", {"a.b"})
    assert not names_once("SELECT * FROM t JOIN T USING (key)", {"t"})
    assert not names_once("WITH x AS (SELECT * FROM top) SELECT * FROM x, x", {"top"})


def test_errors_are_one_sentence() -> None:
    said = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `nocol` cannot be resolved. Did you mean one "
        "of the following? [`id`]. SQLSTATE: 42703; line 1 pos 7;\n'Project ['nocol]\n+- x"
    )
    assert shorten_error(said) == (
        "A column `nocol` cannot be resolved. Did you mean one of the following? [`id`]."
    )
    said = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601\n\n== SQL ==\nx"
    assert shorten_error(said) == "Syntax error at or near 'selec'."
    assert shorten_error("") == "Spark does not say why"


def test_values_are_printed_as_json() -> None:
    when = datetime(2026, 1, 31, tzinfo=UTC)
    assert plain([b"text", b"\xff\x00", None, 1, {"a": bytearray(b"b")}, when]) == [
        "text",
        "0xff00",
        None,
        1,
        {"a": "b"},
        "2026-01-31T00:00:00.000Z",
    ]
    assert plain(datetime(2026, 1, 31, 1, 2, 3, 4)) == "2026-01-31T01:02:03.000004"
    local = when.astimezone(timezone(timedelta(hours=5))).astimezone().replace(tzinfo=None)
    assert in_utc([(1, local), (2, None)], [1]) == [[1, when], [2, None]]


RESULT = Result(["n", "n", "v"], [(1, 2, b"x;\n"), (3, None, [b"y"])], more=True)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("csv", 'n,n,v\n1,2,"x;\n"\n3,,"[""y""]"\n'),
        ("json", '{"n": 1, "n (2)": 2, "v": "x;\\n"}\n{"n": 3, "n (2)": null, "v": ["y"]}\n'),
    ],
)
def test_rows_are_printed_as_json_and_csv(
    form: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show(RESULT, form, 2)
    printed = capsys.readouterr()
    assert printed.out.replace("\r\n", "\n") == expected
    assert printed.err == "kafkawire: output limited to 2 rows; use --limit 0 for all\n"


def test_rows_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    show(Result(["n", "n", "v"], [(1, 2, b"x" * 1000)]), "table", 2)
    printed = capsys.readouterr().out
    assert printed.startswith("1 row:\n")
    assert "n (2)" in printed
    assert "x" * 197 + "..." in printed
    assert unique(["a", "a", "b", "a"]) == ["a", "a (2)", "b", "a (3)"]


def test_source_is_folder_url_or_brokers(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert source_of(folder, "", "read_uncommitted").isolation == "read_uncommitted"
    with pytest.raises(SourceError, match="--isolation-level=dirty: it must be read_committed or"):
        source_of(folder, "", "dirty")
    assert source_of("localhost:9092,other:9093", "") == Source(
        bootstrap="localhost:9092,other:9093"
    )
    assert source_of(folder, "localhost:9092") == Source(folder, "localhost:9092")
    assert source_of("s3://bucket/prefix?endpoint=http://h:9000", "").url.startswith("s3://")
    with pytest.raises(SourceError, match="--source=nowhere: it must be HOST:PORT of a broker, a"):
        source_of("nowhere", "")


class FakeSpark:
    def __init__(self) -> None:
        self.sparkContext, self.cancelled = self, threading.Event()

    def cancelAllJobs(self) -> None:
        self.cancelled.set()


class FakeShell:
    """Returns the statement as result, or fails where it is `bad`."""

    def __init__(self, spark: Any, source: Source) -> None:
        self.spark, self.closed = spark, False

    def run(self, statement: str, limit: int) -> Result:
        if statement == "bad":
            raise QueryError("it is bad")
        if statement == "long":
            os.kill(os.getpid(), signal.SIGINT)
            assert self.spark.cancelled.wait(90)
            raise QueryError("cancelled")
        return Result(["s"], [(statement,)])

    def unread(self) -> dict[str, int]:
        return {"orders": 7}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def run_statements(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, bool], list[str]]:
    monkeypatch.setattr(query, "Shell", FakeShell)

    def ask(sql: str, typed: str, terminal: bool) -> list[str]:
        stdin = io.StringIO(typed)
        monkeypatch.setattr(stdin, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr("sys.stdin", stdin)
        heard: list[str] = []
        run(FakeSpark(), Source("/d"), sql, lambda result: heard.append(result.rows[0][0]), 10)
        return heard

    return ask


def test_statements_of_command_line_stop_at_first_error(
    run_statements: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_statements("select 1; select 2", "", False) == ["select 1", "select 2"]
    unread = "orders: 7 offsets that are only in journals were not read; read them from a broker"
    assert capsys.readouterr().err.count(unread) == 2
    with pytest.raises(SourceError, match="it is bad"):
        run_statements("bad; select 2", "", False)


def test_statements_from_pipe_continue_after_error(
    run_statements: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_statements("", "select 1;\n;\nselect 2", False) == ["select 1", "select 2"]
    with pytest.raises(SystemExit, match="1"):
        run_statements("", "bad; select 2", False)
    assert "kafkawire: it is bad" in capsys.readouterr().err


def test_prompt_reads_lines_until_semicolon(
    run_statements: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run_statements("", "select\n1; select 2;\nbad;\nquit;\nselect 3;\n", True) == [
        "select\n1",
        "select 2",
    ]
    assert (tmp_path / "kafkawire" / "query-history").exists()
    assert "-> " in capsys.readouterr().out


def test_unknown_format_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        pipeline_query.query("select 1", form="xml")
    assert "table, csv, json" in capsys.readouterr().err


def test_ctrl_c_cancels_statement_but_not_prompt(
    run_statements: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    threads = set(threading.enumerate())
    assert run_statements("", "long;\nselect 2;\n", True) == ["select 2"]
    assert capsys.readouterr().err.startswith("stopped\n")
    with pytest.raises(KeyboardInterrupt):
        run_statements("long; select 2", "", False)
    assert threads >= set(threading.enumerate())
