"""The administrator of a kill trial: creates and deletes topics, and deletes records."""

from __future__ import annotations

import asyncio

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
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.trials.kill.world import Topic, Wanted, World
from tests.trials.link import Link

MIN_TOPICS, MAX_TOPICS = 3, 6
TIMED_OUT, OUT_OF_RANGE = 7, 1
COMPACT = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
}
TIERED = {
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "local.retention.ms": "1000",
}


class Admin:
    """The administrator. `tier`: whether the broker has a remote tier."""

    def __init__(self, world: World, tier: bool) -> None:
        self.world, self.tier = world, tier

    async def run(self) -> None:
        """Act whenever the broker serves, until the trial is over."""
        await self.world.keep("admin", self._life)

    async def _life(self, client: Link) -> None:
        while not self.world.over:
            live = self.world.live()
            draw = self.world.rng.random()
            if len(live) < MIN_TOPICS or (draw < 0.2 and len(live) < MAX_TOPICS):
                await self._create(client)
            elif draw < 0.35 and len(live) > MIN_TOPICS:
                await self._delete(client, self.world.rng.choice(live))
            else:
                await self._delete_records(client, self.world.rng.choice(live))
            await asyncio.sleep(0.05 + self.world.rng.random() * 0.6)

    def _draw(self) -> Wanted | None:
        """A topic to create under a name that is free."""
        rng = self.world.rng
        used = {topic.name for topic in self.world.topics.values() if topic.state != "gone"}
        free = [name for name in self.world.names if name not in used]
        if not free:
            return None
        tiered = self.tier and rng.random() < 0.7
        return Wanted(rng.choice(free), rng.choice((1, 2, 3)), rng.random() < 0.4, tiered)

    async def _create(self, client: Link) -> None:
        wanted = self._draw()
        if wanted is None:
            return
        settings = {**(COMPACT if wanted.compacted else {}), **(TIERED if wanted.tiered else {})}
        if self.tier and not wanted.tiered:
            settings["remote.storage.enable"] = "false"
        configs = [CreatableTopicConfig(name, value) for name, value in settings.items()]
        row = CreatableTopic(wanted.name, wanted.count, 1, configs=configs)
        self.world.wanted[wanted.name] = wanted
        answer = (await client.call(CreateTopicsRequest([row], 30_000), 7)).topics[0]
        del self.world.wanted[wanted.name]
        if answer.error_code:
            why = f"{answer.error_code} ({answer.error_message})"
            self.world.broken(f"creating {wanted.name} was refused with {why}")
            return
        made = Topic(wanted.name, answer.topic_id, wanted.count, wanted.compacted, wanted.tiered)
        self.world.topics[made.id] = made
        self.world.context.tried("topics created")

    async def _delete(self, client: Link, topic: Topic) -> None:
        topic.state = "deleting"
        row = DeleteTopicState(name=None, topic_id=topic.id)
        answer = (await client.call(DeleteTopicsRequest([row], [], 30_000), 6)).responses[0]
        if answer.error_code:
            topic.state = "live"
            self.world.broken(f"deleting {topic.name} was refused with {answer.error_code}")
            return
        topic.state = "gone"
        self.world.context.tried("topics deleted")

    async def _delete_records(self, client: Link, topic: Topic) -> None:
        """Delete records up to a random acknowledged offset."""
        if topic.compacted:
            return  # the cleaner takes enough there; Kafka refuses it without `delete`
        index = self.world.rng.randrange(topic.count)
        ledger = topic.ledgers[index]
        newest = max(ledger.acked, default=0)
        if newest < 50:
            return
        offset = self.world.rng.randint(ledger.delete_acked, (ledger.delete_acked + newest) // 2)
        ledger.delete_asked = max(ledger.delete_asked, offset)
        row = DeleteRecordsTopic(topic.name, [DeleteRecordsPartition(index, offset)])
        answer = await client.call(DeleteRecordsRequest([row], 30_000), 2)
        result = answer.topics[0].partitions[0]
        if not result.error_code:
            ledger.delete_acked = max(ledger.delete_acked, result.low_watermark)
            self.world.context.tried("records deleted up to an offset")
        elif result.error_code not in (TIMED_OUT, OUT_OF_RANGE) and topic.state == "live":
            self.world.broken(f"{ledger.name}: DeleteRecords was refused with {result.error_code}")
