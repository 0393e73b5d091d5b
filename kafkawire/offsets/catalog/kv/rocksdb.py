"""`SegmentCatalog` in RocksDB, for very many partitions on one broker (extra `kafkawire[rocksdb]`).

Each transaction is one atomic WriteBatch, and a sync of RocksDB's log before it returns. The folder
belongs to one process. Layout in `kv.layout`, logic in `kv.storage`.

Transactions are numbered, and `kv.transaction_count` has the last number that is durable: a
database with a smaller one, because its log was cut or damaged, is refused as damaged.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kafkawire.codec.format_errors import FormatError, NewerFormatError, check_version
from kafkawire.extras import MissingExtra, need
from kafkawire.metadata.sqlite import make_folder_of
from kafkawire.metadata.store import DamagedMetadata, MetadataError
from kafkawire.offsets.catalog.kv import layout
from kafkawire.offsets.catalog.kv.store import LeaderOf, Writes
from kafkawire.offsets.catalog.kv.threaded import ThreadedStorage
from kafkawire.offsets.catalog.kv.transaction_count import TransactionCount
from kafkawire.own_files import refuse_links

LOG_FILES = 2
"""Number of RocksDB's own text logs (LOG.old.*) that are kept."""
MEMTABLE_BYTES = 16 << 20
"""Bytes of a RocksDB memtable; there are at most two."""
DAMAGE_SIGNS = ("Corruption: ", "No such file or directory")
"""Messages of RocksDB for a damaged or missing file. Other errors are temporary: a lock, a full
disk."""


class RocksStore:
    """`KeyValueStore` over a RocksDB folder, opened by the first call. Raises MetadataError if it
    cannot be used, NewerFormatError if a newer program wrote it."""

    def __init__(self, folder: str, *, read_only: bool = False) -> None:
        """`read_only`: open it without changing a file; it must exist and cannot be written."""
        self._folder = folder
        self._read_only = read_only
        self._rocks: Any = None  # the module, imported on first use
        self._database: Any = None
        self._count = TransactionCount(folder)
        self._transactions = 0  # as stored in the database
        self._refusal = ""

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._usable() as database:
            return list(database.get(list(keys))) if keys else []

    def scan(self, low: bytes, high: bytes, limit: int = -1) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        if low >= high or limit == 0:
            return found
        with self._usable() as database:
            options = self._rocks.ReadOptions()
            options.set_iterate_upper_bound(high)
            cursor = database.iter(options)
            cursor.seek(low)
            for pair in _pairs(cursor):
                found.append(pair)
                if len(found) == limit:
                    break
        return found

    def floor(self, low: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        with self._usable() as database:
            cursor = database.iter()
            cursor.seek_for_prev(key)
            # Also an iterator that has failed is not valid, for which `status` raises.
            if not cursor.valid():
                cursor.status()
                return None
            return (cursor.key(), cursor.value()) if cursor.key() >= low else None

    def write(self, writes: Writes) -> None:
        """Apply all puts and deletes atomically."""
        with self._usable() as database:
            batch = self._rocks.WriteBatch(raw_mode=True)
            for key, value in writes.changes.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            # In the same batch: a database that has lost transactions has a smaller number.
            number = self._transactions + 1
            batch.put(layout.TRANSACTIONS_KEY, layout.pack_number(number))
            database.write(batch)
            self._transactions = number
            # The log is synced after the write: the driver (rocksdict) holds the interpreter lock
            # in `write` but not here, so the event loop never waits for the disk. Then the count,
            # with which the transaction is complete.
            try:
                database.flush_wal(True)
                self._count.store(number)
            # What is durable is unknown: no further reads or writes until a restart.
            except Exception:
                self._refusal = "could not be synced: the broker must start again"
                raise

    def check(self) -> None:
        """Verify the checksum of every block by reading all pairs. Raises DamagedMetadata if that
        fails, MetadataError if the folder cannot be used."""
        with self._usable() as database:
            cursor = database.iter()
            cursor.seek_to_first()
            for _ in _pairs(cursor):
                pass

    def close(self) -> None:
        self._refusal = "is closed"
        database, self._database = self._database, None
        if database is not None:
            database.close()

    @contextmanager
    def _usable(self) -> Iterator[Any]:
        """Return the driver's database; convert its errors, which are plain Exceptions."""
        if self._refusal:
            raise MetadataError(f"{self._folder} {self._refusal}")
        try:
            if self._database is None:
                self._open()
            yield self._database
        except (MetadataError, NewerFormatError):
            raise
        except FormatError as error:
            raise DamagedMetadata(self._folder, str(error)) from error
        except Exception as error:
            detail = str(error).partition("\n")[0]
            if any(sign in detail for sign in DAMAGE_SIGNS):
                raise DamagedMetadata(self._folder, detail) from error
            raise MetadataError(f"{self._folder} failed ({detail})") from error

    def _refuse_links(self) -> None:
        """Raise MetadataError if a file of the folder is a symbolic link."""
        # The driver follows them.
        try:
            names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
            refuse_links(os.path.join(self._folder, name) for name in names)
        except OSError as failure:
            raise MetadataError(str(failure)) from failure

    def _open(self) -> None:
        try:
            need("rocksdb", "offset.storage=rocksdb")
        except MissingExtra as missing:
            raise MetadataError(str(missing)) from missing
        import rocksdict

        self._rocks = rocksdict
        self._refuse_links()
        self._count.read()
        stored = self._inspect() if os.path.exists(self._folder) else None
        if stored is None and (self._count.value or self._read_only):
            raise DamagedMetadata(self._folder, "its files are gone")
        if self._read_only:
            self._database = self._open_read_only()
            return
        make_folder_of(f"{self._folder}/CURRENT")
        # Before the database: one with transactions, but without a count, is refused.
        if self._count.value is None:
            self._count.create()
        options = self._options()
        options.create_if_missing(True)
        options.set_keep_log_file_num(LOG_FILES)
        options.set_write_buffer_size(MEMTABLE_BYTES)
        database = rocksdict.Rdict(self._folder, options)
        # Durable with the first transaction.
        if stored is None:
            database.put(layout.VERSION_KEY, layout.FORMAT)
        self._database = database
        if stored == layout.FORMAT_BEFORE:
            self._upgrade()

    def _options(self) -> Any:
        options = self._rocks.Options(raw_mode=True)
        # The log counts up to its first damaged byte: what a crash tore was not answered, and
        # `_inspect` finds out whether anything else is missing.
        options.set_wal_recovery_mode(self._rocks.DBRecoveryMode.point_in_time())
        return options

    def _open_read_only(self) -> Any:
        access = self._rocks.AccessType.read_only()
        return self._rocks.Rdict(self._folder, self._options(), access_type=access)

    def _inspect(self) -> bytes | None:
        """Return the format of the database; None if it is empty. Changes no file, and raises
        DamagedMetadata if transactions are missing, NewerFormatError."""
        if not os.path.exists(f"{self._folder}/CURRENT"):
            return None
        database = self._open_read_only()
        try:
            stored, number = database.get([layout.VERSION_KEY, layout.TRANSACTIONS_KEY])
        finally:
            database.close()
        if stored not in (None, layout.FORMAT_BEFORE, layout.FORMAT):
            known = int.from_bytes(layout.FORMAT, "big")
            check_version(self._folder, int.from_bytes(stored, "big"), known)
            raise DamagedMetadata(self._folder, f"it has format {stored!r}")
        self._transactions, durable = layout.unpack_number(number), self._count.value
        if durable is None and self._transactions:
            raise DamagedMetadata(self._folder, f"{self._count.path} is missing")
        lost = (durable or 0) - self._transactions
        if lost > 0:
            what = "its last transaction is" if lost == 1 else f"its last {lost} transactions are"
            raise DamagedMetadata(self._folder, f"{what} missing or unreadable")
        return cast("bytes | None", stored)

    def _upgrade(self) -> None:
        """Convert rows of an older layout in one write."""
        writes = Writes()
        for key, value in self.scan(b"s", b"t"):
            writes.put(key, layout.upgraded_segment(value))
        writes.put(layout.VERSION_KEY, layout.FORMAT)
        self.write(writes)


def _pairs(cursor: Any) -> Iterator[tuple[bytes, bytes]]:
    """The pairs from a cursor's position on. Raises what stopped the cursor."""
    # The driver's own iterators (`Rdict.items`) end at a damaged block as if there were no more
    # pairs.
    while cursor.valid():
        yield cursor.key(), cursor.value()
        cursor.next()
    cursor.status()


class RocksStorage(ThreadedStorage):
    """`SegmentCatalog` in a RocksDB folder."""

    def __init__(
        self,
        folder: str,
        node_id: int,
        now_ms: Callable[[], int],
        leader_of: LeaderOf | None = None,
    ) -> None:
        super().__init__(RocksStore(folder), folder, node_id, now_ms, leader_of)
