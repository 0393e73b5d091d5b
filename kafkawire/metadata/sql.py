"""The metadata in SQL: the implementation of the `Metadata` port.

Each method is one transaction of `database.Database`. Unique numbers come from the only row of
`cluster`, which each transaction updates first: on PostgreSQL writers then wait for each other, so
that catalog versions are committed in order; SQLite has only one writer. Rows become objects in
`rows.py`. Created by `open.open_metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sqlalchemy import URL, Connection, func, select, update

from kafkawire.codec.errors import ErrorCode, KafkaError
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
from kafkawire.metadata.database import Database
from kafkawire.metadata.generated import now_ms
from kafkawire.metadata.session import Session
from kafkawire.metadata.statements import (
    ConfigKey,
    advance,
    bump_leader_epochs,
    chunks,
    create_topics,
    forget,
    insert,
    living,
    load_catalog,
    touch,
    upsert,
    write_configs,
)
from kafkawire.metadata.store import NOT_REGISTERED, MetadataError
from kafkawire.metadata.tables import brokers, cluster, features, partitions, topics

T = TypeVar("T")


class SqlMetadata:
    """`Metadata` in SQLite or PostgreSQL."""

    def __init__(self, url: str | URL) -> None:
        self._database = Database(url)
        self._catalog = Catalog("")
        self._node_id: int | None = None  # known after register_broker

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
        self._catalog = await self._database.run(load_catalog)
        return self._catalog

    async def register_broker(
        self, node_id: int, listeners: Mapping[str, tuple[str, int]], rack: str | None
    ) -> None:
        """Insert or update this broker; writes only changes."""
        info = BrokerInfo(node_id, dict(listeners), rack)

        def work(connection: Connection) -> None:
            advance(connection)
            upsert(connection, brokers, [rows.broker_row(info, now_ms())])

        if self._catalog.brokers.get(node_id) != info:
            await self._database.run(work)
            self._catalog.add_broker(info)
        self._node_id = node_id

    async def create_topics(self, new: list[NewTopic]) -> list[TopicInfo]:
        """Create all topics or none."""
        if not new:
            return []
        return await self._database.run(lambda connection: create_topics(connection, new))

    async def delete_topics(self, ids: list[bytes]) -> None:
        def work(connection: Connection) -> None:
            version, _ = advance(connection)
            touch(connection, ids, version)
            for part in chunks(ids):
                connection.execute(
                    update(topics).where(topics.c.id.in_(part)).values(deleted_ms=now_ms())
                )
            forget(connection, ids)

        if ids:
            await self._database.run(work)

    async def create_partitions(
        self, topic_id: bytes, new_total: int, leaders: list[int] | None = None
    ) -> list[PartitionInfo]:
        def work(connection: Connection) -> list[PartitionInfo]:
            # Lock the row of the cluster before counting partitions.
            version, _ = advance(connection)
            touch(connection, [topic_id], version)
            counted = select(func.count()).where(partitions.c.topic_id == topic_id)
            total = connection.execute(counted).scalar_one()
            if new_total <= total:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic currently has {total} partition(s); {new_total} would not be "
                    "an increase.",
                )
            _, number = advance(connection, partitions=new_total - total)
            led = [self._node()] * (new_total - total) if leaders is None else leaders
            assert len(led) == new_total - total, led
            added = rows.new_partitions(led, number, first_index=total)
            insert(connection, partitions, rows.partition_rows(topic_id, added))
            return added

        return await self._database.run(work)

    async def alter_configs(self, changes: list[ConfigChange]) -> None:
        def work(connection: Connection) -> None:
            version, _ = advance(connection)
            ids = living(connection, changes)
            touch(connection, ids.values(), version)
            # The last change of a key wins, as if made in order.
            last: dict[ConfigKey, str | None] = {}
            for change in changes:
                topic = change.resource_type == TOPIC_RESOURCE
                resource = uuid_text(ids[change.name]) if topic else change.name
                last[change.resource_type, resource, change.key] = change.value
            write_configs(connection, last)

        if changes:
            await self._database.run(work)

    async def finalize_features(self, levels: Mapping[str, int]) -> int:
        def work(connection: Connection) -> int:
            epoch, _ = advance(connection)
            upsert(
                connection,
                features,
                [{"name": name, "level": level, "epoch": epoch} for name, level in levels.items()],
            )
            return epoch

        return await self._database.run(work)

    async def lease_producer_ids(self, count: int) -> int:
        assert count > 0, count

        def work(connection: Connection) -> int:
            connection.execute(
                update(cluster).values(next_producer_id=cluster.c.next_producer_id + count)
            )
            end = connection.execute(select(cluster.c.next_producer_id)).scalar_one()
            return int(end) - count

        return await self._database.run(work)

    async def known_partitions(self, numbers: Iterable[int]) -> set[int]:
        return await self.transact(lambda session: pairing.known_partitions(session, numbers))

    async def bump_leader_epochs(self, numbers: list[int]) -> dict[int, int]:
        if not numbers:
            return {}
        node_id = self._node()
        epochs = await self._database.run(
            lambda connection: bump_leader_epochs(connection, numbers, node_id)
        )
        self._catalog.set_leader_epochs(epochs)
        return epochs

    async def raise_leader_epochs(self) -> None:
        node_id = self._node()

        def work(connection: Connection) -> None:
            advance(connection)
            connection.execute(
                update(partitions)
                .where(partitions.c.leader == node_id)
                .values(leader_epoch=partitions.c.leader_epoch + 1)
            )

        await self._database.run(work)
        self._catalog.raise_leader_epochs(node_id)

    async def transact(self, work: Callable[[Session], T]) -> T:
        """Run a transaction; see `Transactions.transact`. Runs on the loop; the database on its
        driver's thread."""
        return await self._database.run(lambda connection: work(Session(connection)))

    async def close(self) -> None:
        await self._database.close()

    def _node(self) -> int:
        if self._node_id is None:
            raise MetadataError(NOT_REGISTERED)
        return self._node_id
