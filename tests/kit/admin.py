"""A broker of fakes for the admin APIs that records what is asked of SQL, the log and groups.

The catalog, the topic service and the handlers are the real ones. Metadata and log keep just enough
to answer, append every call to `steps` in order, and fail on request. `call` sends a request
through the codec both ways, so that a test sees what a client would.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from kafkawire.broker.features import FeatureService
from kafkawire.broker.following.removal import BrokerRemoval
from kafkawire.broker.moving.reassignment import Reassignment
from kafkawire.broker.new_topics import check_replicas
from kafkawire.broker.partitions import PartitionTable
from kafkawire.broker.producer_ids import ProducerIds
from kafkawire.broker.rack_reads.selector import ReplicaSelector
from kafkawire.broker.topics import TopicService
from kafkawire.codec.compile import decode, encode
from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.handlers.context import RequestContext
from kafkawire.log.io.slices import Slices
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.partition.segment_extents import SegmentRows
from kafkawire.log.partition.topic_configs import TopicConfigs
from kafkawire.messages.registry import APIS, request_class, response_class
from kafkawire.metadata.catalog import BrokerInfo, Catalog, NewTopic, PartitionInfo, TopicInfo
from kafkawire.metadata.changes import CatalogChanges
from kafkawire.metric_counters import Counts
from kafkawire.offsets.catalog.port import StoredStats
from kafkawire.offsets.manager import PartitionOffsetManager
from kafkawire.security.acls.security import Security
from kafkawire.telemetry.service import TelemetryService
from tests.kit.env import InlineOffload

ME, OTHER = 1, 2


@dataclass
class FakePartition:
    number: int
    topic_id: bytes
    topic: str
    index: int
    config: TopicConfig
    leader_epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    log_start: int = 0
    next_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    times: list[tuple[int, int]] = field(default_factory=list)  # (timestamp, offset)
    resigned: bool = False
    commit_offset: int = 0
    segments: SegmentRows = field(default_factory=SegmentRows)
    cut_offset: int = 0

    @property
    def offsets(self) -> PartitionOffsetManager:
        return PartitionOffsetManager(self.next_offset)

    async def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        return next(((o, t) for t, o in self.times if t >= timestamp), None)

    async def max_timestamp(self) -> tuple[int, int]:
        if not self.times:
            return -1, -1
        timestamp, offset = max(self.times, key=lambda entry: (entry[0], -entry[1]))
        return offset, timestamp

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        known = [at for at, (number, _) in enumerate(self.epochs) if number <= epoch]
        if not known:
            return -1, -1
        at = known[-1]
        end = self.epochs[at + 1][1] if at + 1 < len(self.epochs) else self.next_offset
        return self.epochs[at][0], end

    async def delete_records(self, offset: int) -> int:
        self.log_start = max(self.log_start, offset)
        return self.log_start


class FakeMetadata:
    name = "fake metadata"

    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.fails: Exception | None = None
        self.next_number = 1
        self.next_producer_id = 0
        self.next_epoch = 0
        self.stored: dict[tuple[int, str, str], str | None] = {}
        self.sizes: dict[bytes, int] = {}

    def _step(self, text: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.steps.append(f"sql {text}")

    def _rows(self, first: int, leaders: list[int]) -> list[PartitionInfo]:
        rows = []
        for index, leader in enumerate(leaders, first):
            rows.append(PartitionInfo(self.next_number, index, leader, 0))
            self.next_number += 1
        return rows

    def commits(self) -> int | None:
        return None

    async def catalog_version(self) -> int:
        return 0

    async def changes_since(self, version: int) -> CatalogChanges:
        return CatalogChanges(version)

    async def create_topics(
        self, topics: list[NewTopic], seen: int | None = None
    ) -> list[TopicInfo]:
        self._step("create " + " ".join(topic.name for topic in topics))
        made = []
        for topic in topics:
            rows = self._rows(0, topic.leaders)
            topic_id = rows[0].number.to_bytes(16, "big")
            made.append(TopicInfo(topic_id, topic.name, topic.internal, rows, topic.configs))
            self.sizes[topic_id] = len(rows)
        return made

    async def delete_topics(self, ids: list[bytes], seen: int | None = None) -> None:
        self._step(f"delete {len(ids)}")

    async def create_partitions(
        self,
        topic_id: bytes,
        new_total: int,
        leaders: list[int] | None = None,
        seen: int | None = None,
    ) -> list[PartitionInfo]:
        self._step(f"partitions {new_total}")
        have = self.sizes[topic_id]
        self.sizes[topic_id] = new_total
        return self._rows(have, leaders or [ME] * (new_total - have))

    async def alter_configs(self, changes: list[Any], seen: int | None = None) -> None:
        self._step("configs " + " ".join(change.key for change in changes))
        for change in changes:
            self.stored[change.resource_type, change.name, change.key] = change.value

    async def finalize_features(self, levels: Mapping[str, int], seen: int | None = None) -> int:
        self._step("features " + " ".join(f"{name}={level}" for name, level in levels.items()))
        self.next_epoch += 1
        return self.next_epoch

    async def plan_moves(self, targets: Mapping[int, int | None], seen: int) -> None:
        self._step(f"moves {len(targets)}")

    async def remove_broker(self, node_id: int, seen: int, own_epoch: int | None = None) -> None:
        self._step(f"remove broker {node_id}")

    async def lease_producer_ids(self, count: int) -> int:
        self._step("lease")
        first, self.next_producer_id = self.next_producer_id, self.next_producer_id + count
        return first


class FakeCommitLog:
    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.fails: Exception | None = None
        self.partitions: dict[int, FakePartition] = {}
        self.refusal: Any = None

    def refuse(self, source: str, why: Any) -> None:
        self.refusal = why

    async def wait_until_committed(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.steps.append("commit")
        for partition in self.partitions.values():
            partition.high_watermark = partition.next_offset


class FakeLoader:
    """Holds every partition in memory as soon as its topic is created."""

    def __init__(self, catalog: Catalog, config: BrokerConfig) -> None:
        self.partitions: dict[int, FakePartition] = {}
        self.listeners: list[Any] = []
        self.configs = TopicConfigs(catalog, config)
        self.fresh_from = 1
        self.slices = Slices(lambda: 0.0)

    def register(self, listener: Any) -> None:
        self.listeners.append(listener)

    def get(self, number: int) -> FakePartition:
        return self.partitions[number]

    async def load(self, numbers: Iterable[int]) -> None:
        assert set(numbers) <= self.partitions.keys()


class FakeLog:
    def __init__(self, steps: list[str], catalog: Catalog, config: BrokerConfig) -> None:
        self.steps = steps
        self.object_logs: ObjectLogs | None = None
        self.commit_log = FakeCommitLog(steps)
        self.loader = FakeLoader(catalog, config)
        self.partitions = self.commit_log.partitions = self.loader.partitions
        self.remote: set[int] = set()  # ids of segments that have no file here
        self.segments = SimpleNamespace(
            store=SimpleNamespace(is_local=lambda number: number not in self.remote)
        )

    def add_topics(self, infos: Sequence[TopicInfo]) -> None:
        self.steps.append("log add " + " ".join(info.name for info in infos))
        for info in infos:
            config = self.loader.configs.config_of_topic(info.id)
            for row in info.partitions:
                if row.leader == ME and row.number not in self.partitions:
                    partition = FakePartition(row.number, info.id, info.name, row.index, config)
                    self.partitions[row.number] = partition
                    for listener in self.loader.listeners:
                        listener.partition_loaded(partition)

    def remove_topic(self, info: TopicInfo) -> None:
        self.steps.append("log remove")
        for row in info.partitions:
            self.partitions.pop(row.number, None)

    def alter_topic(self, info: TopicInfo) -> None:
        self.steps.append(f"log alter {info.name}")
        loaded = [p for row in info.partitions if (p := self.partitions.get(row.number))]
        self.loader.configs.topic_changed(info, loaded)  # type: ignore[arg-type]

    async def alter_defaults(self) -> None:
        for _ in self.loader.configs.broker_changed():
            pass


class FakeStorage:
    """Sizes of partitions that are not in memory."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.asked: list[list[int]] = []
        self.fails: Exception | None = None

    async def stats(self, numbers: list[int]) -> list[StoredStats]:
        if self.fails is not None:
            raise self.fails
        self.asked.append(numbers)
        return [StoredStats(number, size_bytes=self.sizes[number]) for number in numbers]


class FakeGroups:
    def __init__(self, steps: list[str]) -> None:
        self.steps = steps

    def topic_deleted(self, name: str, topic_id: bytes) -> None:
        self.steps.append(f"groups forget {name}")


class FakeClock:
    """A clock that advances by a fifth of a millisecond each time it is read, so that slices
    end."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 0.0002
        return self.now_s

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


class FakeFiles:
    def __init__(self) -> None:
        self.fails: OSError | None = None

    def free_bytes(self, path: str) -> tuple[int, int]:
        if self.fails is not None:
            raise self.fails
        return 1000, 400


class CountedSlices(Slices):
    pauses = 0

    async def pause(self) -> None:
        self.pauses += 1
        await super().pause()


class FakeEnv:
    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    def __init__(self) -> None:
        self.hooks = None
        self.clock = FakeClock()
        self.fs = FakeFiles()
        self.offload = InlineOffload()
        self.slices = CountedSlices(self.clock.monotonic)
        self.random = random.Random(1)

    @property
    def pauses(self) -> int:
        return self.slices.pauses

    @pauses.setter
    def pauses(self, value: int) -> None:
        self.slices.pauses = value


class FakeBroker:
    """Node 1 of two; node 2 is known but has no INTERNAL listener."""

    cluster_id = "0123456789abcdefghijkl"
    folder = "/data/brokers/1"

    def __init__(self, **static: str) -> None:
        self.static = {name.replace("_", "."): value for name, value in static.items()}
        self.steps: list[str] = []
        self.node_id = ME
        self.catalog = Catalog(self.cluster_id)
        self.config = BrokerConfig(self.static, self.catalog.features, self.catalog.group_overrides)
        inside, outside = ("10.0.0.1", 9092), ("kafka.example", 19092)
        self.listeners = {"INTERNAL": inside, "EXTERNAL": outside}
        self.catalog.add_broker(BrokerInfo(ME, dict(self.listeners), "rack-a", folder="a"))
        other = BrokerInfo(OTHER, {"EXTERNAL": ("other.example", 29092)}, None, folder="a")
        self.catalog.add_broker(other)
        self.replica_selector = ReplicaSelector(
            self.catalog, ME, self.listeners, enabled=bool(self.config.replica_selector_class)
        )
        self.counts = Counts()
        self.env = FakeEnv()
        self.metadata = FakeMetadata(self.steps)
        self.log = FakeLog(self.steps, self.catalog, self.config)
        self.groups = FakeGroups(self.steps)
        self.tiering: Any = None
        self.storage = FakeStorage()
        self.table = PartitionTable(self.catalog, self.log.loader, ME)  # type: ignore[arg-type]
        self.producer_ids = ProducerIds(self.metadata)  # type: ignore[arg-type]
        self.security = Security()
        self.topics = TopicService(self)  # type: ignore[arg-type]
        itself: Any = self
        self.moves = Reassignment(
            itself, self.topics.lock, self.topics.changes, check_replicas, lambda: None
        )
        metadata: Any = self.metadata
        self.removal = BrokerRemoval(itself, self.topics.lock, self.topics.changes)
        self.features = FeatureService(self.catalog, metadata, ME, self.topics.lock)
        env: Any = self.env
        self.telemetry = TelemetryService(env, self.catalog, self.config.telemetry_max_bytes)

    async def load_users(self) -> Any:
        return SimpleNamespace(users={})

    def partition(self, topic: str, index: int = 0) -> Any:
        return self.table.find_by_name(topic, index)

    def topic(self, name: str) -> TopicInfo:
        return self.catalog.by_name[name]


def context(broker: FakeBroker, version: int, listener: str = "EXTERNAL") -> RequestContext:
    return RequestContext(broker, version, "client", "127.0.0.1", listener, 1)  # type: ignore[arg-type]


_KEYS: dict[type, int] = {}


def _key_of(request: Any) -> int:
    if not _KEYS:
        _KEYS.update((request_class(key), key) for key in APIS)
    return _KEYS[type(request)]


async def call(
    broker: FakeBroker,
    request: Any,
    version: int,
    listener: str = "EXTERNAL",
    rights: Any = None,
) -> Any:
    """The response a client receives for `request` in `version`."""
    key = _key_of(request)
    name = APIS[key].module.rpartition(".")[2]
    handler = getattr(import_module(f"kafkawire.handlers.{name}"), name)
    arrived = decode(type(request), version, encode(request, version))
    ctx = context(broker, version, listener)
    ctx.rights = rights
    answer = await handler(ctx, arrived)
    raw = b"".join(answer) if isinstance(answer, list) else encode(answer, version)
    return decode(response_class(key), version, raw)


def by_name(rows: Any) -> dict[str, Any]:
    """Rows of a response by their name."""
    found: dict[str, Any] = defaultdict(lambda: None)
    for row in rows:
        assert row.name not in found, f"{row.name} twice"
        found[row.name] = row
    return found
