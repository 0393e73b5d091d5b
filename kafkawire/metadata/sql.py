"""The metadata in SQL: the statements behind the `Metadata` port.

Each method is one transaction of `engine.Database`. What must not be given twice comes from the
one row of `cluster`, whose update comes first: on PostgreSQL it makes writers wait for each other,
so that catalog versions are committed in their order; on SQLite there is one writer anyway.
Rows become objects in `rows.py`. Made by `store.open_metadata` for PostgreSQL, and for SQLite by
`quick.SqliteMetadata` at its first write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import TypeVar

from sqlalchemy import URL, func, select, update
from sqlalchemy.exc import IntegrityError

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import pairing, rows
from kafkawire.metadata.catalog import (
    TOPIC_RESOURCE,
    BrokerInfo,
    Catalog,
    ConfigChange,
    NewTopic,
    PartitionInfo,
    TopicInfo,
)
from kafkawire.metadata.database import Database, EngineSession
from kafkawire.metadata.engine import now_ms, random_id
from kafkawire.metadata.session import Session
from kafkawire.metadata.statements import (
    ConfigKey,
    advance,
    chunks,
    forget,
    insert,
    living,
    load_catalog,
    touch,
    upsert,
    write_configs,
)
from kafkawire.metadata.store import NOT_REGISTERED, MetadataError
from kafkawire.metadata.tables import (
    brokers,
    cluster,
    configs,
    partitions,
    topics,
)

T = TypeVar("T")


class SqlMetadata:
    """`Metadata` in SQLite or PostgreSQL."""

    def __init__(self, url: str | URL) -> None:
        self._database = Database(url)
        self._catalog = Catalog("")
        self._node_id: int | None = None  # known after register_broker

    @property
    def name(self) -> str:
        """How messages call it: the file, or the URL without its password."""
        return self._database.name

    def absent(self) -> bool:
        """Whether there is no file, or an empty one, so that `open` would create the metadata."""
        return self._database.absent()

    async def open(self) -> Catalog:
        """Make or migrates the database if need be, and loads the catalog."""
        await self._database.open()
        async with self._database.transaction() as connection:
            self._catalog = await load_catalog(connection)
        return self._catalog

    async def attach(self, catalog: Catalog, node_id: int | None) -> None:
        """Instead of `open` and `register_broker`, when somebody else has done what they do."""
        await self._database.open()
        self._catalog, self._node_id = catalog, node_id

    async def prepare(self) -> None:
        """Prepare the first write; see `Metadata.prepare`. Nothing is left to do once this module
        is imported."""

    async def register_broker(
        self, node_id: int, listeners: Mapping[str, tuple[str, int]], rack: str | None
    ) -> None:
        """Insert or update this broker; writes only what has changed."""
        info = BrokerInfo(node_id, dict(listeners), rack)
        if self._catalog.brokers.get(node_id) != info:
            async with self._database.transaction() as connection:
                await advance(connection)
                await upsert(connection, brokers, [rows.broker_row(info, now_ms())])
            self._catalog.add_broker(info)
        self._node_id = node_id

    async def create_topics(self, new: list[NewTopic]) -> list[TopicInfo]:
        """Make all or none."""
        if not new:
            return []
        created_ms = now_ms()
        async with self._database.transaction() as connection:
            count = sum(len(topic.leaders) for topic in new)
            version, number = await advance(connection, partitions=count)
            made: list[TopicInfo] = []
            for part in chunks(new):
                some: list[TopicInfo] = []
                for topic in part:
                    some.append(rows.new_topic(topic, random_id(), number, created_ms))
                    number += len(topic.leaders)
                try:
                    await insert(connection, topics, (rows.topic_row(t, version) for t in some))
                except IntegrityError as error:  # the index over the names of living topics
                    raise _taken(new) from error
                of_partitions = (rows.partition_rows(t.id, t.partitions) for t in some)
                await insert(connection, partitions, chain.from_iterable(of_partitions))
                of_configs = (rows.config_rows(t) for t in some)
                await insert(connection, configs, chain.from_iterable(of_configs))
                made += some
        return made

    async def delete_topics(self, ids: list[bytes]) -> None:
        """Delete all or none."""
        if not ids:
            return
        async with self._database.transaction() as connection:
            version, _ = await advance(connection)
            await touch(connection, ids, version)
            for part in chunks(ids):
                await connection.execute(
                    update(topics).where(topics.c.id.in_(part)).values(deleted_ms=now_ms())
                )
            await forget(connection, ids)

    async def create_partitions(
        self, topic_id: bytes, new_total: int, leaders: list[int] | None = None
    ) -> list[PartitionInfo]:
        """Add partitions up to `new_total`; `leaders` of those, otherwise this broker."""
        async with self._database.transaction() as connection:
            # The row of the cluster is locked before the partitions are counted.
            version, _ = await advance(connection)
            await touch(connection, [topic_id], version)
            counted = select(func.count()).where(partitions.c.topic_id == topic_id)
            total = (await connection.execute(counted)).scalar_one()
            if new_total <= total:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic currently has {total} partition(s); {new_total} would not be "
                    "an increase.",
                )
            _, number = await advance(connection, partitions=new_total - total)
            if leaders is None:
                leaders = [self._node()] * (new_total - total)
            assert len(leaders) == new_total - total, leaders
            added = rows.new_partitions(leaders, number, first_index=total)
            await insert(connection, partitions, rows.partition_rows(topic_id, added))
        return added

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        """Change all or none, in order."""
        if not changes:
            return
        async with self._database.transaction() as connection:
            version, _ = await advance(connection)
            ids = await living(connection, changes)
            await touch(connection, ids.values(), version)
            # The last change of a key is what remains, as if made in order.
            last: dict[ConfigKey, str | None] = {}
            for change in changes:
                topic = change.resource_type == TOPIC_RESOURCE
                resource = uuid_text(ids[change.name]) if topic else change.name
                last[change.resource_type, resource, change.key] = change.value
            await write_configs(connection, last)

    async def lease_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids that nobody else gets."""
        assert count > 0, count
        async with self._database.transaction() as connection:
            await connection.execute(
                update(cluster).values(next_producer_id=cluster.c.next_producer_id + count)
            )
            end = (await connection.execute(select(cluster.c.next_producer_id))).scalar_one()
        return int(end) - count

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        """Those of the partition numbers that were ever assigned, deleted ones included."""
        return await self.transact(lambda session: pairing.known_partitions(session, numbers))

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        """Raise the leader epochs of partitions this broker leads, all or none; the new ones."""
        if not numbers:
            return {}
        epochs: dict[int, int] = {}
        async with self._database.transaction() as connection:
            version, _ = await advance(connection)
            for part in chunks(sorted(set(numbers))):
                mine = (partitions.c.number.in_(part), partitions.c.leader == self._node())
                raised = await connection.execute(
                    update(partitions)
                    .where(*mine)
                    .values(leader_epoch=partitions.c.leader_epoch + 1)
                )
                if raised.rowcount != len(part):
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                found = await connection.execute(
                    select(partitions.c.number, partitions.c.leader_epoch).where(*mine)
                )
                epochs.update((number, epoch) for number, epoch in found)
                touched = select(partitions.c.topic_id).where(partitions.c.number.in_(part))
                await connection.execute(
                    update(topics).where(topics.c.id.in_(touched)).values(version=version)
                )
        self._catalog.set_leader_epochs(epochs)
        return epochs

    async def raise_leader_epochs(self) -> None:
        """Raise the leader epochs of all partitions this broker leads, in one statement."""
        node_id = self._node()
        async with self._database.transaction() as connection:
            await advance(connection)
            await connection.execute(
                update(partitions)
                .where(partitions.c.leader == node_id)
                .values(leader_epoch=partitions.c.leader_epoch + 1)
            )
        self._catalog.raise_leader_epochs(node_id)

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Run a transaction; see `Transactions.transact`. Runs on the loop; the database on its
        driver's thread."""
        try:
            async with self._database.transaction() as connection:
                return await connection.run_sync(lambda sync: work(EngineSession(sync)))
        except FormatError as error:
            raise MetadataError(f"{self._database.name}: {error}") from error

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()

    def _node(self) -> int:
        if self._node_id is None:
            raise MetadataError(NOT_REGISTERED)
        return self._node_id


def _taken(new: list[NewTopic]) -> KafkaError:
    names = ", ".join(topic.name for topic in new[:10])
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"One of these topics exists: {names}")
