"""A database with the metadata: an SQLite file (`sqlite`) or PostgreSQL (`engines`).

One connection, one transaction at a time. `Database.open` creates, checks or migrates the tables,
and SQL errors become MetadataError. A transaction is a function of a Session that runs in a
greenlet, which waits while the driver works, so the event loop continues. The statements are in
`sql.py` and `statements.py`.

Neither SQLAlchemy nor Alembic is imported for an SQLite file of this revision, or a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Protocol, TypeVar

from kafkawire.codec.format_errors import NewerFormatError
from kafkawire.metadata import completion, damage, schema, sqlite
from kafkawire.metadata.session import DamagedRow, Session
from kafkawire.metadata.sqlite import SqliteDriver
from kafkawire.metadata.store import DamagedMetadata, MetadataError, NewerMetadata

T = TypeVar("T")

CANCEL_PATIENCE_S = sqlite.BUSY_TIMEOUT_S
"""How long a cancelled caller waits for its transaction: as long as SQLite may wait for a lock."""
_CREATE_LOCK = 0x6B61666B  # "kafk": PostgreSQL's advisory lock while the tables are made

_SQLITE = ("sqlite", "sqlite+aiosqlite")  # the second one as it was written before
_SERVED = (*_SQLITE, "postgresql", "postgresql+asyncpg")


class Driver(Protocol):
    """Connects to a database, at its first transaction. `errors`: those of its statements."""

    errors: tuple[type[Exception], ...]

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run one transaction: committed when `work` returns, rolled back when it raises."""

    async def close(self) -> None:
        """Disconnect."""

    def create_tables(self, session: Session) -> None:
        """Create all tables, in a transaction of this driver."""

    def failure(self, name: str, error: BaseException) -> MetadataError:
        """Convert an error of a statement in the database `name`."""


class Database:
    """One database. Call `open` first, then transactions one at a time, then `close`.

    `url`: or the path of an SQLite file, which may have any name. `quick`: for heartbeats, with
    short limits, and with commits that do not wait for the disk: a crash may take them. Call
    `connect` instead of `open`. Raises MetadataError for an unsupported URL."""

    def __init__(self, url: str | PurePath, quick: bool = False) -> None:
        self._quick = quick
        self._url = str(url)
        self._path = str(url) if isinstance(url, PurePath) else _path_of(url)
        if self._path is None:
            from kafkawire.metadata.engines import shown_url

            self.name = shown_url(self._url)
        else:
            self.name = self._path or "the metadata in memory"
        self._driver: Driver | None = None
        self._counter: sqlite.CommitCounter | None = None
        self._file: sqlite.OpenedFile | None = None
        self._lock = asyncio.Lock()

    def absent(self) -> bool:
        return bool(self._path) and sqlite.is_absent(self._path or "")

    async def open(self) -> None:
        """Connect; create the tables of a new database, migrate an old one, check the rows of an
        existing one. Raises MetadataError."""
        if self._path:
            sqlite.make_folder_of(self._path)
            sqlite.refuse_foreign(self._path)
        self._driver = self._new_driver()
        try:
            if not await self.run(self._prepare):
                await self._upgrade()
            await self._check_rows()
        except BaseException:
            await self.close()
            raise

    def connect(self) -> None:
        """Let transactions run on tables that exist, through a connection that the first one
        opens. Calling it again does nothing."""
        if self._driver is None:
            self._driver = self._new_driver()

    def _new_driver(self) -> Driver:
        if self._path is not None:
            return SqliteDriver(self._path, quick=self._quick)
        from kafkawire.metadata.engines import postgresql_driver

        return postgresql_driver(self._url, quick=self._quick)

    async def count_commits(self) -> None:
        """Begin to notice changes by other processes, in an SQLite file, and that it is replaced.
        Raises MetadataError."""
        if self._path:
            self._file = sqlite.OpenedFile(self._path)
            self._counter = sqlite.CommitCounter(self._path)
            await self._counter.open()

    def commits(self) -> int | None:
        """Return a number that differs after every change; see `Transactions.commits`."""
        return None if self._counter is None else self._counter.value()

    async def _check_rows(self) -> None:
        """Raise DamagedMetadata for rows that do not match their checksum. An SQLite file is read
        on a thread, through a connection that blocks no writer."""
        if self._path is None:
            found = await self.run(lambda session: damage.find(session.rows, damage.AT_START))
            if found:
                raise DamagedMetadata(self.name, found, ours=True)
        elif self._path:
            await completion.run_on_thread(partial(damage.check_file, self._path))

    async def _upgrade(self) -> None:
        """Migrate the tables, without the usual limit for a statement."""
        from kafkawire.metadata import engines  # SQLAlchemy, and Alembic: slow to import

        await self.close()
        if self._path is None:
            self._driver = engines.postgresql_driver(self._url, engines.UPGRADE_TIMEOUT_S)
        else:
            self._driver = engines.UpgradeDriver(self._path)
        await self.run(partial(self._prepare, migrate=True))
        await self.close()
        self._driver = self._new_driver()

    def _prepare(self, session: Session, *, migrate: bool = False) -> bool:
        """Create the tables, or check their revision; `migrate`: and bring them to the current one.
        Return whether they have it."""
        if session.dialect == "postgresql":
            session.rows(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})")
        if not _has_tables(session):
            assert self._driver is not None
            self._driver.create_tables(session)
            insert = f"INSERT INTO {schema.VERSION_TABLE} (version_num) VALUES (?)"
            session.run(insert, (schema.REVISION,))
            return True
        stored = revision_of(session)
        if stored == schema.REVISION:
            return True
        if stored is None or not stored.isdigit():
            detail = f"it has no revision this kafkawire knows: {stored!r}"
            raise DamagedMetadata(self.name, detail, True)
        if int(stored) > int(schema.REVISION):
            raise NewerMetadata(self.name, stored, schema.REVISION)
        if migrate:
            from kafkawire.metadata.engines import upgrade

            upgrade(session, self.name, stored)
        return migrate

    async def stored_revision(self) -> str | None:
        """Return the revision of the tables without changing them; None if there are none of
        kafkawire. Called instead of `open`. Raises MetadataError."""
        self._driver = self._new_driver()
        try:
            return await self.run(revision_of)
        finally:
            await self.close()

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction: committed when it returns, rolled back when it raises.
        Raises MetadataError for errors of SQL, DamagedMetadata for rows that cannot be read. A
        cancelled caller gets the CancelledError after the transaction has ended, either way."""
        async with self._lock:
            driver = self._driver
            if driver is None:
                raise MetadataError(f"{self.name} is closed")
            if self._file is not None:
                self._file.check()
            errors: tuple[type[Exception], ...] = (*driver.errors, OSError, DamagedRow)
            try:
                return await completion.run_to_end(driver.run(work), CANCEL_PATIENCE_S)
            except errors as error:
                if isinstance(error, MetadataError):
                    raise
                if schema.MISMATCH in str(error):
                    raise await self._name_damaged_row(driver, error) from error
                raise driver.failure(self.name, error) from error
            except NewerFormatError as error:
                raise MetadataError(f"{self.name}: {error}") from error
            except ValueError as error:  # a row that no version has written: a damaged page
                raise DamagedMetadata(self.name, str(error)[:200]) from error

    async def _name_damaged_row(self, driver: Driver, error: Exception) -> DamagedMetadata:
        """Return the failure of a statement that has met a damaged row of some table, with the name
        of the row."""
        text = str(error)
        named = [each for each in damage.CHECKED if f"a row of {each} {schema.MISMATCH}" in text]
        found = ""
        with suppress(*driver.errors, OSError):
            found = await driver.run(lambda session: damage.find(session.rows, named))
        return DamagedMetadata(self.name, found or text.partition("\n")[0], ours=True)

    async def close(self) -> None:
        """Wait for the running transaction, and disconnect."""
        async with self._lock:
            driver, self._driver = self._driver, None
            if driver is not None:
                await driver.close()
            if self._counter is not None:
                self._counter.close()


def _path_of(url: str) -> str | None:
    """Return the path of an SQLite URL, empty for a database in memory; None for PostgreSQL. Raises
    MetadataError for others."""
    scheme, separator, rest = url.partition("://")
    shown = url.rpartition("@")[2]  # a password may precede an @
    if not separator:
        raise MetadataError(f"metadata URL {shown!r} cannot be read as an SQL URL")
    if scheme not in _SERVED:
        raise MetadataError(
            f"metadata URL {shown!r} names a database that is not served: "
            "it must begin with sqlite:// or postgresql://"
        )
    if scheme not in _SQLITE:
        return None
    path = rest.removeprefix("/")
    if rest[:1] not in ("", "/") or ("?" in path and not path.startswith("file:")):
        raise MetadataError(
            f"metadata URL {shown!r} cannot be read as the URL of an SQLite file: it must be "
            "sqlite:///FILE, without options"
        )
    return "" if path == ":memory:" else path


def _has_tables(session: Session) -> bool:
    query = f"SELECT 1 WHERE to_regclass('{schema.VERSION_TABLE}') IS NOT NULL"
    if session.dialect == "sqlite":
        query = f"SELECT 1 FROM sqlite_master WHERE name = '{schema.VERSION_TABLE}'"
    return bool(session.rows(query))


def revision_of(session: Session) -> str | None:
    """Return the revision of the tables; None if there are none of kafkawire."""
    if not _has_tables(session):
        return None
    found = session.rows(f"SELECT version_num FROM {schema.VERSION_TABLE}")
    return str(found[0][0]) if found else None
