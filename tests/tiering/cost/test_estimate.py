"""The estimate of requests, compared with those of a broker in virtual time and with its own
report.

Covers: kafkawire.cli.tier.estimate.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kafkawire.client.notation import OptionError, parse_rate
from kafkawire.tiering.cost.estimate import (
    DAY_S,
    Estimate,
    Machine,
    TopicLoad,
    cut_every_s,
    estimate,
    requests,
)
from kafkawire.tiering.cost.prices import TABLES
from kafkawire.tiering.cost.traffic import split_settings
from tests.kit.tier.world import TierProcess, TierWorld

PRICES = TABLES["aws-s3-standard"]
WORLD = {
    "journal_entries": 1 << 20,
    "journal_roll_ms": 600_000,
    "cut_interval_ms": 1000,
    "hot_bytes": 1 << 26,
    "log_flush_offset_checkpoint_interval_ms": 600_000,
    "log_retention_check_interval_ms": 600_000,
    "log_cleaner_backoff_ms": 600_000,
    "segment_dead_max_ms": 43_200_000,
}


def counted(
    lag_ms: int, journal_bytes: int, record_bytes: int, every_s: float, run_s: float
) -> tuple[float, dict[str, float]]:
    """(bytes a second, PUTs a day of segments and of the manifest) of a simulated broker."""
    machine = Machine(journal_bytes=journal_bytes, manifest_fold=16)
    world = TierWorld(1, journal_bytes=journal_bytes, tier_manifest_fold=16, **WORLD)
    process = TierProcess(world)
    found: dict[str, float] = {}

    async def main() -> None:
        await process.start()
        lag: dict[str, Any] = {"tiering_max_lag_ms": str(lag_ms), "tiering_min_object_bytes": "1"}
        await process.create("t", 4, retention_ms="-1", **lag)
        partitions = await process.partitions()
        begun, appended = process.loop.now, process.log.commit_log.appended_bytes
        seen = len(world.bucket.calls)
        while process.loop.now < begun + run_s:
            for partition in partitions:
                process.send(partition, [(b"k", bytes(record_bytes))])
            await process.env.sleep(every_s)
        calls = [call for call in world.bucket.calls[seen:] if call.kind == "put"]
        puts = Counter(call.key.partition("/")[0] for call in calls)
        found.update({name: count * DAY_S / run_s for name, count in puts.items()})
        found["rate"] = (process.log.commit_log.appended_bytes - appended) / run_s
        await process.close()

    process.run(main)
    assert machine.manifest_fold == world.config.tier_manifest_fold
    return found.pop("rate"), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lag_ms", "journal_bytes", "record_bytes", "every_s", "run_s"),
    [
        (300_000, 1 << 18, 500, 20.0, 3600.0),  # cut by age
        (60_000, 1 << 20, 40_000, 4.0, 600.0),  # cut because journals are full
        (10_000, 1 << 16, 500, 1.0, 300.0),  # cut by age, often
    ],
)
def test_simulated_broker_makes_estimated_requests(
    lag_ms: int, journal_bytes: int, record_bytes: int, every_s: float, run_s: float
) -> None:
    rate, puts = counted(lag_ms, journal_bytes, record_bytes, every_s, run_s)
    load = TopicLoad("t", 4, rate, lag_ms=lag_ms, min_bytes=1)
    found = estimate([load], Machine(journal_bytes=journal_bytes, manifest_fold=16), PRICES)
    # Nothing was merged yet in so short a time, and its parts are one PUT of the fake.
    assert found.objects == pytest.approx(puts["segments"], rel=0.12)
    merged = found.merge_puts / requests(found.object_bytes, Machine())
    assert found.manifest_puts == pytest.approx(puts["manifest"], rel=0.15, abs=merged)


def test_idle_partitions_cost_nothing() -> None:
    loads = [TopicLoad("idle", 10_000, 0.0), TopicLoad("local", 5, 1e6, copies=False)]
    assert estimate(loads, Machine(), PRICES) == Estimate()


def test_ten_thousand_slow_partitions_cost_few_requests() -> None:
    found = estimate([TopicLoad("t", 10_000, 10_000 * 10.0)], Machine(), PRICES)
    assert 0 < found.puts / 24 < 2000
    assert found.objects == pytest.approx(DAY_S / found.cut_every_s)  # they share segments


def test_shorter_lag_costs_more_and_larger_journals_less() -> None:
    def puts(**settings: int) -> float:
        lag_ms = settings.pop("lag_ms", 300_000)
        return estimate([TopicLoad("t", 50, 1e5, lag_ms=lag_ms)], Machine(**settings), PRICES).puts

    assert puts(lag_ms=5_000) > puts(lag_ms=30_000) > puts(lag_ms=300_000)
    assert puts(journal_bytes=1 << 20) > puts()


def test_all_traffic_counts_towards_journals() -> None:
    mine, others = TopicLoad("t", 1, 1e6), TopicLoad("local", 1, 9e6, copies=False)
    alone = cut_every_s([mine], Machine())
    assert cut_every_s([mine, others], Machine()) == pytest.approx(alone / 10, rel=0.2)
    assert cut_every_s([others], Machine()) == 0


def test_large_partitions_get_own_objects_uploaded_in_parts() -> None:
    found = estimate([TopicLoad("t", 4, 1e6)], Machine(), PRICES)
    assert found.objects == pytest.approx(4 * DAY_S / found.cut_every_s)
    assert requests(found.object_bytes, Machine()) == 5  # two parts of 16 MiB, and three more
    assert found.segment_puts == pytest.approx(5 * found.objects)


def test_price_is_sum_of_requests_transfer_and_storage() -> None:
    load = TopicLoad("t", 1, 1e6, retention_ms=86_400_000)
    found = estimate([load], Machine(read_bytes_per_s=4 << 20), PRICES)
    folded = found.manifest_puts / (1 + 2 / 64)  # each delta is read once
    assert found.gets == pytest.approx(DAY_S + folded)
    assert found.stored_bytes == pytest.approx(86.4e9)
    assert found.storage_cost == pytest.approx(86.4 * 0.023)
    assert found.requests_cost == pytest.approx(30 * (found.puts * 5e-6 + found.gets * 4e-7))
    kept = estimate([TopicLoad("t", 1, 1e6, retention_ms=-1)], Machine(), PRICES)
    assert kept.stored_bytes == -1
    assert kept.storage_cost > 0


def log_puts_per_s(loads: list[TopicLoad], **settings: int) -> float:
    return estimate(loads, Machine(**settings), PRICES).log_puts / DAY_S


def test_log_objects_are_stored_by_time_or_by_size() -> None:
    def in_objects(bytes_per_s: float) -> list[TopicLoad]:
        return [TopicLoad("t", 1, bytes_per_s, in_objects=True)]

    assert log_puts_per_s([TopicLoad("t", 1, 1e6)]) == 0
    assert log_puts_per_s(in_objects(1e6)) == pytest.approx(10)  # each 100 ms
    assert log_puts_per_s(in_objects(1e6), object_linger_ms=250) == pytest.approx(4)
    assert log_puts_per_s(in_objects(200e6)) == pytest.approx(200e6 / (8 << 20))  # full before
    assert log_puts_per_s(in_objects(1e6), object_bytes=1 << 16) == pytest.approx(1e6 / (1 << 16))
    assert log_puts_per_s(in_objects(1e6), object_linger_ms=0) == pytest.approx(100)
    assert log_puts_per_s(in_objects(70)) == pytest.approx(1)  # no more than batches


def test_topics_share_log_objects_and_others_are_not_in_them() -> None:
    mine = [TopicLoad(name, 100, 1e6, lag_ms=60_000, in_objects=True) for name in "ab"]
    slow = TopicLoad("c", 1, 1e6, lag_ms=300_000, in_objects=True)
    local = TopicLoad("local", 1, 9e6)
    found = estimate([*mine, local], Machine(), PRICES)
    assert found.log_puts == pytest.approx(10 * DAY_S)
    assert found.log_bytes == pytest.approx(2e6 * DAY_S)
    assert found.unreleased_bytes == pytest.approx(2e6 * 60)
    found = estimate([*mine, slow, local], Machine(), PRICES)
    assert found.unreleased_bytes == pytest.approx(3e6 * 300)  # the slowest topic counts
    found = estimate([*mine, slow], Machine(unreleased_bytes=1 << 20), PRICES)
    assert found.unreleased_bytes == 1 << 20


@pytest.mark.parametrize("retention_ms", [86_400_000, -1])
def test_cost_of_log_objects_is_in_the_sums(retention_ms: int) -> None:
    loads = [
        TopicLoad("t", 1, 1e6, retention_ms=retention_ms, in_objects=log) for log in (False, True)
    ]
    prices = TABLES["aws-s3-express-one-zone"]  # uploaded bytes cost money, too
    without, within = (estimate([load], Machine(), prices) for load in loads)
    assert without.log_cost == 0
    more = [
        getattr(within, name) - getattr(without, name)
        for name in ("requests_cost", "transfer_cost", "storage_cost")
    ]
    puts, gigabytes = 10 * DAY_S * 30, 1e6 * DAY_S * 30 / 1e9
    assert more == pytest.approx([puts * 1.13e-6, gigabytes * 0.0032, 0.3 * 0.11])
    assert within.log_cost == pytest.approx(sum(more))
    assert within.amplification == pytest.approx(without.amplification + 1)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("5MB/s", 5e6), ("512 KiB/s", 524_288), ("1000", 1000), ("1.5GB", 1.5e9), ("0", 0)],
)
def test_rates_are_parsed(text: str, rate: float) -> None:
    assert parse_rate("--rate", text) == rate


@pytest.mark.parametrize("text", ["", "fast", "5XB", "-1", "5MB/h"])
def test_invalid_rates_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--rate=.*5MB/s"):
        parse_rate("--rate", text)


def test_unknown_settings_of_estimate_are_refused() -> None:
    known = {"tiering.max.lag.ms": "10000", "journal.bytes": "1"}
    assert split_settings(known) == ({"tiering.max.lag.ms": "10000"}, {"journal.bytes": "1"})
    with pytest.raises(ValueError, match=r"flush: .*tiering\.max\.lag\.ms"):
        split_settings({"flush": "os"})
