"""Lines of the log: text for people, JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from kafkawire.log_format import JsonFormatter, TextFormatter


def _record(**extra: object) -> logging.LogRecord:
    record = logging.LogRecord("a.b", logging.WARNING, "f", 1, "said %s", ("x\ny",), None)
    record.created, record.msecs = 86400.0625, 62.5
    record.__dict__.update(extra)
    return record


def test_text_log_line() -> None:
    assert TextFormatter().format(_record()) == "1970-01-02T00:00:00.062Z WARNING a.b: said x\ny"


def test_json_log_line() -> None:
    line = JsonFormatter().format(_record(client="c", path=Path("x")))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-02T00:00:00.062Z",
        "level": "warning",
        "logger": "a.b",
        "message": "said x\ny",
        "client": "c",
        "path": "x",
    }


def test_json_log_line_with_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        record = _record(exc_info=sys.exc_info())
    said = json.loads(JsonFormatter().format(record))["exception"]
    assert said.startswith("Traceback")
    assert said.endswith("ValueError: no")
