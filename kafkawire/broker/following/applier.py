"""Applies changes that other brokers made to the catalog, the log and the coordinators.

A change may be applied twice, because a part of the changes is read again after a failure: only
differences to the catalog have an effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafkawire.broker.following.lock import CatalogLock
from kafkawire.hooks import Event, LeadershipGained, LeadershipLost, TopicCreated, TopicDeleted
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.log_lines import address_of
from kafkawire.metadata.catalog import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigChange,
)
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.metadata.store import MetadataError

if TYPE_CHECKING:
    from kafkawire.broker.parts import BrokerParts
    from kafkawire.coordination.service import CoordinatorService
    from kafkawire.log.io.ports import Env
    from kafkawire.log.manager import Log
    from kafkawire.metadata.catalog import BrokerInfo, Catalog
    from kafkawire.metadata.changes import CatalogChanges, ChangedTopic, PartitionPlace
    from kafkawire.metadata.store import Metadata
    from kafkawire.schedules.starter import ScheduleStarter

logger = logging.getLogger(__name__)


# Applies changes of leadership that another broker made, in the order that keeps one writer.
#
# The catalog has the new leaders already. First everything that was lost ends: the log answers
# NOT_LEADER_OR_FOLLOWER and writes nothing more for the partitions, coordinators answer
# NOT_COORDINATOR. Then what was gained begins to load.


Services = Mapping[str, Callable[[], Awaitable["CoordinatorService[Any]"]]]
"""Topics of coordinators, and what returns the service of each."""


async def apply_moves(
    catalog: Catalog, log: Log, services: Services, schedules: ScheduleStarter, moves: Moves
) -> None:
    """End what this broker lost, and begin what it gained. Schedules are notified of each change:
    a partition of a schedule topic may be among them."""
    await log.resign(moves.lost)
    for topic, indexes in _internal(catalog, services, moves.lost).items():
        await (await services[topic]()).resign(indexes)
    await schedules.resign(_indexes(catalog, schedules.topic, moves.lost))
    await log.lead(moves.gained)
    for topic, indexes in _internal(catalog, services, moves.gained).items():
        await (await services[topic]()).lead(indexes)
    await schedules.lead(_indexes(catalog, schedules.topic, moves.gained))


def _indexes(catalog: Catalog, topic: str, numbers: Iterable[int]) -> list[int]:
    """Return the indexes of those of the partitions that are of this topic."""
    found = (catalog.locate(number) for number in numbers)
    return [each.index for each in found if each is not None and each.topic == topic]


def _internal(catalog: Catalog, services: Services, numbers: Iterable[int]) -> dict[str, list[int]]:
    """Return those of the partitions that have coordinators: indexes by topic."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        location = catalog.locate(number)
        if location is not None and location.topic in services:
            found.setdefault(location.topic, []).append(location.index)
    return found


TOPICS_PER_SLICE = 50
"""Topics applied per event-loop iteration: about 10 us each."""


@dataclass(slots=True)
class Moves:
    """Partition numbers that this broker does not lead any more, and those that it leads now."""

    lost: list[int] = field(default_factory=list)
    gained: list[int] = field(default_factory=list)


class CatalogApplier:
    """Applies changes for the broker that owns the catalog. `drop` removes a topic,
    `settings_changed` applies changed
    names of its own settings, `moved` gets changes of leadership that are in the catalog."""

    def __init__(
        self,
        broker: BrokerParts,
        drop: Callable[[TopicInfo], None],
        settings_changed: Callable[[Iterable[str]], Awaitable[None]],
        moved: Callable[[Moves], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._drop = drop
        self._settings_changed = settings_changed
        self._moved = moved

    async def apply(self, changes: CatalogChanges) -> None:
        """Apply one part of the changes."""
        catalog = self._broker.catalog
        self._apply_brokers(changes)
        for name, level, epoch in changes.features:
            if catalog.features.epoch < epoch:
                catalog.finalize_features({name: level}, epoch)
        moves = Moves()
        self._apply_groups(changes, moves)
        for at, topic in enumerate(changes.topics):
            self._apply_topic(topic, moves)
            if at % TOPICS_PER_SLICE == TOPICS_PER_SLICE - 1:
                await self._broker.env.slices.pause()
        if changes.broker_settings is not None:
            await self._apply_settings(changes.broker_settings)
        for kind, settings in (
            (GROUP_RESOURCE, changes.group_settings),
            (CLIENT_METRICS_RESOURCE, changes.client_metrics),
        ):
            if settings is not None:
                await self._replace_settings(kind, settings)
        if moves.lost or moves.gained:
            self._emit_moves(moves)
            await self._moved(moves)

    def _emit(self, event: Event) -> None:
        if self._broker.env.hooks is not None:
            self._broker.env.hooks.emit(event)

    def _emit_moves(self, moves: Moves) -> None:
        if self._broker.env.hooks is None:
            return
        for kind, numbers in ((LeadershipLost, moves.lost), (LeadershipGained, moves.gained)):
            found = map(self._broker.catalog.locate, dict.fromkeys(numbers))
            # Those of deleted topics are left out.
            places = [(each.topic, each.index) for each in found if each is not None]
            if places:
                self._emit(kind(places))

    def _apply_brokers(self, changes: CatalogChanges) -> None:
        catalog, me = self._broker.catalog, self._broker.node_id
        for info in changes.brokers:
            known = catalog.brokers.get(info.node_id)
            if info.node_id == me:
                self._check_own(known, info)
            elif known is None or (known, known.epoch) != (info, info.epoch):
                catalog.update_broker(info, self._broker.env.clock.monotonic())
                if known != info:
                    listeners = (f"{n}://{address_of(*at)}" for n, at in info.listeners.items())
                    logger.info(
                        "broker %d is registered with %s", info.node_id, ", ".join(listeners)
                    )
        if changes.registered is None:
            return
        for node_id in sorted(catalog.brokers.keys() - changes.registered):
            if node_id == me:
                self._stop_writing(
                    f"broker {me} was removed from the cluster: this process writes nothing any "
                    "more",
                    "Start it again to register it",
                )
            else:
                catalog.remove_broker(node_id)
                logger.info("broker %d was removed from the cluster at another broker", node_id)

    def _check_own(self, known: BrokerInfo | None, stored: BrokerInfo) -> None:
        """Stop writing if another process was started as this broker, with a copy of its folder."""
        if known is None or stored.epoch <= known.epoch:
            return
        why = (
            f"another process was started as broker {stored.node_id}, with addresses "
            f"{stored.listeners}: this one writes nothing any more"
        )
        self._stop_writing(
            why,
            "Stop this process; records that it acknowledged since the other was started are only "
            f"in its data folder {self._broker.folder}",
        )
        self._broker.on_superseded(why)

    def _stop_writing(self, why: str, advice: str) -> None:
        commit_log = self._broker.log.commit_log
        if commit_log.failed is None:
            commit_log.stop_writing(why)
            logger.critical("%s. %s", why, advice)

    def _apply_groups(self, changes: CatalogChanges, moves: Moves) -> None:
        catalog, me = self._broker.catalog, self._broker.node_id
        for group in changes.groups:
            known = catalog.group(group.id)
            # Equal leaders with another epoch: another broker led it between two polls.
            if known is None or (known.leader, known.epoch) == (group.leader, group.epoch):
                continue
            if known.leader == me:
                moves.lost += catalog.partitions_of_group(group.id)
            if group.leader == me:
                moves.gained += catalog.partitions_of_group(group.id)
        if changes.groups:
            catalog.set_groups(changes.groups)

    def _apply_topic(self, topic: ChangedTopic, moves: Moves) -> None:
        catalog = self._broker.catalog
        known = catalog.by_id.get(topic.id)
        if topic.deleted:
            if known is not None:
                self._drop(known)
                logger.info("topic %s was deleted at another broker", topic.name)
                self._emit(TopicDeleted(topic.name))
        elif known is None:
            info = _info(catalog, topic)
            catalog.add_topic(info)
            catalog.set_moves(_targets(topic.partitions))
            self._broker.log.add_topics([info])
            self._gain(info.partitions, moves)
            logger.info("topic %s was created at another broker", topic.name)
            self._emit(TopicCreated(info.name, len(info.partitions), dict(info.configs)))
        else:
            self._move(topic.partitions, moves)
            self._grow(topic, known, moves)
            catalog.set_moves(_targets(topic.partitions))
            self._configure(topic, known)

    def _move(self, places: Collection[PartitionPlace], moves: Moves) -> None:
        catalog, me = self._broker.catalog, self._broker.node_id
        for place in places:
            before = catalog.locate(place.number)
            if before is None:
                continue
            leader, epoch = _leading(catalog, place)
            if (leader, epoch) == (before.leader, before.leader_epoch):
                continue
            catalog.move_partition(place.number, place.group, place.base)
            if before.leader == me:
                moves.lost.append(place.number)
            if leader == me:
                moves.gained.append(place.number)

    def _grow(self, topic: ChangedTopic, known: TopicInfo, moves: Moves) -> None:
        catalog = self._broker.catalog
        have = len(known.partitions)
        if len(topic.partitions) > have:
            added = [_partition(catalog, place) for place in topic.partitions[have:]]
            catalog.add_partitions(topic.id, added)
            self._broker.log.add_topics([catalog.by_id[topic.id]])
            self._gain(added, moves)

    def _gain(self, added: Iterable[PartitionInfo], moves: Moves) -> None:
        moves.gained += [row.number for row in added if row.leader == self._broker.node_id]

    def _configure(self, topic: ChangedTopic, known: TopicInfo) -> None:
        catalog = self._broker.catalog
        changed = {**dict.fromkeys(known.configs), **topic.configs}
        changed = {key: value for key, value in changed.items() if known.configs.get(key) != value}
        for key, value in changed.items():
            catalog.apply_config(ConfigChange(TOPIC_RESOURCE, topic.name, key, value))
        if changed:
            self._broker.log.alter_topic(catalog.by_id[topic.id])

    async def _apply_settings(self, stored: Mapping[str, dict[str, str]]) -> None:
        """Replace the settings of all brokers; apply those of this broker that differ."""
        catalog, me = self._broker.catalog, self._broker.node_id
        before = catalog.broker_configs(me)
        for name in {*catalog.broker_overrides, *stored}:
            old, new = dict(catalog.broker_overrides.get(name, {})), stored.get(name, {})
            for key in {*old, *new}:
                if old.get(key) != new.get(key):
                    change = ConfigChange(BROKER_RESOURCE, name, key, new.get(key))
                    catalog.apply_config(change)
        after = catalog.broker_configs(me)
        changed = [key for key in {*before, *after} if before.get(key) != after.get(key)]
        if changed:
            await self._settings_changed(changed)

    async def _replace_settings(self, kind: int, stored: Mapping[str, dict[str, str]]) -> None:
        """Replace the settings of all groups, or of all client metrics subscriptions, which are
        read from the catalog with each request."""
        catalog = self._broker.catalog
        known = catalog.overrides_of(kind)
        for name in {*known, *stored}:
            old, new = dict(known.get(name, {})), stored.get(name, {})
            for key in {*old, *new}:
                if old.get(key) != new.get(key):
                    catalog.apply_config(ConfigChange(kind, name, key, new.get(key)))
            await self._broker.env.slices.give_way()


def _leading(catalog: Catalog, place: PartitionPlace) -> tuple[int, int]:
    """Return the leader and the leader epoch of a partition in its lead group."""
    group = catalog.group(place.group)
    assert group is not None, place
    return group.leader, group.epoch + place.base


def _targets(places: Iterable[PartitionPlace]) -> dict[int, int | None]:
    return {place.number: place.target for place in places}


def _partition(catalog: Catalog, place: PartitionPlace) -> PartitionInfo:
    return PartitionInfo(place.number, place.partition, *_leading(catalog, place))


def _info(catalog: Catalog, topic: ChangedTopic) -> TopicInfo:
    partitions = [_partition(catalog, place) for place in topic.partitions]
    return TopicInfo(
        topic.id, topic.name, topic.internal, partitions, topic.configs, topic.created_ms
    )


# Polls the metadata for changes of other brokers.
#
# The catalog's version in SQL is read every POLL_S, or every ALONE_POLL_S while no other broker is
# registered; in an SQLite file only if there were changes. When it has risen the changes are read.
# A poll that fails is repeated: requests are served with the catalog in memory meanwhile.


POLL_S = 0.2
"""So that a change is seen everywhere within 300 ms."""
ALONE_POLL_S = 1.0
"""When the only registered broker notices another one."""


class CatalogFollower:
    """Follows the catalog from `start` to `close`. `polled` is called after each poll."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        metadata: Metadata,
        lock: CatalogLock,
        polled: Callable[[], None] = lambda: None,
    ) -> None:
        self._polled = polled
        self._env = env
        self._catalog = catalog
        self._metadata = metadata
        self._lock = lock
        self._running: asyncio.Task[None] | None = None
        self._catching_up = SharedLoad(env, "catch up with the catalog", self._poll)
        self._failing = False
        self._commits: int | None = None

    def start(self) -> None:
        """Start to poll in the background."""
        self._running = self._env.spawn(self._run(), "follow the catalog")

    async def close(self) -> None:
        """Stop polling."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._catching_up.close()

    async def catch_up(self) -> None:
        """Apply what other brokers changed until now, before a client gets an error for something
        that the catalog does not have. Without another registered broker, or if the metadata cannot
        be read, the catalog stays as it is."""
        if len(self._catalog.brokers) > 1:
            await self._catching_up.again()

    async def _run(self) -> None:
        while True:
            await self._env.sleep(POLL_S if len(self._catalog.brokers) > 1 else ALONE_POLL_S)
            await self._poll()
            self._polled()

    async def _poll(self) -> None:
        commits = self._metadata.commits()
        if commits is not None and commits == self._commits:
            return  # none since the last poll that succeeded
        try:
            if await self._metadata.catalog_version() != self._catalog.stored_version:
                await self._lock.apply_changes()
        except MetadataError as failure:
            if not self._failing:
                logger.error(
                    "changes of topics and brokers by other brokers cannot be read, this broker "
                    "serves what it knows until that succeeds: %s", failure,
                )  # fmt: skip
            self._failing = True
        except Exception:
            if not self._failing:
                logger.exception("applying changes by other brokers failed, it is repeated")
            self._failing = True
        else:
            if self._failing:
                logger.info("changes by other brokers are read again")
            self._failing = False
            self._commits = commits
