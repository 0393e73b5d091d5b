"""The port to the metadata in SQL.

`Metadata` is implemented by `sql.SqlMetadata` (SQLite, PostgreSQL) and by the simulation's memory
store (tests/kit/memory_metadata.py); tests/metadata/test_contract.py runs the same tests for both.
`open.open_metadata` opens the store of a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from kafkawire.metadata.catalog import Catalog, ConfigChange, NewTopic, PartitionInfo, TopicInfo
from kafkawire.metadata.session import Session

T = TypeVar("T")


class MetadataError(OSError):
    """The metadata cannot be used: damaged, newer than this program, unreachable, disk full.

    An OSError, because clients get the same error as for a failing disk.
    """


class DamagedMetadata(MetadataError):
    """The database is damaged or belongs to another program. `what`: the damage, without advice."""

    def __init__(self, name: str, detail: str) -> None:
        self.what = f"{name} is damaged or no metadata of kafkawire ({detail})"
        super().__init__(
            f"{self.what}: restore it from a copy, or rebuild it with "
            "`kafkawire restore --from-log`"
        )


def failure_of(name: str, error: BaseException) -> MetadataError:
    """Convert an error of a driver: damage is distinguished from temporary failures."""
    detail = str(error).partition("\n")[0].rstrip(".")
    if any(sign in detail for sign in ("not a database", "malformed", "Could not decode to UTF-8")):
        return DamagedMetadata(name, detail)
    return MetadataError(f"{name} failed ({detail})")


NOT_REGISTERED = "partitions are written before this broker is registered"


class Metadata(Protocol):
    """Each call is one transaction. When it returns, all its changes are durable; when it raises,
    nothing has changed. After a lost connection or a cancelled call either may be the case.
    KafkaError: the request is not possible. MetadataError: the store is broken.

    Writes are ordered: a second one waits for the first. The caller applies changes of topics and
    settings to the catalog, in one step with the log; the store applies brokers and leader epochs.
    """

    @property
    def name(self) -> str:
        """The name in messages: the file, or the URL without its password."""

    def absent(self) -> bool:
        """Whether there is no file, or an empty one, so that `open` would create the metadata.
        False for a database server, which only `open` connects to."""

    async def open(self) -> Catalog:
        """Create or migrate the database if needed, and load the catalog."""

    async def register_broker(
        self, node_id: int, listeners: Mapping[str, tuple[str, int]], rack: str | None
    ) -> None:
        """Insert this broker under its number. Called before partitions are written."""

    async def create_topics(self, topics: list[NewTopic]) -> list[TopicInfo]:
        """Create all topics or none. Raises TOPIC_ALREADY_EXISTS. Ids and partition numbers were
        never assigned before."""

    async def delete_topics(self, ids: list[bytes]) -> None:
        """Delete all topics or none. Raises UNKNOWN_TOPIC_ID. The names can be used again."""

    async def create_partitions(
        self, topic_id: bytes, new_total: int, leaders: list[int] | None = None
    ) -> list[PartitionInfo]:
        """Add partitions up to `new_total`; `leaders`: of the new ones, by default this broker.
        Raises UNKNOWN_TOPIC_ID, or INVALID_PARTITIONS if there are already as many."""

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        """Change all settings or none, in order. Raises UNKNOWN_TOPIC_OR_PARTITION."""

    async def finalize_features(self, levels: Mapping[str, int]) -> int:
        """Store new levels of features, all or none; return the epoch of the change, which is
        higher than that of any change before."""

    async def lease_producer_ids(self, count: int) -> int:
        """Lease `count` unique producer ids; return the first."""

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        """Return those of the partition numbers that were ever assigned, deleted ones included."""

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        """Raise the leader epochs of partitions this broker leads, all or none; return the new
        ones. Raises NOT_LEADER_OR_FOLLOWER if another broker leads one of them or it does not
        exist."""

    async def raise_leader_epochs(self) -> None:
        """Raise the leader epochs of all partitions this broker leads, in one statement. The
        versions of the topics are not changed, because writing a million of them would delay the
        start for seconds."""

    async def close(self) -> None:
        """Close the database. Calling it again does nothing."""


class Transactions(Protocol):
    """The database below, for tables other than the catalog: see
    `kafkawire.offsets.catalog.sql.storage`."""

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction, serialized with all other writes; an exception rolls it
        back. `work` must not block. Raises MetadataError."""


class SqlStore(Metadata, Transactions, Protocol):
    """Metadata in an SQL database that may be shared."""


def sqlite_file(url: str, folder: str) -> str | None:
    """Return the file of an SQLite URL, or of an empty one in `folder`; None for other
    databases."""
    driver, _, path = url.partition(":///")
    file = driver in ("sqlite", "sqlite+aiosqlite") and path and path[0] != ":" and "?" not in path
    return (path or f"{folder}/metadata.db") if file or not url else None
