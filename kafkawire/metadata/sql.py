"""The metadata in SQL: the implementation of the `Metadata` port.

Each method is one transaction of `database.Database`. Unique numbers come from the only row of
`cluster`, which each transaction updates first: on PostgreSQL writers then wait for each other, so
that catalog versions are committed in order; SQLite has only one writer. Rows become objects in
`rows.py`. Created by `open.open_metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import heartbeats, pairing, rows
from kafkawire.metadata.catalog import (
    TOPIC_RESOURCE,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.changes import CatalogChanges, Cursor, read_changes
from kafkawire.metadata.database import Database
from kafkawire.metadata.directory import LeadGroup
from kafkawire.metadata.generated import now_ms
from kafkawire.metadata.session import Session
from kafkawire.metadata.statements import (
    ConfigKey,
    advance,
    broker_epoch,
    bump_leader_epochs,
    check_broker_epoch,
    create_topics,
    delete_topics,
    groups_of,
    insert,
    living,
    load_catalog,
    move_partitions,
    plan_moves,
    raise_group_epochs,
    remove_broker,
    take_numbers,
    touch,
    upsert,
    write_configs,
)
from kafkawire.metadata.store import NOT_REGISTERED, MetadataError, sqlite_file

T = TypeVar("T")


class SqlMetadata:
    """`Metadata` in SQLite or PostgreSQL."""

    def __init__(self, url: str | PurePath) -> None:
        self._database = Database(url)
        self._quick = Database(url, quick=True)
        self._catalog = Catalog("")
        self._node_id: int | None = None  # known after register_broker
        self._registered: set[int] = set()  # brokers that this process has registered

    @property
    def name(self) -> str:
        return self._database.name

    def absent(self) -> bool:
        return self._database.absent()

    async def stored_revision(self) -> str | None:
        """Return the revision of the tables; see `Database.stored_revision`."""
        return await self._database.stored_revision()

    async def open(self) -> Catalog:
        await self._database.open()
        await self._database.count_commits()
        self._catalog = await self._database.run(load_catalog)
        return self._catalog

    async def reload(self) -> Catalog:
        self._catalog = await self._database.run(load_catalog)
        return self._catalog

    async def register_broker(
        self,
        node_id: int,
        listeners: Mapping[str, tuple[str, int]],
        rack: str | None,
        folder: str | None = None,
        after: int | None = None,
    ) -> None:
        """Insert or update this broker; the first call raises its epoch, others write only
        changes."""
        known = self._catalog.brokers.get(node_id) if node_id in self._registered else None
        expected = after if known is None else known.epoch
        info = BrokerInfo(node_id, dict(listeners), rack, folder=folder)

        def work(session: Session, version: int) -> tuple[LeadGroup, int]:
            if expected is not None:
                check_broker_epoch(session, node_id, expected)
            upsert(session, "brokers", [rows.broker_row(info, now_ms(), version)])
            epoch = broker_epoch(session, node_id, version, new=node_id not in self._registered)
            return groups_of(session, [node_id], version)[node_id], epoch

        if known != info:
            group, epoch = await self._change(work)
            self._registered.add(node_id)
            self._catalog.add_broker(replace(info, epoch=epoch))
            self._catalog.set_groups([group])
        self._node_id = node_id

    async def remove_broker(self, node_id: int, seen: int, own_epoch: int | None = None) -> None:
        await self._change(
            lambda session, version: remove_broker(session, node_id, version, own_epoch),
            seen,
        )
        self._registered.discard(node_id)

    async def create_topics(self, new: list[NewTopic], seen: int | None = None) -> list[TopicInfo]:
        """Create all topics or none."""
        if not new:
            return []

        return await self._change(
            lambda session, version: create_topics(session, new, version), seen
        )

    async def delete_topics(self, ids: list[bytes], seen: int | None = None) -> None:
        if ids:
            await self._change(lambda session, version: delete_topics(session, ids, version), seen)

    async def create_partitions(
        self,
        topic_id: bytes,
        new_total: int,
        leaders: list[int] | None = None,
        seen: int | None = None,
    ) -> list[PartitionInfo]:
        def work(session: Session, version: int) -> list[PartitionInfo]:
            touch(session, [topic_id], version)
            counted = "SELECT count(*) FROM partitions WHERE topic_id = ?"
            ((total,),) = session.rows(counted, (topic_id,))
            if new_total <= total:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic currently has {total} partition(s); {new_total} would not be "
                    "an increase.",
                )
            number = take_numbers(session, new_total - total)
            led = [self._node()] * (new_total - total) if leaders is None else leaders
            assert len(led) == new_total - total, led
            added = rows.new_partitions(led, number, first_index=total)
            groups = groups_of(session, led, version)
            insert(session, "partitions", rows.partition_rows(topic_id, added, groups))
            return added

        return await self._change(work, seen)

    async def alter_configs(self, changes: list[ConfigChange], seen: int | None = None) -> None:
        def work(session: Session, version: int) -> None:
            ids = living(session, changes)
            touch(session, ids.values(), version)
            # The last change of a key wins, as if made in order.
            last: dict[ConfigKey, str | None] = {}
            for change in changes:
                topic = change.resource_type == TOPIC_RESOURCE
                resource = uuid_text(ids[change.name]) if topic else change.name
                last[change.resource_type, resource, change.key] = change.value
            write_configs(session, last)
            if any(change.resource_type != TOPIC_RESOURCE for change in changes):
                session.run("UPDATE cluster SET broker_configs_version = ?", (version,))

        if changes:
            await self._change(work, seen)

    async def finalize_features(self, levels: Mapping[str, int], seen: int | None = None) -> int:
        def work(session: Session, epoch: int) -> int:
            upsert(
                session,
                "features",
                [{"name": name, "level": level, "epoch": epoch} for name, level in levels.items()],
            )
            return epoch

        return await self._change(work, seen)

    async def lease_producer_ids(self, count: int) -> int:
        assert count > 0, count

        def work(session: Session) -> int:
            session.run("UPDATE cluster SET next_producer_id = next_producer_id + ?", (count,))
            ((end,),) = session.rows("SELECT next_producer_id FROM cluster")
            return int(end) - count

        return await self._database.run(work)

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        return await self.transact(lambda session: pairing.known_partitions(session, numbers))

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        if not numbers:
            return {}
        node_id = self._node()
        epochs = await self._change(
            lambda session, version: bump_leader_epochs(session, numbers, node_id, version)
        )
        self._catalog.set_leader_epochs(epochs)
        return epochs

    async def raise_leader_epochs(self) -> None:
        node_id = self._node()

        groups = await self._change(
            lambda session, version: raise_group_epochs(session, node_id, version)
        )
        self._catalog.set_groups(groups)

    async def move_partitions(
        self, numbers: list[int], leader: int, seen: int, then: Mapping[int, int] | None = None
    ) -> None:
        def work(session: Session) -> None:
            version = advance(session, seen)
            move_partitions(session, numbers, leader, version)
            plan_moves(session, then or {}, version)

        if numbers:
            await self._database.run(work)

    async def plan_moves(self, targets: Mapping[int, int | None], seen: int) -> None:
        if targets:
            await self._change(lambda session, version: plan_moves(session, targets, version), seen)

    def commits(self) -> int | None:
        return self._database.commits()

    async def catalog_version(self) -> int:
        query = "SELECT version FROM cluster"
        return int((await self.transact(lambda session: session.rows(query)))[0][0])

    async def changes_since(self, version: int, after: Cursor | None = None) -> CatalogChanges:
        return await self.transact(lambda session: read_changes(session, version, after))

    async def _change(self, work: Callable[[Session, int], T], seen: int | None = None) -> T:
        """Run a transaction that changes the catalog; `work` gets the new version."""
        version = 0

        def change_version(session: Session) -> T:
            nonlocal version
            # Locks the row of the cluster before anything is read.
            version = advance(session, seen)
            return work(session, version)

        result = await self._database.run(change_version)
        self._catalog.note_stored(version)
        return result

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Run a transaction; see `Transactions.transact`. Runs on the loop; the database on its
        driver's thread."""
        return await self._database.run(work)

    async def beat(self, node_id: int, starting: bool = False) -> dict[int, int]:
        self._quick.connect()
        epoch = self._epoch_of(node_id)
        return await self._quick.run(
            lambda session: heartbeats.beat(session, node_id, epoch, starting)
        )

    async def end_heartbeats(self, node_id: int) -> None:
        self._quick.connect()
        epoch = self._epoch_of(node_id)
        await self._quick.run(lambda session: heartbeats.end(session, node_id, epoch))

    def _epoch_of(self, node_id: int) -> int | None:
        """Return the broker epoch of this process; None if it has not registered the broker."""
        return self._catalog.brokers[node_id].epoch if node_id in self._registered else None

    async def close(self) -> None:
        await self._quick.close()
        await self._database.close()

    def _node(self) -> int:
        if self._node_id is None:
            raise MetadataError(NOT_REGISTERED)
        return self._node_id


def open_metadata(url: str, folder: str) -> SqlMetadata:
    """Return the store for an SQLAlchemy URL; without one SQLite in `folder`. Nothing is opened
    yet. Raises MetadataError for an unsupported URL."""
    path = sqlite_file(url, folder)
    return SqlMetadata(url) if path is None else sqlite_metadata(path)


def sqlite_metadata(path: str) -> SqlMetadata:
    """Return the store in an SQLite file of any name; in a URL a `?` would end the name."""
    return SqlMetadata(PurePath(path))
