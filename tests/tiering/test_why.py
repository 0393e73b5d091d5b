"""Reasons and progress that a broker reports in virtual time, while faults happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kafkawire.manifest.keys import SEGMENTS
from kafkawire.tiering.admin.commands import TierCommands
from kafkawire.tiering.admin.status import LocalOnlyRange, merge_neighbours
from kafkawire.tiering.upload.scheduler import Reason, Why
from tests.kit.log.transactional import Producer
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.faults import CALM
from tests.kit.tier.world import TierProcess, TierWorld

LAG = {"tiering_max_lag_ms": "20000", "retention_ms": "-1"}
"""Cut after 10 s at the latest, small segments uploaded some seconds later."""


class Asked(TierProcess):
    """A life that is asked for its state."""

    async def ask(self, command: str, **arguments: Any) -> Any:
        """The response to a command."""
        return await TierCommands(self.tiering).run(command, arguments)

    async def reasons(self) -> list[tuple[str, str]]:
        """(reason, detail) of every piece."""
        return [(row["reason"], row["detail"]) for row in (await self.ask("why"))["pieces"]]

    async def row(self) -> Any:
        """The one partition that has records."""
        (found,) = (await self.ask("status"))["partitions"]
        return found

    async def produce(self, **configs: Any) -> None:
        """Append records to the one partition of a topic."""
        if "t" not in self.catalog.by_name:
            await self.create("t", 1, **{**LAG, **configs})
        (partition,) = await self.partitions()
        self.append(partition, 3)
        await self.log.commit_log.wait_until_committed()

    async def until(self, reason: Reason) -> list[tuple[str, str]]:
        """Wait until this is the only reason."""
        until = self.loop.now + 120
        while True:
            found = await self.reasons()
            if [name for name, _ in found] == [reason.value]:
                return found
            assert self.loop.now < until, found
            await self.env.sleep(0.05)


def live(world: TierWorld, act: Callable[[Asked], Awaitable[None]]) -> None:
    process = Asked(world)

    async def main() -> None:
        await process.start()
        await act(process)
        await process.close()

    process.run(main)


def test_reasons_of_small_segment_until_uploaded() -> None:
    async def act(process: Asked) -> None:
        await process.produce(tiering_min_object_bytes="1000000")
        await process.until(Reason.ACTIVE)
        (piece,) = (await process.ask("why"))["pieces"]
        assert piece["segments"] == 0
        assert 0 < piece["until_s"] <= 10
        begun = process.loop.now
        await process.until(Reason.WAIT_AGE)
        assert process.loop.now - begun <= 10
        (piece,) = (await process.ask("why"))["pieces"]
        assert piece["segments"] == 1
        assert 0 < piece["until_s"] <= 20 - (process.loop.now - begun)
        assert (await process.row())["lag_records"] == 3
        await process.env.sleep(piece["until_s"] + 1)
        assert await process.reasons() == []
        assert process.loop.now - begun <= 20
        row = await process.row()
        assert (row["commit"], row["dispatch"], row["lag_s"]) == (3, 3, 0.0)
        (whole,) = (await process.ask("why", all=True, topic="t"))["pieces"]
        assert (whole["reason"], whole["to"]) == ("uploaded", 3)

    live(TierWorld(1), act)


def test_open_transaction_is_reported_as_reason() -> None:
    async def act(process: Asked) -> None:
        await process.produce(tiering_min_object_bytes="1")
        (partition,) = await process.partitions()
        producer = Producer(7)
        producer.send(partition, b"open")
        await process.log.commit_log.wait_until_committed()
        text = "producer 7 has a transaction open since offset 3"
        assert await process.reasons() == [("active", ""), ("transaction open", text)]
        await process.env.sleep(60)
        (piece,) = (await process.ask("why"))["pieces"]
        assert (piece["from"], piece["to"], piece["detail"]) == (3, 4, text)
        producer.end(partition, commit=True)
        await process.log.commit_log.wait_until_committed()
        await process.env.sleep(60)
        assert await process.reasons() == []

    live(TierWorld(1), act)


def test_exhausted_rate_is_reported_as_reason() -> None:
    async def act(process: Asked) -> None:
        await process.produce(tiering_min_object_bytes="1")
        await process.env.sleep(15)
        assert await process.reasons() == []
        process.world.config.remote_log_manager_copy_max_bytes_per_second = 10
        for _ in range(3):
            await process.produce()
            await process.env.sleep(11)
        found = {reason for reason, _ in await process.reasons()}
        assert Reason.RATE_LIMITED.value in found
        process.world.config.remote_log_manager_copy_max_bytes_per_second = 1 << 40
        await process.env.sleep(600)
        assert await process.reasons() == []

    live(TierWorld(1), act)


def test_unwritable_manifest_is_reported_as_reason() -> None:
    async def act(process: Asked) -> None:
        bucket = process.world.bucket
        await process.produce(tiering_min_object_bytes="1")
        while not [key for key in bucket.held if key.startswith(SEGMENTS)]:
            await process.env.sleep(0.001)
        bucket.faults = StoreFaults(down=True, timeout_s=0.1)
        await process.env.sleep(1)
        ((reason, detail),) = await process.reasons()
        assert reason == "error"
        assert "EndpointConnectionError" in detail
        state = (await process.ask("status"))["tier"]
        assert state["manifest_error"] == "EndpointConnectionError"
        bucket.faults = StoreFaults()
        await process.env.sleep(30)
        assert await process.reasons() == []

    live(TierWorld(1), act)


@pytest.mark.slow
def test_reasons_during_outage_of_an_hour() -> None:
    async def act(process: Asked) -> None:
        await process.produce(tiering_min_object_bytes="1")
        await process.env.sleep(20)
        uploaded_ms = (await process.row())["last_upload_ms"]
        process.world.bucket.faults = StoreFaults(down=True, timeout_s=0.1)
        for _ in range(4):
            await process.produce()
            await process.env.sleep(900)
        reported = await process.ask("why")
        (piece,) = reported["pieces"]  # several segments with one reason are one piece
        assert (piece["reason"], piece["from"], piece["to"]) == ("error", 3, 15)
        assert piece["segments"] == 4
        assert piece["waits_s"] > 2600
        assert piece["until_s"] <= CALM["tier_retry_max_ms"] / 1000
        assert reported["tier"]["promises_missed"] == ["t"]
        assert reported["tier"]["last_error"].startswith("EndpointConnectionError")
        row = await process.row()
        assert (row["lag_records"], row["commit"], row["last_upload_ms"]) == (12, 3, uploaded_ms)
        assert row["lag_s"] > 2600
        assert row["error"] == "EndpointConnectionError"
        process.world.bucket.faults = StoreFaults()
        await process.env.sleep(120)
        assert await process.reasons() == []
        assert (await process.ask("why"))["tier"]["promises_missed"] == []

    live(TierWorld(1, **CALM), act)


def test_pause_is_reported_with_time_and_lateness() -> None:
    world = TierWorld(1, **CALM)
    world.config.tier_paused = True

    async def act(process: Asked) -> None:
        await process.produce()
        await process.until(Reason.PAUSED)
        (piece,) = (await process.ask("why"))["pieces"]
        assert (piece["late"], piece["until_s"]) == (False, None)
        begun = process.env.clock.now_ms() - int(piece["waits_s"] * 1000)
        assert abs(piece["since_ms"] - begun) < 100
        await process.env.sleep(30.0)
        (piece,) = (await process.ask("why"))["pieces"]
        assert piece["late"]
        assert piece["waits_s"] > 20

    live(world, act)


def test_empty_internal_partitions_are_shown_only_if_named() -> None:
    async def act(process: Asked) -> None:
        await process.create("__consumer_offsets", 3)
        process.catalog.by_name["__consumer_offsets"].internal = True
        await process.create("empty", 2)
        reported = await process.ask("why", all=True)
        assert {row["topic"] for row in reported["pieces"]} == {"empty"}
        reported = await process.ask("why", all=True, topic="__consumer_offsets")
        assert len(reported["pieces"]) == 3

    live(TierWorld(1, **CALM), act)


def test_unloaded_partitions_are_reported() -> None:
    world, seen = TierWorld(1), []

    async def fill(process: Asked) -> None:
        await process.produce(local_retention_ms="1", tiering_min_object_bytes="1")
        await process.env.sleep(30)
        seen.append(await process.row())

    async def scan(process: Asked) -> None:
        await process.env.sleep(1)
        assert not process.log.partitions
        seen.append(await process.row())
        assert await process.reasons() == []
        assert not process.log.partitions

    live(world, fill)
    live(world, scan)
    assert seen[0] == seen[1]
    assert (seen[1]["local_log_start"], seen[1]["commit"], seen[1]["lag_s"]) == (3, 3, 0.0)


@pytest.mark.parametrize("detail", ["", "AccessDenied"])
def test_adjacent_ranges_with_same_reason_are_merged(detail: str) -> None:
    error, other = Why(Reason.ERROR, 9.0, detail), Why(Reason.QUEUED)
    soon = Why(Reason.ERROR, 5.0, detail)
    found = merge_neighbours(
        [
            LocalOnlyRange(0, 3, 10, error, 7.0),
            LocalOnlyRange(3, 5, 20, soon, 8.0),
            LocalOnlyRange(5, 6, 1, other, 9.0),
            LocalOnlyRange(8, 9, 1, other, 9.0),  # after a gap: the records between are uploaded
            LocalOnlyRange(9, 12, 4, Why(Reason.QUEUED), 9.0, 0),  # in the journals
        ]
    )
    assert found == [
        LocalOnlyRange(0, 5, 30, soon, 7.0, 2),
        LocalOnlyRange(5, 6, 1, other, 9.0),
        LocalOnlyRange(8, 9, 1, other, 9.0),
        LocalOnlyRange(9, 12, 4, other, 9.0, 0),
    ]
