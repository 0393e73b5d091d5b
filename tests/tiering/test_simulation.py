"""A tiered broker in a seeded simulation: several lives on one disk and one bucket.

Topics of all kinds are created, changed and deleted while clients produce, read at random offsets
and delete records; segments are cut, merged, cleaned, uploaded, and removed locally and remotely;
the bucket is slow, throttles, fails, is unreachable or refuses; then the power fails, the process
dies, or it is closed. After each start and at the end, every acknowledged record above the log
start can be read unchanged, wherever it is stored by then; no deleted record can be read. At every
request to the bucket, tests.kit.tier.checks checks rows, files and manifest. In the end, when
everything had its time, all that is due is uploaded and nothing is left over.

`SIM_SEEDS=500 pytest tests/tiering/test_simulation.py` runs more; a failing seed is in the message,
and `simulate(seed)` runs it again.

Covers: kafkawire.tiering.log_listener, kafkawire.tiering.upload.uploader,
kafkawire.tiering.upload.finisher, kafkawire.tiering.upload.candidates,
kafkawire.tiering.upload.recovery, kafkawire.tiering.publishing.bucket,
kafkawire.tiering.publishing.reconcile, kafkawire.tiering.store.warnings.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any
from unittest.mock import patch

import pytest

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.partition import Partition
from kafkawire.tiering.scrub.plan import ScrubReport
from tests.kit.seeds import AT_ONCE, quiet, run_seeds
from tests.kit.tier.checks import check_bucket, check_moment, check_settled
from tests.kit.tier.crash_points import Points
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.life import Watched, expect
from tests.kit.tier.world import TierWorld, read_partition

SEEDS = int(os.environ.get("SIM_SEEDS", "60"))
LIVES = 3
MAX_TOPICS = 4
LAG_MS = 5000
SETTLED_S = 120.0
"""Twice the lag, the delays, the longest wait after failures, and retention's scans in between."""
TRIES = 60
READ_ERRORS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE)


class Life(Watched):
    """One process with its clients. `quiet_until`: no faults of the bucket before."""

    def __init__(self, world: TierWorld) -> None:
        super().__init__(world, Points())
        world.bucket.faults = StoreFaults(delay_s=(0.001, 0.02))
        self.made = 0

    async def main(self) -> None:
        await self.start()
        await self.check()
        rng = self.rng
        if not self.catalog.by_name:
            await self.make_topic()
            await self.make_topic()
        actors = [self.writer] * 2 + [
            self.reader,
            self.deleter,
            self.admin,
            self.weather,
            self.disk,
        ]
        tasks = [self.env.spawn(actor(), "actor") for actor in actors]
        end = self.env.spawn(self.env.sleep(rng.choice((1, 6, 20)) * rng.random()), "end of life")
        await asyncio.wait([end, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        for task in tasks:
            task.cancel()
        how = rng.choice(("power", "kill", "close"))
        self.world.fs.faults.room_bytes = None
        if how == "close":
            await self.close()
        else:
            self.die(how)
        check_moment(self.world)
        check_bucket(self.world)

    async def check(self) -> None:
        """Check that every guarantee given so far holds, while the bucket is well."""
        self.world.bucket.faults = StoreFaults(delay_s=(0.001, 0.02))
        self.sql_fails = 0.0
        promises = self.world.promises
        for partition in await self.partitions():
            # Its creation may have failed for the admin and taken effect.
            self.world.expected(partition.number)
            promises.check_start(partition.number, partition.log_start)
            start, found = await self.read(partition)
            promises.check(partition.number, start, partition.high_watermark, found)
            most = max(promises.partitions[partition.number].acked, default=-1)
            assert most < partition.high_watermark, f"{partition.topic} ends before {most}"

    async def read(self, partition: Partition) -> tuple[int, list[Any]]:
        """The log start and all records from there on; repeated while the store fails, or the log
        start moves."""
        for _ in range(TRIES):
            start = partition.log_start
            try:
                return start, await read_partition(partition, start)
            except KafkaError as failure:
                expect(failure, *READ_ERRORS)
                last = failure
                await self.env.sleep(0.5)
        raise last

    # --- clients

    async def any_partition(self) -> Partition | None:
        """One partition of an existing topic."""
        numbers = [row.number for info in self.catalog.by_id.values() for row in info.partitions]
        return await self.partition(self.rng.choice(numbers)) if numbers else None

    async def writer(self) -> None:
        while True:
            await self.env.sleep(self.rng.random() * 0.4)
            partition = await self.any_partition()
            try:
                if partition is not None and not partition.removed:
                    count = self.rng.randrange(1, 6)
                    self.append(partition, count, self.rng.choice((0, 0, 4)))
            except KafkaError as failure:
                expect(failure, ErrorCode.KAFKA_STORAGE_ERROR)

    async def reader(self) -> None:
        while True:
            await self.env.sleep(self.rng.random())
            partition = await self.any_partition()
            if partition is None:
                continue
            start = self.rng.randrange(partition.log_start, partition.high_watermark + 1)
            size = self.rng.choice((500, 3000, 1 << 20))
            try:
                found = await read_partition(partition, start, size)
            except KafkaError as failure:
                if not partition.removed:
                    expect(failure, *READ_ERRORS)
                continue
            for offset, row in found:
                assert row in self.world.promises.sent
                self.world.expected(partition.number).see(offset, row)

    async def deleter(self) -> None:
        while True:
            await self.env.sleep(self.rng.random() * 5)
            partition = await self.any_partition()
            if partition is None:
                continue
            target = self.rng.randrange(partition.log_start, partition.high_watermark + 1)
            expected = self.world.expected(partition.number)
            expected.asked = max(expected.asked, target)
            try:
                start = await partition.delete_records(target)
            except KafkaError as failure:
                if not partition.removed:
                    expect(failure, *READ_ERRORS)
                continue
            assert start >= target
            if self.over:
                return
            expected.log_start = max(expected.log_start, start)
            place = partition.topic, partition.index
            late = await self.tiering.log_starts_reported([place], self.rng.random() * 5)
            if not late and not self.over and not partition.removed:
                expected.deleted_below = max(expected.deleted_below, start)

    async def admin(self) -> None:
        while True:
            await self.env.sleep(self.rng.random() * 4)
            names = sorted(self.catalog.by_name)
            what = self.rng.random()
            try:
                if len(names) < 2 or (what < 0.3 and len(names) < MAX_TOPICS):
                    await self.make_topic()
                elif what < 0.5:
                    await self.delete(self.rng.choice(names))
                else:
                    await self.change_topic(self.rng.choice(names))
            except KafkaError as failure:
                expect(failure, ErrorCode.KAFKA_STORAGE_ERROR)

    async def make_topic(self) -> None:
        rng = self.rng
        configs: dict[str, Any] = {
            "tiering_max_lag_ms": str(LAG_MS),
            "tiering_min_object_bytes": rng.choice(("1", "3000", "1000000")),
            "local_retention_ms": rng.choice(("-2", "1", "3000")),
            "local_retention_bytes": rng.choice(("-2", "-2", "1", "5000")),
            "retention_ms": "-1",
            "segment_bytes": "1048576",
            "cleanup_policy": rng.choice(("delete", "delete", "compact")),
            "min_cleanable_dirty_ratio": "0",
            "delete_retention_ms": "100000000",
        }
        if rng.random() < 0.2:
            configs["retention_ms"] = "8000"
        if rng.random() < 0.1:
            configs["remote_storage_enable"] = "false"
        self.made += 1
        name = f"t{self.loop.now:.3f}.{self.made}"
        await self.create(name, rng.randrange(1, 4), **configs)

    async def change_topic(self, name: str) -> None:
        """Change settings in a way that the config service allows."""
        rng = self.rng
        config = TopicConfig(self.catalog.by_name[name].configs, self.world.config.texts)
        match rng.randrange(6):
            case 0 if config.tiered:
                off = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
                await self.alter(name, **off)
            case 0 | 1 if not config.tiered:
                await self.alter(name, remote_storage_enable="true")
            case 1 if config.copies:
                local = {"local_retention_ms": "-2", "local_retention_bytes": "-2"}
                await self.alter(name, remote_log_copy_disable="true", **local)
            case 2 if config.tiered and not config.copies:
                await self.alter(name, remote_log_copy_disable="false")
            case 3 if config.copies:
                await self.alter(name, local_retention_ms=rng.choice(("-2", "1", "3000")))
            case 4:
                await self.alter(name, tiering_min_object_bytes=rng.choice(("1", "1000000")))
            case _:
                level = rng.choice(("not-in-disk", "not-in-mem", "force"))
                await self.alter(name, tieredStorageLevel=level)

    # --- the world

    async def weather(self) -> None:
        """The state of the bucket, which changes every few seconds."""
        rng = self.rng
        while True:
            await self.env.sleep(rng.random() * 4)
            delay_s = rng.choice(((0.001, 0.02), (0.001, 0.02), (0.1, 2.0)))
            self.world.bucket.faults = faults = StoreFaults(delay_s=delay_s)
            self.sql_fails = rng.choice((0.0, 0.0, 0.1))
            if rng.random() < 0.1:
                self.world.set_clock(rng.choice((-3_600_000, 3_600_000, 86_400_000)))
            match rng.randrange(8):
                case 0:
                    faults.error_rate = rng.choice((0.1, 0.5))
                case 1:
                    faults.slow_down_rate = rng.choice((0.1, 0.9))
                case 2:
                    faults.lost_rate = rng.choice((0.1, 0.5))
                case 3:
                    faults.partial_rate = rng.choice((0.2, 0.8))
                case 4:
                    faults.down = True
                    faults.timeout_s = rng.choice((0.1, 5.0))
                case 5 if rng.random() < 0.5:
                    faults.refused = rng.choice(("InvalidAccessKeyId", "NoSuchBucket"))
                case _:
                    pass

    async def disk(self) -> None:
        faults = self.world.fs.faults
        while True:
            await self.env.sleep(self.rng.random() * 8)
            match self.rng.randrange(4):
                case 0:
                    faults.room_bytes = self.rng.randrange(30000)
                    await self.env.sleep(self.rng.random())
                    faults.room_bytes = None
                case 1:
                    faults.short_writes = 1
                case _:
                    pass


class LastLife(Life):
    """A life without writers, in which all outstanding work gets its time."""

    async def main(self) -> None:
        self.world.clock_ms = self.world.clock_most_ms  # delays end by the wall clock
        await self.start()
        await self.check()
        config = self.world.config
        await self.env.sleep(SETTLED_S)
        await self.check()
        check_settled(self.world)
        for partition in await self.partitions():
            if TopicConfig(self.catalog.by_name[partition.topic].configs, config.texts).copies:
                commit_offset = max(partition.commit_offset, partition.log_start)
                assert commit_offset == partition.high_watermark, (
                    f"{partition.topic}-{partition.index} is uploaded up to "
                    f"{commit_offset} of {partition.high_watermark}"
                )
        check_bucket(self.world)
        assert not self.tiering.dispatcher.foreign
        async for event in self.tiering.scrub(repair=False, deep=True):
            if isinstance(event, ScrubReport):
                assert not event.findings, event.findings
        before = len(self.world.bucket.calls)
        await self.env.sleep(60)
        spent = self.world.bucket.calls[before:]
        assert len(spent) <= 6, f"an idle minute cost {spent}"  # retention may still delete
        await self.close()


def simulate(seed: int) -> TierWorld:
    world = TierWorld(seed)
    rng = world.rng
    world.config.tier_manifest_fold = rng.choice((2, 6, 64))
    world.config.tier_upload_threads = rng.choice((1, 4))
    world.config.tier_upload_buffer_bytes = rng.choice((1, 20000, 1 << 28))
    world.config.journal_bytes = rng.choice((1 << 14, 1 << 16))
    world.config.hot_bytes = rng.choice((0, 20000))
    with patch("kafkawire.log.segments.merge.plan.MAX_SMALL", rng.choice((3, 6, 112))):
        for kind in [Life] * LIVES + [LastLife]:
            world.fs.faults.__init__()  # type: ignore[misc]
            life = kind(world)
            life.run(life.main)
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_acknowledged_records_survive_any_end(first: int) -> None:
    run_seeds(simulate, first, SEEDS)


@pytest.mark.slow
def test_same_seed_gives_same_run_with_uploads() -> None:
    with quiet():
        once, again = simulate(7), simulate(7)
    assert once.rng.random() == again.rng.random()
    # Tasks that end with their process end in any order.
    assert sorted(once.bucket.calls) == sorted(again.bucket.calls)
    assert once.bucket.objects == again.bucket.objects
    assert once.bucket.requests["put"] > 10
