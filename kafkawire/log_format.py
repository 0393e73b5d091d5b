"""Format of the broker's log lines: text, or one JSON object per line.

Both go to standard error; standard output has only the line with the addresses the broker listens
on. Uses the standard library's logging and the system clock, so it is not for simulations. Called
before anything is opened.

JSON fields: time (UTC, ISO 8601, milliseconds), level, node (of one of several workers, or
`follower`), logger, message; exception (the traceback) where there is one; and every `extra` of the
logging call under its own name.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from kafkawire.log_lines import reason_of

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def setup(level: str, log_format: str, node: int | str | None = None) -> None:
    """Send records from `level` up to standard error in `log_format` (text or json). `node`: the
    node id that marks the lines of one of several workers, or the name of another process."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(JsonFormatter(node) if log_format == "json" else TextFormatter(node))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Handler(logging.StreamHandler[TextIO]):
    """Writes exceptions among the arguments of a line, whose text may be empty or begin with
    "[Errno 9]", as their reasons."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.args, tuple):
            reasons = (reason_of(arg) if isinstance(arg, Exception) else arg for arg in record.args)
            record = logging.makeLogRecord({**record.__dict__, "args": tuple(reasons)})
        return super().format(record)


def _utc(record: logging.LogRecord) -> str:
    """Return a time as in 2026-01-31T12:00:00.123Z."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message`, a traceback on the lines after it; `time LEVEL [node] logger:
    message` of a worker."""

    def __init__(self, node: int | str | None = None) -> None:
        mark = "" if node is None else f"[{node}] "
        super().__init__(f"%(asctime)s %(levelname)-7s {mark}%(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time in UTC, so that logs of several machines can be compared."""
        return _utc(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; newlines inside it are escaped, so a record is always one line."""

    def __init__(self, node: int | str | None = None) -> None:
        super().__init__()
        self._node = {} if node is None else {"node": node}

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; values without a JSON type are written as strings."""
        line: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            **self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        for name, value in record.__dict__.items():
            if name not in _STANDARD:
                line.setdefault(name, value)
        return json.dumps(line, default=str, ensure_ascii=False)
