"""The load of a PostgreSQL database, from its own statistics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import asyncpg  # type: ignore[import-untyped]

TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
ROWS = "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
REPORTED_S = 11.0
"""After which an idle connection has reported everything to the statistics (10 s)."""


class SqlLoad(NamedTuple):
    """Commits and changes of rows, in all or in a second. `rows`: inserted, updated and deleted
    ones, by table."""

    transactions: float
    rows: dict[str, float]


def committed(url: str) -> SqlLoad:
    """Return the load of a database since its creation."""

    async def read() -> SqlLoad:
        connection = await asyncpg.connect(url)
        transactions = int(await connection.fetchval(TRANSACTIONS))
        rows = {str(name): float(count) for name, count in await connection.fetch(ROWS)}
        await connection.close()
        return SqlLoad(transactions, rows)

    return asyncio.run(read())


def load_of(url: str, work: Callable[[], object]) -> SqlLoad:
    """Return the load in a second while `work` runs."""
    before, began = committed(url), time.monotonic()
    work()
    spent, after = time.monotonic() - began, committed(url)
    rows = {name: (count - before.rows.get(name, 0)) / spent for name, count in after.rows.items()}
    return SqlLoad((after.transactions - before.transactions) / spent, rows)
