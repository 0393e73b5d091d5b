"""A broker's life for tier tests that script its events themselves."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.tiering.admin.status import why
from tests.kit.tier.checks import check_bucket, check_moment, check_settled
from tests.kit.tier.world import TierProcess, read_partition

LAG_MS = 5000
SETTLE_S = 60.0


def expect(failure: KafkaError, *codes: ErrorCode) -> None:
    """Errors that may happen here."""
    if failure.code not in codes:
        raise failure


class Watched(TierProcess):
    """One process that is checked whenever the bucket, or its rows in SQL, have changed."""

    def requested(self, kind: str, key: str) -> None:
        if kind in ("put", "delete"):
            check_moment(self.world)

    def committed(self, method: str) -> None:
        if "object" in method or "local" in method:
            check_moment(self.world)


class Life(Watched):
    """One process, and the actions on it."""

    async def topic(self, name: str, partitions: int = 1, **configs: Any) -> None:
        """Create a tiered topic whose segments are uploaded at once."""
        await self.create(
            name,
            partitions,
            **{
                "tiering_max_lag_ms": str(LAG_MS),
                "tiering_min_object_bytes": "1",
                "retention_ms": "-1",
                **configs,
            },
        )

    async def produce(self, name: str, rounds: int = 2) -> None:
        """Append some records to each partition, cut after each round."""
        for _ in range(rounds):
            for row in self.catalog.by_name[name].partitions:
                for _ in range(3):
                    self.append(await self.partition(row.number), 3)
            await self.log.commit_log.wait_until_committed()
            await self.env.sleep(2.5)

    async def delete_records(self, name: str, keep: int) -> None:
        """Delete all but the last records of each partition."""
        for row in self.catalog.by_name[name].partitions:
            partition = await self.partition(row.number)
            expected = self.world.expected(row.number)
            expected.asked = partition.high_watermark - keep
            expected.log_start = await partition.delete_records(expected.asked)

    async def check(self) -> None:
        """Check that every acknowledged record can be read, and that partitions begin where they
        should."""
        for partition in await self.partitions():
            promises, start = self.world.promises, partition.log_start
            expected = self.world.expected(partition.number)  # created, and not answered
            promises.check_start(partition.number, start)
            found = await read_partition(partition, start)
            promises.check(partition.number, start, partition.high_watermark, found)
            most = max(expected.acked, default=-1)
            assert most < partition.high_watermark

    async def why(self) -> list[dict[str, Any]]:
        """The output of `kafkawire tier why --all`, which must be true: a line that says that
        something is uploaded has finished objects for all of it, and no other line has any."""
        reported = await why(self.tiering, None, None, True)
        lines: list[dict[str, Any]] = reported["pieces"]
        for partition in await self.partitions():
            place = partition.topic, partition.index
            there, rows = self.log.segments.store.by_id, partition.segments
            have = {
                offset
                for base, end, segment in zip(rows.base, rows.end, rows.segment, strict=True)
                if there[segment].row.object
                for offset in range(max(base, partition.log_start), end)
            }
            said: set[int] = set()
            for line in lines:
                if (line["topic"], line["partition"]) == place:
                    offsets = set(range(line["from"], line["to"]))
                    assert not offsets & said, f"{place}: two lines report the same offsets"
                    said |= offsets
                    uploaded = line["reason"] == "uploaded"
                    assert offsets <= have if uploaded else not offsets & have, line
            missing = set(range(partition.log_start, partition.high_watermark)) - have
            assert missing <= said, f"{place}: no line reports {missing - said}"
        return lines

    async def settle(self) -> None:
        """Give everything that is due its time, then check that nothing is left over."""
        await self.env.sleep(SETTLE_S)
        await self.check()
        for line in await self.why():
            assert line["reason"] in ("uploaded", "not tiered"), line
        check_settled(self.world)
        due = False
        for partition in await self.partitions():
            own = self.catalog.by_name[partition.topic].configs
            if TopicConfig(own, self.world.config.texts).copies:
                due = due or partition.high_watermark > partition.log_start
                commit_offset = max(partition.commit_offset, partition.log_start)
                assert commit_offset == partition.high_watermark
        assert check_bucket(self.world) or not due
