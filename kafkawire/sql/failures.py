"""One sentence of an error of DuckDB, with advice where its own would mislead. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from kafkawire.reading.model.source import SourceError

_CLASS = re.compile(r"^(?:[A-Z]\w*(?: [A-Z]\w*)* Error: )+")
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_AT_OFFSET = re.compile(r'at or near "(?:offset|from|desc|asc|,|\))', re.IGNORECASE)
_BARE_OFFSET = re.compile(r"""(?<!["'])\boffset\b(?!["'])""", re.IGNORECASE)


class SqlError(SourceError):
    """A statement that DuckDB rejects; one sentence."""


def sentence(text: str, statement: str, topics: Collection[str]) -> str:
    """Return an error's text without its class and the quoted statement, and with advice on names
    of topics and on the column `offset`, which is a keyword."""
    unquoted = [
        name
        for name in sorted(topics)
        if not name.isidentifier() and name in statement and f'"{name}"' not in statement
    ]
    if unquoted:
        return f'a name with dots or dashes goes into double quotes: "{max(unquoted, key=len)}"'
    line = _CLASS.sub("", text.strip()).split("\n\nLINE", 1)[0]
    missing = _NO_TABLE.search(line)
    if missing:
        return no_topic(missing[1], topics)
    line = " ".join(line.split("\n\n", 1)[0].split())
    if _AT_OFFSET.search(line) and _BARE_OFFSET.search(statement):
        return f'{line}; offset is a keyword of SQL: write the column as "offset"'
    return line or "DuckDB does not say why"


def no_topic(name: str, topics: Collection[str]) -> str:
    """Return the sentence for a table that is no topic."""
    near = difflib.get_close_matches(name, topics, 1)
    hint = f'; there is "{near[0]}"' if near else "; SHOW TABLES lists them"
    return f"there is no topic {name!r}{hint}"
