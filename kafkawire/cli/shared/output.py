"""Output of the commands: JSON and error sentences; tables are in kafkawire.cli.shared.tables."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NoReturn


def print_json(value: Any) -> None:
    """Print one JSON document, keys in the given order."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print one JSON document on a line of its own, for streams."""
    print(json_line(value))


def json_line(value: Any) -> str:
    """Return one JSON document as a line, without its end."""
    return json.dumps(value, ensure_ascii=False)


def without_password(text: str) -> str:
    """Return the text without the passwords in its URLs: those before the host, which may contain
    `@`, and those of options such as `?password=`."""
    text = re.sub(r"(:/{1,2}[^:/@\s]*):[^/\s]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&](?:password|passwd|token|secret)=)[^&\s]*", r"\1***", text)


def fail(sentence: object, code: int = 1) -> NoReturn:
    """Print an error on standard error and exit: code 1 for a failure, 2 for invalid arguments.
    Passwords in URLs are removed from the sentence."""
    print(f"kafkawire: {without_password(str(sentence))}", file=sys.stderr)
    raise SystemExit(code)
