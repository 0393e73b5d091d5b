"""The cost of the tier in the current month: over restarts, months, jumping clocks, and with a
budget."""

from __future__ import annotations

import logging

import pytest

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.offsets.catalog.port import COPY_FINISHED, ObjectRow
from kafkawire.tiering.cost.budget import NAME, Spending, month_of
from kafkawire.tiering.store.metering import Meter, charging
from tests.kit.env import SettableClock, memory_env
from tests.kit.memfs import MemFileSystem
from tests.kit.waiting import until

FOLDER = "/broker"
DAY_MS = 86_400_000
NOVEMBER_MS = 1_700_000_000_000  # the 14th, 2023


class Rows:
    """An offset storage with the queries of spending."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def objects(
        self, node_id: int, states: object, limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        rows = [
            ObjectRow(bytes([at]), at, node_id, state=COPY_FINISHED, size_bytes=size)
            for at, size in enumerate(self.sizes, 1)
        ]
        return [row for row in rows if row.uuid > after][:2]


class World:
    """Spendings of consecutive processes over the same disk."""

    def __init__(self, **settings: str) -> None:
        self.env: Env = memory_env(MemFileSystem())
        self.env.fs.makedirs(FOLDER)
        clock = self.env.clock
        assert isinstance(clock, SettableClock)
        self.clock = clock
        self.clock.ms = NOVEMBER_MS
        self.config = BrokerConfig({name.replace("_", "."): v for name, v in settings.items()})
        self.rows = Rows()
        self.log_bytes = 0

    async def start(self) -> tuple[Spending, Meter]:
        meter = Meter(self.clock.now_ms)
        storage = self.rows
        spending = Spending(
            self.env, self.config, storage, meter, 1, FOLDER,  # type: ignore[arg-type]
            lambda: self.log_bytes,
        )  # fmt: skip
        await spending.load()
        return spending, meter


async def test_month_continues_after_restart() -> None:
    world = World(tier_prices="PUT=1000,GET=1,IN_GB=1")
    spending, meter = await world.start()
    with charging({"t": 1}):
        meter.count("PUT", 2, in_bytes=10**9)
    await spending.tick()
    spending, meter = await world.start()
    assert meter.month["t"].requests() == {"PUT": 2}
    assert not meter.topics
    meter.count("GET", 1000)
    assert spending.sum_month_costs() == pytest.approx(2 + 1 + 1)
    await spending.close()
    spending, _ = await world.start()
    assert spending.sum_month_costs() == pytest.approx(4)


async def test_costs_before_file_was_read_are_added() -> None:
    world = World(tier_prices="PUT=1000")
    spending, meter = await world.start()
    meter.count("PUT", 1)
    await spending.close()
    meter = Meter()
    meter.count("PUT", 1)
    again = Spending(world.env, world.config, world.rows, meter, 1, FOLDER)  # type: ignore[arg-type]
    await again.load()
    assert again.sum_month_costs() == pytest.approx(2)


async def test_new_month_starts_at_zero_except_after_clock_set_back() -> None:
    world = World(tier_prices="PUT=1000")
    spending, meter = await world.start()
    meter.count("PUT", 3)
    assert spending.month == "2023-11"
    world.clock.ms += 20 * DAY_MS
    await spending.tick()
    assert (spending.month, spending.sum_month_costs()) == ("2023-12", 0)
    meter.count("PUT", 1)
    world.clock.ms -= 20 * DAY_MS
    await spending.tick()
    assert (spending.month, spending.sum_month_costs()) == ("2023-12", 1)
    spending, _ = await world.start()
    assert (spending.month, spending.sum_month_costs()) == ("2023-12", 1)
    world.clock.ms += 60 * DAY_MS
    spending, _ = await world.start()
    assert (spending.month, spending.sum_month_costs()) == ("2024-01", 0)


async def test_storage_costs_by_time() -> None:
    world = World(tier_prices="GB_MONTH=30")
    world.rows.sizes = [10**9, 2 * 10**9, 10**9]  # more than a page
    spending, _ = await world.start()
    await spending.tick()
    assert (spending.stored_bytes, spending.sum_month_costs()) == (4 * 10**9, 0)
    world.clock.ms += DAY_MS
    await spending.tick()
    assert spending.sum_month_costs() == pytest.approx(4)
    report = await spending.report()
    assert report["storage"]["cost"] == pytest.approx(4)
    assert report["storage"]["cost_of_a_month"] == pytest.approx(120)
    world.log_bytes = 2 * 10**9
    world.clock.ms += DAY_MS
    await spending.tick()
    assert spending.sum_month_costs() == pytest.approx(4 + 6), (
        "log objects are counted at each tick"
    )
    storage = (await spending.report())["storage"]
    assert (storage["bytes"], storage["log_object_bytes"]) == (6 * 10**9, 2 * 10**9)


async def test_budget_warns_once_at_each_step(caplog: pytest.LogCaptureFixture) -> None:
    world = World(tier_prices="PUT=1000", tier_budget_month="10")

    def warnings() -> list[str]:
        found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        caplog.clear()
        return found

    spending, meter = await world.start()
    meter.count("PUT", 7)
    await spending.tick()
    assert warnings() == []
    meter.count("PUT", 1)
    await spending.tick()
    await spending.tick()
    (line,) = warnings()
    assert "8.00 USD in 2023-11, 80 % of tier.budget.month=10" in line
    spending, meter = await world.start()  # the warning was already logged
    await spending.tick()
    assert warnings() == []
    meter.count("PUT", 5)
    await spending.tick()
    assert len(warnings()) == 1
    assert (await spending.report())["budget_percent"] == 130.0
    world.clock.ms += 20 * DAY_MS
    meter.count("PUT", 1)
    await spending.tick()
    meter.count("PUT", 9)
    await spending.tick()
    assert len(warnings()) == 1  # another month


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"garbage", b'{"version": 1}\n00000000\n', b"[]\n", b"\xff" * 100],
)
async def test_damaged_file_is_replaced(content: bytes) -> None:
    world = World(tier_prices="PUT=1000")
    file = world.env.fs.open(f"{FOLDER}/{NAME}", create=True)
    file.pwritev([content], 0)
    file.close()
    spending, meter = await world.start()
    meter.count("PUT", 1)
    await spending.tick()
    assert spending.sum_month_costs() == 1
    spending, _ = await world.start()
    assert spending.sum_month_costs() == 1


async def test_file_of_other_version_is_ignored() -> None:
    from crc32c import crc32c

    world = World()
    for line in (
        b'{"version": 9, "month": "2023-11"}',
        b"[1]",
        b'{"version": 1, "month": "2023-11"}',
    ):
        file = world.env.fs.open(f"{FOLDER}/{NAME}", create=True)
        file.truncate(0)
        file.pwritev([b"%s\n%08x\n" % (line, crc32c(line))], 0)
        file.close()
        spending, meter = await world.start()
        assert (spending.sum_month_costs(), meter.month) == (0, {})


async def test_failed_write_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    spending, meter = await world.start()
    meter.count("PUT", 1)
    fs = world.env.fs
    assert isinstance(fs, MemFileSystem)
    fs.faults.room_bytes = 0
    await spending.tick()
    assert "cannot store the costs" in caplog.text
    fs.faults.room_bytes = None
    await spending.tick()
    _, meter = await world.start()
    assert meter.month


def test_month_boundaries() -> None:
    assert month_of(0) == "1970-01"
    assert month_of(NOVEMBER_MS) == "2023-11"
    assert month_of(1_701_388_799_999) == "2023-11"
    assert month_of(1_701_388_800_000) == "2023-12"


def test_wrong_prices_end_start() -> None:
    world = World(tier_prices="cheap")
    with pytest.raises(ValueError, match="cheap"):
        Spending(world.env, world.config, world.rows, Meter(), 1, FOLDER)  # type: ignore[arg-type]


async def test_most_expensive_topics_are_listed_and_others_summed() -> None:
    world = World(tier_prices="PUT=1000")
    spending, meter = await world.start()
    for at in range(5):
        with charging({f"t{at}": 1}):
            meter.count("PUT", at)
    assert spending.dearest(9) == [(f"t{at}", at) for at in (4, 3, 2, 1, 0)]
    assert spending.dearest(2) == [("t4", 4.0), ("t3", 3.0), ("(others)", 3.0)]
    assert sum(cost for _, cost in spending.dearest(1)) == spending.sum_month_costs()


async def test_counting_starts_when_disk_is_readable_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(tier_prices="PUT=1000,GET=1,IN_GB=1")
    meter = Meter(world.clock.now_ms)
    storage = world.rows
    spending = Spending(world.env, world.config, storage, meter, 1, FOLDER)  # type: ignore[arg-type]
    reads = 0

    def unreadable(*_: object) -> bytes:
        nonlocal reads
        reads += 1
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("kafkawire.tiering.cost.budget.TICK_S", 0.001)
    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.tiering.cost.budget._read", unreadable)
        running = world.env.spawn(spending.run(), "spending")
        await until(lambda: reads > 2, "it is tried again")
        assert not spending.month
    await until(lambda: bool(spending.month), "it counts")
    running.cancel()
