"""Statements of kafkawire.sql in tests."""

from __future__ import annotations

from typing import Any

from kafkawire.sql.engine import SqlEngine


def rows_of_statement(engine: SqlEngine, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement; return its rows as Python values."""
    _, batches = engine.run(statement)
    return [
        row
        for batch in batches
        for row in zip(*[column.to_pylist() for column in batch.columns], strict=True)
    ]
