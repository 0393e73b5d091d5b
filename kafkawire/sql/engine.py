"""Runs SQL statements over the topics of a source in DuckDB, in this process.

A topic is a view with the columns of the Spark source, and `key_text` and `value_text`: the same as
strings, null for invalid UTF-8. Rows are returned as a stream. What does not fit into memory, such
as a sort, DuckDB writes to a temporary folder. It reads no Python variable as a table, and loads no
extension from the network.
"""

from __future__ import annotations

import difflib
import re
import tempfile
import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from kafkawire.extras import need
from kafkawire.reading.model.source import Source, SourceError
from kafkawire.reading.unread import unread_offsets
from kafkawire.sql.topic_dataset import RunningScans

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.sql.topic_dataset import Scan


# One sentence of an error of DuckDB, with advice where its own would mislead.


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


RESULT_ROWS = 8192
"""Rows of a batch of the result; the first batch is complete before it is returned."""
_SHOW = re.compile(r"\s*show\s+(?:all\s+)?(?:tables|topics)\s*;?\s*", re.IGNORECASE)
_SETTINGS = {
    "TimeZone": "UTC",
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_progress_bar": False,
}


_CONFINED = {"memory_limit": "1GB", "enable_external_access": False, "lock_configuration": True}
"""Settings with which a statement reads topics and no file of this machine."""


class SqlEngine:
    """SQL over the topics of a source. Raises MissingExtra, SourceError."""

    def __init__(self, source: Source, confined: bool = False) -> None:
        """`confined`: statements are not the user's own, so they may read topics only."""
        need("sql", "SQL over topics")
        import duckdb

        from kafkawire.reading.catalog import open_catalog

        self._catalog = open_catalog(source)
        self._planning = threading.Lock()
        self._running = RunningScans()
        self.scans: list[Scan] = []
        """The scans of the last statement."""
        self._folder = tempfile.TemporaryDirectory(prefix="kafkawire-sql-")
        self._connection = duckdb.connect(":memory:")
        settings = _SETTINGS | {"temp_directory": self._folder.name}
        for name, value in (settings | (_CONFINED if confined else {})).items():
            self._connection.execute(f"SET {name} = {_literal(value)}")
        self._views: set[str] = set()

    def close(self) -> None:
        """Close DuckDB, connections to brokers, and remove temporary files."""
        self._running.stop()
        self._connection.close()
        self._catalog.close()
        self._folder.cleanup()

    def interrupt(self) -> None:
        """Let the running statement fail; from another thread."""
        self._connection.interrupt()

    def __enter__(self) -> SqlEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, statement: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns of the result, and its rows as they are read. Raises SqlError,
        SourceError, while rows are read too."""
        self.scans.clear()
        self._running.stop()
        if _SHOW.fullmatch(statement):
            return self._topics()
        try:
            self._check(statement)
            for name in self._find_topics(statement):
                self._create_view(name)
            reader = self._connection.sql(statement).to_arrow_reader(RESULT_ROWS)
            return reader.schema, self._batches(reader, statement)
        except self._errors() as error:
            raise self._failure(error, statement) from None

    def unread(self) -> dict[str, int]:
        """Return how many offsets of the topics of the last statement are only in the journals of a
        data folder, which are not read without a broker: those topics that have any."""
        return unread_offsets(self._catalog, {scan.topic for scan in self.scans})

    def _batches(self, reader: Any, statement: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except self._errors() as error:
            raise self._failure(error, statement) from None
        finally:
            reader.close()

    def _topics(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        import pyarrow as pa

        names = pa.array(list(self._catalog.topics), pa.string())
        counts = pa.array(list(self._catalog.topics.values()), pa.int32())
        batch = pa.record_batch([names, counts], names=["topic", "partitions"])
        return batch.schema, iter([batch])

    def _check(self, statement: str) -> None:
        """Raise SqlError unless it is one query."""
        found = self._connection.extract_statements(statement)
        if len(found) != 1:
            raise SqlError(f"there must be one statement, not {len(found)}")
        kind = found[0].type.name
        if kind not in ("SELECT", "EXPLAIN", "RELATION"):
            raise SqlError(f"topics are only read: {kind} is not a query")

    def _find_topics(self, statement: str) -> list[str]:
        """Return the topics whose names are in a statement. Raises SqlError if it is not clear
        which one of two is meant, because SQL ignores case in names."""
        found: dict[str, str] = {}
        for name in self._catalog.topics:
            folded = name.lower()
            if folded not in statement.lower():
                continue
            other = found.get(folded)
            if other is None or other not in statement:
                found[folded] = name
            elif name in statement:
                raise SqlError(
                    f"the topics {other!r} and {name!r} differ only in case, which names in SQL do "
                    "not: read them in two statements"
                )
        return [name for name in found.values() if name not in self._views]

    def _create_view(self, name: str) -> None:
        from kafkawire.sql.topic_dataset import TopicDataset

        records = f"kafkawire_records_{len(self._views)}"
        dataset = TopicDataset(
            self._catalog, name, self._planning, self._running, self.scans.append
        )
        self._connection.register(records, dataset)
        quoted = '"' + name.replace('"', '""') + '"'
        self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted} AS SELECT * FROM {records}")
        self._views.add(name)

    def _errors(self) -> tuple[type[BaseException], ...]:
        import duckdb
        import pyarrow as pa

        return duckdb.Error, pa.ArrowException, OSError

    def _failure(self, error: BaseException, statement: str) -> Exception:
        """Return the source's own error if that is the cause."""
        for each in self._running.failures:
            if isinstance(each, SourceError):
                return each
        return SqlError(sentence(str(error), statement, self._catalog.topics))


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).replace("'", "''")
    return f"'{text}'"
