"""The port to the metadata in SQL.

`Metadata` is implemented by `sql.SqlMetadata` (SQLite, PostgreSQL) and by the simulation's memory
store (tests/kit/memory_metadata.py); tests/metadata/test_contract.py runs the same tests for both.
`open.open_metadata` opens the store of a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from kafkawire.log_lines import reason_of
from kafkawire.metadata.catalog import Catalog, ConfigChange, NewTopic, PartitionInfo, TopicInfo
from kafkawire.metadata.changes import CatalogChanges, Cursor
from kafkawire.metadata.schema import MISMATCH
from kafkawire.metadata.session import Session

T = TypeVar("T")


class MetadataError(OSError):
    """The metadata cannot be used: damaged, newer than this program, unreachable, disk full.

    An OSError, because clients get the same error as for a failing disk.
    """


class CatalogChanged(Exception):
    """Another process has changed the catalog since the change was planned: follow its changes and
    plan again. Not a KafkaError: no client gets it. `version`: of the catalog in SQL."""

    def __init__(self, version: int) -> None:
        super().__init__(f"the catalog has version {version}")
        self.version = version


class BrokerSuperseded(MetadataError):
    """Another process was started as this broker, which has a higher epoch since; or the broker
    was removed (`epoch` 0)."""

    def __init__(self, node_id: int, epoch: int) -> None:
        super().__init__(
            f"another process was started as broker {node_id}, in epoch {epoch}: a broker runs in "
            "one process only"
            if epoch
            else f"broker {node_id} is not registered: it was removed from the cluster"
        )


class OlderMetadata(MetadataError):
    """The database was replaced, while this process uses it, by an older copy or another file."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the metadata was replaced while this broker was running: {detail}")


ADVICE = "restore it from a copy, or rebuild it with `kafkawire restore --from-log`"


class DamagedMetadata(MetadataError):
    """The database is damaged or belongs to another program. `what`: the damage, without advice.
    `ours`: there is no doubt that it is metadata of kafkawire."""

    def __init__(self, name: str, detail: str, ours: bool = False) -> None:
        self.what = f"{name} is damaged{'' if ours else ' or no metadata of kafkawire'} ({detail})"
        super().__init__(f"{self.what}: {ADVICE}")


class NewerMetadata(DamagedMetadata):
    """The database has a revision that this program does not know: of a newer one, or damaged."""

    def __init__(self, name: str, stored: str, known: str) -> None:
        super().__init__(name, "")
        self.what = (
            f"{name} was written by a newer kafkawire (revision {stored}, this one knows {known}): "
            "use that version. If there was none, the revision is damaged"
        )
        self.args = (f"{self.what}: {ADVICE}",)


def failure_of(name: str, error: BaseException) -> MetadataError:
    """Convert an error of a driver: damage is distinguished from temporary failures."""
    detail = reason_of(error).partition("\n")[0].rstrip(".")
    if MISMATCH in detail:
        return DamagedMetadata(name, detail, ours=True)
    if any(sign in detail for sign in ("not a database", "malformed", "Could not decode to UTF-8")):
        return DamagedMetadata(name, detail)
    verb = "cannot be opened" if "unable to open" in detail else "failed"
    return MetadataError(f"{name} {verb} ({detail})")


NOT_REGISTERED = "partitions are written before this broker is registered"


class Metadata(Protocol):
    """Each call is one transaction. When it returns, all its changes are durable; when it raises,
    nothing has changed. After a lost connection or a cancelled call either may be the case.
    KafkaError: the request is not possible. MetadataError: the store is broken.

    Writes are ordered: a second one waits for the first. The caller applies changes of topics and
    settings to the catalog, in one step with the log; the store applies brokers and leader epochs,
    and raises `Catalog.stored_version` unless another process changed the catalog in between.

    `seen`: the catalog version that a change was planned with; None: any. CatalogChanged is raised
    if SQL has another one.
    """

    @property
    def name(self) -> str:
        """The name in messages: the file, or the URL without its password."""

    def absent(self) -> bool:
        """Whether there is no file, or an empty one, so that `open` would create the metadata.
        False for a database server, which only `open` connects to."""

    async def open(self) -> Catalog:
        """Create or migrate the database if needed, and load the catalog."""

    async def reload(self) -> Catalog:
        """Load the catalog again, before the broker is registered: it was changed by others."""

    async def register_broker(
        self,
        node_id: int,
        listeners: Mapping[str, tuple[str, int]],
        rack: str | None,
        folder: str | None = None,
        after: int | None = None,
    ) -> None:
        """Insert this broker under its number; the first call of a process raises the broker's
        epoch. `folder`: equal for brokers that write to one data folder; `after`: the epoch that
        the broker must have before, None: any. Raises BrokerSuperseded if it has another one, or if
        a later call finds that another process has raised it. Called before partitions are
        written."""

    async def remove_broker(self, node_id: int, seen: int, own_epoch: int | None = None) -> None:
        """Delete the registration of a broker that is not alive, its heartbeat and its settings;
        the caller applies it to the catalog. A broker that is registered again has a higher epoch.
        `own_epoch`: that of this process, which removes itself; its log has no log objects any
        more. Raises BROKER_ID_NOT_REGISTERED, INVALID_REQUEST if it leads partitions or has what
        only the broker itself deletes, or BrokerSuperseded if it was started elsewhere."""

    async def create_topics(
        self, topics: list[NewTopic], seen: int | None = None
    ) -> list[TopicInfo]:
        """Create all topics or none. Raises TOPIC_ALREADY_EXISTS. Ids and partition numbers were
        never assigned before."""

    async def delete_topics(self, ids: list[bytes], seen: int | None = None) -> None:
        """Delete all topics or none. Raises UNKNOWN_TOPIC_ID. The names can be used again."""

    async def create_partitions(
        self,
        topic_id: bytes,
        new_total: int,
        leaders: list[int] | None = None,
        seen: int | None = None,
    ) -> list[PartitionInfo]:
        """Add partitions up to `new_total`; `leaders`: of the new ones, by default this broker.
        Raises UNKNOWN_TOPIC_ID, or INVALID_PARTITIONS if there are already as many."""

    async def alter_configs(self, changes: list[ConfigChange], seen: int | None = None) -> None:
        """Change all settings or none, in order. Raises UNKNOWN_TOPIC_OR_PARTITION."""

    async def finalize_features(self, levels: Mapping[str, int], seen: int | None = None) -> int:
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
        """Raise the leader epochs of all partitions this broker leads, by those of their lead
        groups."""

    async def move_partitions(
        self, numbers: list[int], leader: int, seen: int, then: Mapping[int, int] | None = None
    ) -> None:
        """Make `leader` the leader of partitions, each in its next leader epoch; planned moves of
        them end. `then`: the broker that some of them are to be moved to afterwards. The catalog is
        not changed: `changes_since` returns the change."""

    async def plan_moves(self, targets: Mapping[int, int | None], seen: int) -> None:
        """Store the brokers that partitions of existing topics are to be moved to, by number; None
        ends a move. The caller applies it to the catalog."""

    def commits(self) -> int | None:
        """Return a number that differs after every change; see `Transactions.commits`."""

    async def catalog_version(self) -> int:
        """Return the version of the catalog; the catalog in memory may be older."""

    async def changes_since(self, version: int, after: Cursor | None = None) -> CatalogChanges:
        """Return what was changed in the catalog after `version`, by any process. Topics come in
        parts; `after`: the end of the part before."""

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        """Raise the heartbeat of a broker, which is negative and falls while the broker is
        `starting`; return those of all. Not durable, and soon fails where it would have to wait."""

    async def end_heartbeats(self, node_id: int) -> None:
        """Delete the heartbeat of a broker that ends."""

    async def close(self) -> None:
        """Close the database. Calling it again does nothing."""


class Transactions(Protocol):
    """The database below, for tables other than the catalog: see
    `kafkawire.offsets.catalog.sql.storage`."""

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction, serialized with all other writes; an exception rolls it
        back. `work` must not block. Raises MetadataError."""

    def commits(self) -> int | None:
        """Return a number that differs after every commit, of any process, that changed the catalog
        or a table of security, so that a poll needs no transaction while nothing was changed; None
        if the database has none."""


class SqlStore(Metadata, Transactions, Protocol):
    """Metadata in an SQL database that may be shared."""


def sqlite_file(url: str, folder: str) -> str | None:
    """Return the file of an SQLite URL, or of an empty one in `folder`; None for other
    databases."""
    driver, _, path = url.partition(":///")
    file = driver in ("sqlite", "sqlite+aiosqlite") and path and path[0] != ":" and "?" not in path
    return (path or f"{folder}/metadata.db") if file or not url else None
