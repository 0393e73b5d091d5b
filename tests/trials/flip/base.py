"""The undamaged folder of a flip trial: a data folder, a tier, and the ledger of their records.

A broker is made to write every kind of file: journals with index files, segments, a cleaned one,
objects whose local file is deleted, the bucket's manifest, checkpoints, a coordinator's snapshot,
the local manifest. Then it is stopped, or killed. Each case of the trial works on a copy.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from kafkawire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kafkawire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.kit.client import Client
from tests.trials.context import Context
from tests.trials.kill.admin import COMPACT, TIERED
from tests.trials.kill.members import find_coordinator
from tests.trials.kill.trial import SETTINGS, TIER_SETTINGS
from tests.trials.kill.world import Topic
from tests.trials.ledger import Commits
from tests.trials.link import EARLIEST_LOCAL, Link, ends, link, topics_of
from tests.trials.process import Victim
from tests.trials.records import Outgoing, build

GROUP = "flipped"
METADATA_BYTES = 4000
"""Bytes of metadata in each commit: the coordinator's log is soon long enough for a snapshot."""
WITHIN_S = 60.0
TOPICS: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("plain", 2, {"remote.storage.enable": "false"}),
    ("compact", 1, {**COMPACT, "remote.storage.enable": "false"}),
    ("cold", 2, TIERED),
)
"""plain, compact: journals and segments; cold: objects alone. The internal topic of committed
offsets has objects next to its segments."""


QUIET = {"cut.interval.ms": "3600000", "journal.roll.ms": "3600000"}
"""Settings of the broker's last start: its records stay in journals, some of which are rolled by
size."""


@dataclass(slots=True)
class Base:
    """The written folder, and the guarantees given for it. `stopped`: the broker was stopped
    cleanly."""

    folder: Path
    settings: dict[str, str]
    stopped: bool
    topics: list[Topic] = field(default_factory=list)
    commits: Commits = field(default_factory=lambda: Commits(GROUP))
    tier: bool = True
    next_uid: int = 1
    batches: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)
    """First offsets of batches by topic id and partition, in order."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    async def more(self, client: Link, context: Context) -> None:
        """Write more, in each life of the broker; other trials do."""

    def arguments(self, folder: Path) -> list[str]:
        """Arguments of a broker on a copy in `folder`."""
        return ["--tier", str(folder / "tier")] if self.tier else []

    def starts(self, topic: Topic, index: int) -> list[int]:
        """First offsets of batches; none for a compacted topic, since the cleaner moves them."""
        return [] if topic.compacted else self.batches[topic.id, index]


async def make(context: Context, of: type[Base] = Base) -> Base:
    """Write a base folder with the clients of `of`; raises AssertionError if the broker does not
    write every kind of file."""
    settings = {**SETTINGS, **TIER_SETTINGS}
    settings["offset.storage"] = context.rng.choice(("sql", "sql", "rocksdb"))
    settings["log.cleaner.backoff.ms"] = "300"
    base = of(context.folder / "work", settings, stopped=context.rng.random() < 0.6)
    base.folder.mkdir(parents=True, exist_ok=True)
    victim = Victim(base.data, settings, base.arguments(base.folder))
    chosen = f"offset.storage={settings['offset.storage']}"
    context.say(f"a folder with {chosen}, {'stopped' if base.stopped else 'killed'} at the end")
    try:
        await victim.start()
        async with link(victim.port) as client:
            await _Writer(base, client, context).old()
            await base.more(client, context)
        await victim.stop()
        victim.process.settings |= QUIET
        await victim.start()
        async with link(victim.port) as client:
            await _Writer(base, client, context).new()
            await base.more(client, context)
        if base.stopped:
            await victim.stop()
        else:
            await victim.kill()
    finally:
        victim.process.kill()
        context.outputs["base.log"] = victim.output
    return base


class _Writer:
    """Fills the folder."""

    def __init__(self, base: Base, client: Client, context: Context) -> None:
        self.base, self.client, self.rng = base, client, context.rng

    async def old(self) -> None:
        """Write data that becomes segments and objects."""
        await self._create()
        for _ in range(3):
            await self._fill(12)
            await self._commit()
        end = time.monotonic() + WITHIN_S
        while (found := await self._local_starts()) != {"plain": 0, "compact": 0}:
            assert time.monotonic() < end, (
                f"after {WITHIN_S:g} s not only `cold` is in objects alone: {found}"
            )
            await asyncio.sleep(0.2)
        await self._delete_records()

    async def new(self) -> None:
        """Write data that stays in several journals, so that rolled ones have index files."""
        await self._fill(3)
        await self._commit()
        while len(list(self.base.data.glob("brokers/*/journals/*.index"))) < 2:
            await self._fill(20)
        await self._fill(1)
        await self._commit()

    async def _local_starts(self) -> dict[str, int]:
        """The local log start of each topic that is on local disk."""
        found = {}
        for topic in self.base.topics:
            for index, ledger in enumerate(topic.ledgers):
                code, offset = await ends(self.client, topic.name, index, EARLIEST_LOCAL, 8)
                assert not code, f"ListOffsets of the local log start was refused with {code}"
                if offset <= max(ledger.acked):
                    found[topic.name] = offset
        return found

    async def _create(self) -> None:
        rows = [
            CreatableTopic(n, c, 1, configs=[CreatableTopicConfig(*pair) for pair in s.items()])
            for n, c, s in TOPICS
        ]
        answer = await self.client.call(CreateTopicsRequest(rows, 30_000), 7)
        assert not any(row.error_code for row in answer.topics), answer
        there = await topics_of(self.client)
        for name, count, settings in TOPICS:
            compacted = "cleanup.policy" in settings
            tiered = settings.get("remote.storage.enable") != "false"
            self.base.topics.append(Topic(name, there[name][0], count, compacted, tiered))

    async def _fill(self, batches: int) -> None:
        """Append several batches of several records to each partition."""
        for topic in self.base.topics:
            for index, ledger in enumerate(topic.ledgers):
                for _ in range(batches):
                    rows = [self._row() for _ in range(self.rng.choice((1, 3, 10)))]
                    ledger.send(rows)
                    offset = await produce(self.client, topic, index, rows)
                    assert ledger.ack(offset, rows) == []
                    self.base.batches.setdefault((topic.id, index), []).append(offset)

    def _row(self) -> Outgoing:
        uid, self.base.next_uid = self.base.next_uid, self.base.next_uid + 1
        return Outgoing(uid, b"k%d" % self.rng.randrange(12), self.rng.randbytes(300))

    async def _commit(self) -> None:
        """Commit the end of every partition, with long metadata."""
        await find_coordinator(self.client, GROUP)
        metadata = "m" * METADATA_BYTES
        for _ in range(4):
            for topic in self.base.topics:
                rows = []
                for index, ledger in enumerate(topic.ledgers):
                    offset = max(ledger.acked)
                    self.base.commits.send((topic.id, index), offset)
                    rows.append(
                        OffsetCommitRequestPartition(index, offset, committed_metadata=metadata)
                    )
                asked = OffsetCommitRequestTopic(topic_id=topic.id, partitions=rows)
                request = OffsetCommitRequest(GROUP, -1, "", topics=[asked])
                answer = (await self.client.call(request, 10)).topics[0]
                for row, sent in zip(answer.partitions, rows, strict=True):
                    assert not row.error_code, answer
                    key = (topic.id, row.partition_index)
                    self.base.commits.ack(key, sent.committed_offset)

    async def _delete_records(self) -> None:
        """Move the log start of one partition above zero."""
        topic = self.base.topics[0]
        ledger = topic.ledgers[0]
        ledger.delete_asked = 5
        row = DeleteRecordsTopic(topic.name, [DeleteRecordsPartition(0, 5)])
        answer = await self.client.call(DeleteRecordsRequest([row], 30_000), 2)
        assert not answer.topics[0].partitions[0].error_code, answer
        ledger.delete_acked = 5


async def produce(client: Client, topic: Topic, index: int, rows: list[Outgoing]) -> int:
    """Produce one batch with acks=all; return its base offset, or -1 - error code if it is
    refused."""
    data = build(rows, timestamp_ms=int(time.time() * 1000))
    part = [PartitionProduceData(index, data)]
    asked = TopicProduceData(topic_id=topic.id, partition_data=part)
    answer = await client.call(ProduceRequest(None, -1, 30_000, [asked]), 13)
    row = answer.responses[0].partition_responses[0]
    return -1 - int(row.error_code) if row.error_code else int(row.base_offset)
