"""SQL over topics: each is a table of its name, registered in Spark when first used.

A table has the data source's columns, and `key_text` and `value_text`: the same as strings, null
for invalid UTF-8. Names with dots or dashes need backticks.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from kafkawire.reading.model.source import Source, SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_TABLES = 100
"""Maximum number of unregistered topics in one statement."""
NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
CASE = "spark.sql.caseSensitive"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SHOW_TOPICS = re.compile(r"show\s+topics", re.IGNORECASE)
_PART = re.compile(r"`((?:[^`]|``)*)`")
_LONG_HINTS = re.compile(r"\s*(?:SQLSTATE:.*|Verify the spelling.*|If you did not.*)$", re.DOTALL)


class QueryError(SourceError):
    """A statement that Spark rejects; one sentence."""


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of plain Python values. `more`: there are rows beyond the limit."""

    columns: list[str]
    rows: Sequence[Sequence[Any]]
    more: bool = False


class Shell:
    """Runs statements. The caller starts and stops the session."""

    def __init__(self, spark: SparkSession, source: Source) -> None:
        from kafkawire.reading.catalog import open_catalog

        self._spark, self._source = spark, source
        self._catalog = open_catalog(source)
        self._known: set[str] = set()
        # Spark logs each error at length; it is reported in a sentence here.
        logging.getLogger("SQLQueryContextLogger").disabled = True

    def close(self) -> None:
        """Drop the views, which another shell of the session would take for its own topics, and
        close connections to brokers."""
        self._forget()
        self._catalog.close()

    def run(self, statement: str, limit: int) -> Result:
        """Return at most `limit` rows, 0 for all. Raises QueryError, SourceError."""
        if _SHOW_TOPICS.fullmatch(statement.strip()):
            return self._show_topics()
        self._forget()
        self._spark.conf.set(CASE, "false")
        try:
            frame = self._frame(statement)
            self._spark.conf.set(PUSHDOWN, str(names_once(statement, self._known)).lower())
            rows: Sequence[Any] = frame.limit(limit + 1).collect() if limit else frame.collect()
        except SourceError:
            raise
        except Exception as error:  # errors of Spark and py4j have no common class
            raise QueryError(self._sentence(error)) from error
        more = bool(limit) and limit < len(rows)
        rows = in_utc(rows[:limit] if more else rows, _times(frame))
        return Result(frame.columns, rows, more)

    def unread(self) -> dict[str, int]:
        """Return how many offsets of the topics of the last statement are only in the journals of a
        data folder, which are not read without a broker: those topics that have any."""
        from kafkawire.reading.unread import unread_offsets

        return unread_offsets(self._catalog, self._known)

    def _forget(self) -> None:
        """Drop the views of the last statement, because a loaded frame keeps the offsets and
        filters of its first plan."""
        for name in self._known:
            self._spark.catalog.dropTempView(name)
        self._known.clear()

    def _show_topics(self) -> Result:
        self._catalog = self._catalog.refresh_catalog()
        rows = [(name, count) for name, count in self._catalog.topics.items()]
        return Result(["topic", "partitions"], rows)

    def _frame(self, statement: str) -> DataFrame:
        from pyspark.errors import AnalysisException

        for _ in range(MAX_TABLES):
            try:
                return self._spark.sql(statement)
            except AnalysisException as error:
                if error.getCondition() != NOT_FOUND:
                    raise
                if not self._known:
                    self._catalog = self._catalog.refresh_catalog()
                name = self._topic_of(error)
                if name in self._known:
                    raise
                self._register(name)
        raise QueryError(f"the statement names more than {MAX_TABLES} tables")

    def _topic_of(self, error: Any) -> str:
        """Return the topic that Spark did not find as a table. Raises QueryError for another
        error."""
        parts = parts_of((error.getMessageParameters() or {}).get("relationName", ""))
        if len(parts) == 1 and parts[0] in self._catalog.topics:
            return parts[0]
        whole = ".".join(parts)
        if len(parts) > 1 and whole in self._catalog.topics:
            raise QueryError(f"a name with dots goes into backticks: `{whole}`")
        near = difflib.get_close_matches(whole, self._catalog.topics, 1)
        hint = f"; there is `{near[0]}`" if near else "; `show topics` lists them"
        raise QueryError(f"there is no topic {whole!r}{hint}")

    def _register(self, name: str) -> None:
        """Register a view of the topic's name for one statement."""
        reader = self._spark.read.format("kafkawire").option("subscribe", name)
        source = self._source
        for option, value in (
            ("source", source.url or source.bootstrap),
            ("kafka.bootstrap.servers", source.bootstrap),
            ("isolation.level", source.isolation),
            ("includeHeaders", "true"),
            ("filterPushdown", "true"),
        ):
            if value:
                reader = reader.option(option, value)
        if sum(each.lower() == name.lower() for each in self._catalog.topics) > 1:
            self._spark.conf.set(CASE, "true")  # else Spark takes one for the other
        texts = [f"try_validate_utf8(cast({it} AS STRING)) AS {it}_text" for it in ("key", "value")]
        reader.load().selectExpr("*", *texts).createOrReplaceTempView(f"`{name}`")
        self._known.add(name)

    def _sentence(self, error: BaseException) -> str:
        from kafkawire_spark.session import sentence

        return shorten_error(sentence(error))


def names_once(statement: str, names: set[str]) -> bool:
    """Return True if each of these tables is certainly read only once. Spark plans a table that is
    read twice with the filters of only one (its PythonDataSourceV2 caches the plan), so filters are
    passed to the source only if there is no ambiguity."""
    text = statement.lower()
    return not re.search(r"\bwith\b", text) and all(text.count(name.lower()) == 1 for name in names)


def _times(frame: DataFrame) -> list[int]:
    """Return the columns that are points in time."""
    return [at for at, each in enumerate(frame.schema) if each.dataType.typeName() == "timestamp"]


def in_utc(rows: Sequence[Sequence[Any]], times: list[int]) -> Sequence[Sequence[Any]]:
    """Convert points in time to UTC; PySpark returns them in local time without a zone."""
    if not times:
        return rows
    listed = [list(row) for row in rows]
    for row in listed:
        for at in times:
            row[at] = row[at] and row[at].astimezone(UTC)
    return listed


def parts_of(name: str) -> list[str]:
    """Return the parts of a name quoted by Spark: `a`.`b` -> a, b."""
    return [part.replace("``", "`") for part in _PART.findall(name)]


def shorten_error(text: str) -> str:
    """Return Spark's error as one sentence, without its class, code, plan and advice on
    catalogs."""
    line = text.strip().split("\n\n", 1)[0].replace("\n", " ")
    line = re.sub(r"^\[[A-Z_0-9.]+\]\s*", "", line)
    line = re.sub(r"\s+== SQL.*$", "", line)
    return _LONG_HINTS.sub("", line).strip() or "Spark does not say why"


def split(text: str) -> tuple[list[str], str]:
    """Split into statements that end with a semicolon, and the rest. Semicolons in quotes,
    backticks and comments do not end a statement."""
    statements: list[str] = []
    begin = 0
    for at in _semicolons(text):
        statement = text[begin:at].strip()
        if not is_blank(statement):
            statements.append(statement)
        begin = at + 1
    return statements, text[begin:]


def statements_of(text: str) -> list[str]:
    """Return all statements; the last one needs no semicolon."""
    statements, rest = split(text)
    return statements if is_blank(rest) else [*statements, rest.strip()]


_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:\\.|[^'\\])*(?:'|\Z)|"(?:\\.|[^"\\])*(?:"|\Z)"""
    r"""|`[^`]*(?:`|\Z)|;""",
    re.DOTALL,
)


def _semicolons(text: str) -> Iterator[int]:
    return (match.start() for match in _TOKEN.finditer(text) if match[0] == ";")


def is_blank(text: str) -> bool:
    """Return True if there are only whitespace and comments."""
    return not re.sub(r"--[^\n]*|/\*.*?(?:\*/|\Z)", "", text, flags=re.DOTALL).strip()
