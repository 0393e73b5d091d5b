"""Creates, changes and deletes topics; the only writer of the catalog and the partition table.

Every change runs under one lock: check -> SQL transaction -> catalog -> log and partition table ->
the commit that covers the log's catalog frames -> response. So a response is never sent before its
change is durable, and requests never see each other's partial changes. new_topics and overrides
validate new topics; config_service changes the settings of existing ones.

Called by the admin handlers, by Metadata (auto-create) and by the services of groups and
transactions for their internal topics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkawire.broker.answer_cache import AnswerCache
from kafkawire.broker.change_log import BROKER, ChangeLog
from kafkawire.broker.config_service import FAILURES, ConfigService, as_kafka_error
from kafkawire.broker.following.applier import (
    CatalogApplier,
    CatalogFollower,
    Moves,
    Services,
    apply_moves,
)
from kafkawire.broker.following.lock import CatalogLock
from kafkawire.broker.new_topics import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SCHEDULE_STATE_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    check_name,
    check_partition_count,
    check_replicas,
    check_source,
    check_total,
    leaders_of,
    spread,
)
from kafkawire.broker.objects.opening import check_storage, refuse_unusable
from kafkawire.broker.overrides import new_topic_overrides, prepare_filter
from kafkawire.broker.read_only import check_writable
from kafkawire.codec.configs.durability_rules import DURABILITY, REPLICATED
from kafkawire.codec.configs.settings import TOPIC_CONFIGS
from kafkawire.codec.configs.view_rules import VIEW_FILTER, VIEW_SOURCE
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io import slices
from kafkawire.metadata.catalog import NewTopic, alike_key
from kafkawire.security.audit import prefix_sender

if TYPE_CHECKING:
    from kafkawire.broker.parts import BrokerParts
    from kafkawire.log.partition.partition import Partition
    from kafkawire.messages.create_partitions import CreatePartitionsTopic
    from kafkawire.messages.create_topics import CreatableTopic
    from kafkawire.metadata.catalog import TopicInfo

# Topics created or deleted per event-loop iteration: about 10 us each.
TOPICS_PER_SLICE = 50


@dataclass(slots=True)
class Created:
    """The result for one topic of a CreateTopics request (`topic` None: only validated)."""

    partitions: int
    configs: dict[str, str]
    topic: TopicInfo | None = None


Charge = Callable[[int], None]
"""Counts partitions that are created or deleted for a quota. Raises KafkaError if it is
exceeded."""


class TopicService:
    """Creates, changes and deletes topics. `lock` serializes changes of the catalog, `follower`
    applies those of other brokers; `answers`: the cache of Metadata responses;
    `live_brokers` returns the node ids that may lead new partitions, None: only this one is known
    to be alive; `decided` returns when these are known. `polled` is called after each poll for
    changes of other brokers."""

    def __init__(
        self,
        broker: BrokerParts,
        live_brokers: Callable[[], Sequence[int]] | None = None,
        polled: Callable[[], None] = lambda: None,
        decided: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._broker = broker
        self._decided = decided
        self._live_brokers = live_brokers or (lambda: [broker.node_id])
        applier = CatalogApplier(broker, self._drop, self._settings_changed, self._apply_moves)
        self.lock = CatalogLock(broker.catalog, broker.metadata, applier.apply)
        self.follower = CatalogFollower(
            broker.env, broker.catalog, broker.metadata, self.lock, polled
        )
        env = broker.env
        self.changes = ChangeLog(env.clock.monotonic, broker.security.audit, env.hooks)
        self.configs = ConfigService(broker, self.lock, self.changes)
        self.answers = AnswerCache(broker.catalog, broker.config)

    async def create(
        self,
        topics: Sequence[CreatableTopic],
        validate_only: bool = False,
        sender: str = BROKER,
        charge: Charge | None = None,
    ) -> list[Created | KafkaError]:
        """Create topics, all valid ones in one transaction; return a result for each, in order.
        `sender`: who asked, for the log; `charge` counts the partitions of each valid topic."""
        charges = _once(charge)
        await check_storage(self._broker, topics)
        if self._decided is not None:
            await self._decided()
        try:
            return await self.lock.change(
                lambda seen: self._create(topics, validate_only, sender, next(charges), seen)
            )
        except OSError as error:  # of SQL: the changes of other brokers cannot be read
            return [as_kafka_error(error) for _ in topics]

    async def _create(
        self,
        topics: Sequence[CreatableTopic],
        validate_only: bool,
        sender: str,
        charge: Charge | None,
        seen: int,
    ) -> list[Created | KafkaError]:
        try:
            self._check_writable(sender)
        except KafkaError as error:
            return [error for _ in topics]
        outcomes = await self._plan(topics, charge)
        wanted: list[tuple[int, NewTopic, Created]] = []
        results: list[Created | KafkaError] = []
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, KafkaError):
                results.append(outcome)
            else:
                count = len(outcome.leaders)
                if not count:  # a view
                    count = self._broker.catalog.topic_size(outcome.configs[VIEW_SOURCE]) or 0
                result = Created(count, outcome.configs)
                results.append(result)
                wanted.append((index, outcome, result))
            await self._broker.env.slices.give_way()
        if validate_only or not wanted:
            return results
        try:
            made = await self._make([plan for _, plan, _ in wanted], sender, seen)
        except FAILURES as error:
            for index, _, _ in wanted:
                results[index] = as_kafka_error(error)
            return results
        for (_, _, result), topic in zip(wanted, made, strict=True):
            result.topic = topic
        return results

    async def auto_create(
        self, names: Iterable[str], sender: str, charge: Charge | None = None
    ) -> dict[str, ErrorCode]:
        """Create requested topics with default settings; return the error code of each that failed.
        One that exists by now is no error, because clients often request it concurrently."""
        give_way = self._broker.env.slices.give_way
        new = (self._new(name) for name in names if self._may_create(name))
        wanted = await slices.collect(new, give_way)
        refused: dict[str, ErrorCode] = {}
        existing = ErrorCode.TOPIC_ALREADY_EXISTS
        outcomes = await self.create(
            wanted, sender=prefix_sender("Metadata of ", sender), charge=charge
        )
        for topic, outcome in zip(wanted, outcomes, strict=True):
            await give_way()
            if isinstance(outcome, KafkaError) and outcome.code is not existing:
                refused[topic.name] = outcome.code
        await slices.empty_slowly(outcomes, give_way)
        await slices.empty_slowly(wanted, give_way)
        return refused

    def _may_create(self, name: str) -> bool:
        """Return whether a metadata request may create a topic; not one of share groups that are
        not served."""
        return name != SHARE_GROUP_STATE_TOPIC or self._broker.config.share_version > 0

    async def offsets_partitions(self) -> list[Partition | None]:
        """Return the partitions of `__consumer_offsets`, creating the topic if needed; None: led by
        another broker. Raises KafkaError if it cannot be created."""
        return await self._internal_partitions(GROUP_METADATA_TOPIC)

    async def transaction_state_partitions(self) -> list[Partition | None]:
        """Return the partitions of `__transaction_state`, like `offsets_partitions`."""
        return await self._internal_partitions(TRANSACTION_STATE_TOPIC)

    async def schedule_state_partitions(self) -> list[Partition | None]:
        """Return the partitions of `__schedule_state`, like `offsets_partitions`."""
        return await self._internal_partitions(SCHEDULE_STATE_TOPIC)

    async def share_state_partitions(self) -> list[Partition | None]:
        """Return the partitions of `__share_group_state`, like `offsets_partitions`."""
        return await self._internal_partitions(SHARE_GROUP_STATE_TOPIC)

    async def _internal_partitions(self, name: str) -> list[Partition | None]:
        broker = self._broker
        if name not in broker.catalog.by_name:
            (outcome,) = await self.create([self._new(name)])
            exists = ErrorCode.TOPIC_ALREADY_EXISTS  # created by a concurrent call
            if isinstance(outcome, KafkaError) and outcome.code is not exists:
                raise outcome
        rows = broker.catalog.by_name[name].partitions
        here = [row for row in rows if row.leader == broker.node_id]
        await broker.table.load((name, row.index) for row in here)
        found: list[Partition | None] = [None] * len(rows)
        for row in here:
            try:
                found[row.index] = await broker.table.load_partition(name, row.index)
            except KafkaError as error:
                if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:  # it moved meanwhile
                    raise
        return found

    async def delete(
        self, ids: Sequence[bytes], sender: str = BROKER, charge: Charge | None = None
    ) -> dict[bytes, KafkaError]:
        """Delete topics by id, in one transaction; return the errors of those that were not
        deleted. `charge` as of `create`. Free the result with `slices.empty_slowly`."""
        charges = _once(charge)
        try:
            return await self.lock.change(
                lambda seen: self._delete(ids, sender, next(charges), seen)
            )
        except OSError as error:
            return dict.fromkeys(ids, as_kafka_error(error))

    async def _delete(
        self, ids: Sequence[bytes], sender: str, charge: Charge | None, seen: int
    ) -> dict[bytes, KafkaError]:
        give_way = self._broker.env.slices.give_way
        refused: dict[bytes, KafkaError] = {}
        gone: list[TopicInfo] = []
        try:
            self._check_writable(sender)
        except KafkaError as error:
            return dict.fromkeys(ids, error)
        for topic_id in ids:
            topic = self._broker.catalog.by_id.get(topic_id)
            if topic is None:
                refused[topic_id] = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            elif topic.internal:
                refused[topic_id] = KafkaError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    f"Topic {topic.name} is internal to the broker and cannot be deleted.",
                )
            else:
                try:
                    if charge is not None:
                        charge(len(topic.partitions))
                    gone.append(topic)
                except KafkaError as error:
                    refused[topic_id] = error
            await give_way()
        if gone:
            try:
                await self._remove(gone, sender, seen)
            except FAILURES as error:
                failure = as_kafka_error(error)
                for topic in gone:
                    refused[topic.id] = failure
                    await give_way()
        return refused

    async def create_partitions(
        self,
        wish: CreatePartitionsTopic,
        validate_only: bool,
        sender: str = BROKER,
        charge: Charge | None = None,
    ) -> None:
        """Add partitions to a topic; `wish.count` is the new total, `charge` as of `create`. Raises
        KafkaError."""
        charges = _once(charge)
        await self.lock.change(
            lambda seen: self._create_partitions(wish, validate_only, sender, next(charges), seen)
        )

    async def _create_partitions(
        self,
        wish: CreatePartitionsTopic,
        validate_only: bool,
        sender: str,
        charge: Charge | None,
        seen: int,
    ) -> None:
        self._check_writable(sender)
        broker = self._broker
        topic = broker.catalog.by_name.get(wish.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        leaders = self._new_leaders(topic, wish)
        if charge is not None:
            charge(len(leaders))
        if validate_only:
            return
        before = len(topic.partitions)
        added = await broker.metadata.create_partitions(topic.id, wish.count, leaders, seen)
        broker.catalog.add_partitions(topic.id, added)
        broker.log.add_topics([broker.catalog.by_id[topic.id]])
        await broker.log.commit_log.wait_until_committed()
        self.changes.report_partitions_added(topic.name, before, wish.count, sender)

    def _check_writable(self, sender: str) -> None:
        """Raise KafkaError for clients if they may only read. Called under the lock: the settings
        of the cluster are the newest."""
        if sender != BROKER:
            check_writable(self._broker.config)

    async def _plan(
        self, topics: Sequence[CreatableTopic], charge: Charge | None
    ) -> list[NewTopic | KafkaError]:
        """Validate the topics of one request, against existing ones and each other. The event loop
        runs in between, but the lock excludes other changes of topics."""
        broker = self._broker
        taken: dict[str, str] = {}
        plans: list[NewTopic | KafkaError] = []
        new = 0
        for topic in topics:
            await broker.env.slices.give_way()
            for entry in topic.configs:
                if entry.name == VIEW_FILTER and entry.value:
                    await broker.env.offload.submit("files", prepare_filter, entry.value)
            try:
                check_name(topic.name, broker.catalog, taken)
                plan = self._plan_one(topic, new)
                check_partition_count(new + len(plan.leaders))
                check_total(broker.catalog.partitions, new + len(plan.leaders))
                if charge is not None:
                    charge(len(plan.leaders))
            except KafkaError as error:
                plans.append(error)
                continue
            new += len(plan.leaders)
            taken[alike_key(topic.name)] = topic.name
            plans.append(plan)
        await slices.empty_slowly(taken, broker.env.slices.give_way)
        return plans

    def _first_leader(self, planned: int = 0) -> int:
        """Return where among the live brokers the next leader is, after `planned` partitions.

        That is the number of partitions: leaders follow one another across topics, and a start
        does not begin with the first broker again, as a counter in memory would."""
        return self._broker.catalog.partitions + planned

    def _plan_one(self, topic: CreatableTopic, planned: int) -> NewTopic:
        """Validate a topic; `planned`: partitions of the request's topics before it."""
        broker, config = self._broker, self._broker.config
        source = next((each.value for each in topic.configs if each.name == VIEW_SOURCE), None)
        leaders: list[int] = []
        if not source:
            leaders = leaders_of(
                topic,
                broker.catalog.brokers,
                self._live_brokers(),
                self._first_leader(planned),
                config.num_partitions,
                config.default_replication_factor,
            )
        overrides = new_topic_overrides(
            [(entry.name, entry.value) for entry in topic.configs], config.texts
        )
        if source:
            check_source(topic, source, broker.catalog)
        refuse_unusable(broker, overrides)
        return NewTopic(
            name=topic.name,
            leaders=leaders,
            configs={**self._base_configs(topic.name), **overrides},
            internal=topic.name in INTERNAL_TOPICS,
        )

    def _new(self, name: str) -> CreatableTopic:
        """Return the default shape of an auto-created or internal topic."""
        from kafkawire.messages.create_topics import CreatableTopic

        config = self._broker.config
        partitions, replicas = -1, -1
        if name == GROUP_METADATA_TOPIC:
            partitions = config.offsets_topic_num_partitions
            replicas = config.offsets_topic_replication_factor
        elif name == TRANSACTION_STATE_TOPIC:
            partitions = config.transaction_state_log_num_partitions
            replicas = config.transaction_state_log_replication_factor
        elif name == SHARE_GROUP_STATE_TOPIC:
            partitions = config.share_coordinator_state_topic_num_partitions
            replicas = config.share_coordinator_state_topic_replication_factor
        elif name == SCHEDULE_STATE_TOPIC:
            partitions = 1  # a state for each schedule partition: few
        return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)

    def _base_configs(self, name: str) -> dict[str, str]:
        """Return settings that an internal topic gets in addition to the requested ones
        (GroupCoordinatorConfig, TransactionLogConfig, ShareCoordinatorService)."""
        config = self._broker.config
        if name == GROUP_METADATA_TOPIC:
            return _make_compacted_configs("producer", config.offsets_topic_segment_bytes)
        if name == TRANSACTION_STATE_TOPIC:
            return _make_compacted_configs(
                "uncompressed", config.transaction_state_log_segment_bytes
            )
        if name == SCHEDULE_STATE_TOPIC:
            return _make_compacted_configs(
                "uncompressed", config.transaction_state_log_segment_bytes
            )
        if name == SHARE_GROUP_STATE_TOPIC:
            segment_bytes = _allow_segment(config.share_coordinator_state_topic_segment_bytes)
            # Its coordinators delete what they do not need, compaction and retention nothing.
            return {
                "cleanup.policy": "delete",
                "compression.type": "uncompressed",
                "segment.bytes": segment_bytes,
                "retention.ms": "-1",
                "retention.bytes": "-1",
            }
        return {}

    async def _make(self, plans: list[NewTopic], sender: str, seen: int) -> list[TopicInfo]:
        broker = self._broker
        made = await broker.metadata.create_topics(plans, seen)
        for start in range(0, len(made), TOPICS_PER_SLICE):
            part = made[start : start + TOPICS_PER_SLICE]
            for topic in part:
                broker.catalog.add_topic(topic)
                self.changes.report_topic_created(topic, sender)
            broker.log.add_topics(part)
            # Other tasks may run between two topics. If the write of a frame fails meanwhile,
            # CatalogFrames writes it again, although the commit below may succeed.
            await broker.env.slices.pause()
        await broker.log.commit_log.wait_until_committed()
        return made

    async def _remove(self, topics: list[TopicInfo], sender: str, seen: int) -> None:
        broker = self._broker
        await broker.metadata.delete_topics([topic.id for topic in topics], seen)
        for topic in topics:
            self._drop(topic)
            self.changes.report_topic_deleted(topic, sender)
            await broker.env.slices.give_way()
        await broker.log.commit_log.wait_until_committed()

    def _drop(self, topic: TopicInfo) -> None:
        """Remove a deleted topic from the catalog, the coordinators and the log."""
        broker = self._broker
        broker.catalog.remove_topic(topic.id)
        # The table first: new requests must not use what the log releases.
        broker.table.remove(topic)
        broker.groups.topic_deleted(topic.name, topic.id)
        if SHARE_GROUP_STATE_TOPIC in broker.catalog.by_name:
            broker.share_states.topic_deleted(topic.id)
        broker.log.remove_topic(topic)

    async def _settings_changed(self, names: Iterable[str]) -> None:
        await self.configs.broker_changed(names)

    async def _apply_moves(self, moves: Moves) -> None:
        broker = self._broker
        await apply_moves(broker.catalog, broker.log, services_of(broker), broker.schedules, moves)

    def _new_leaders(self, topic: TopicInfo, wish: CreatePartitionsTopic) -> list[int]:
        have = len(topic.partitions)
        if topic.configs.get(VIEW_SOURCE):
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {topic.name} is a view, and has the partitions of its source "
                f"{topic.configs[VIEW_SOURCE]}.",
            )
        if wish.count <= have:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic already has {have} partition(s)."
                if wish.count == have
                else f"The topic {topic.name} currently has {have} partition(s); {wish.count} "
                "would not be an increase.",
            )
        if topic.internal:
            # A group's partition is its hash modulo this number: a change would lose other groups.
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The number of partitions of the internal topic {topic.name} cannot be changed.",
            )
        more = wish.count - have
        check_partition_count(more)
        check_total(self._broker.catalog.partitions, more)
        if wish.assignments is None:
            return spread(self._live_brokers(), self._first_leader(), more)
        if len(wish.assignments) != more:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {more} additional partition(s), but only "
                f"{len(wish.assignments)} assignment(s) were specified.",
            )
        factor = None if topic.configs.get(DURABILITY) == REPLICATED else 1
        for assignment in wish.assignments:
            check_replicas(assignment.broker_ids, self._broker.catalog.brokers, factor)
        return [assignment.broker_ids[0] for assignment in wish.assignments]


def services_of(broker: BrokerParts) -> Services:
    """Return what has the coordinators of each internal topic."""
    return {
        GROUP_METADATA_TOPIC: broker.load_groups,
        TRANSACTION_STATE_TOPIC: broker.load_transactions,
        SHARE_GROUP_STATE_TOPIC: broker.load_share_states,
    }


def _once(charge: Charge | None) -> Iterator[Charge | None]:
    """Yield `charge` for the first attempt of a change and None for others: a quota counts a
    request once."""
    yield charge
    while True:
        yield None


def _make_compacted_configs(compression: str, segment_bytes: int) -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": compression,
        "segment.bytes": _allow_segment(segment_bytes),
    }


def _allow_segment(segment_bytes: int) -> str:
    """Return a segment size that topics may have."""
    least = TOPIC_CONFIGS["segment.bytes"].at_least
    assert least is not None
    return str(max(int(least), segment_bytes))
