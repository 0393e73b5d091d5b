"""Costs of the remote tier this month, counted across restarts and compared with a budget.

The month is the calendar month (UTC). Every TICK_S the counts are written to a small file in the
broker's folder (one line of JSON and its checksum, renamed into place); a crash loses at most that
period of counting. Storage is counted as bytes times time: the bytes of all objects with a row are
summed up once an hour, those of log objects are read at each tick. A WARN is logged once when the
costs reach 80 % of the budget, and once at 100 %. There is one instance per tier.
"""

from __future__ import annotations

import json
import logging
import os.path
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.crc32c import crc32c
from kafkawire.log.io.atomic_file import read_whole_file, write_whole_file
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    SegmentCatalog,
)
from kafkawire.tiering.cost.prices import MONTH_MS, Prices, parse_prices
from kafkawire.tiering.store.metering import OTHERS, Meter, Usage, Usages

logger = logging.getLogger(__name__)

NAME = "tier-spending"
VERSION = 1
TICK_S = 60.0
SUM_S = 3600.0
PAGE = 500
STEPS = (80, 100)
"""Percentages of the budget at which a warning is logged."""
MAX_FILE_BYTES = 1 << 20
"""Maximum size of the file; a thousand topics take a fifth of it."""


class Spending:
    """The monthly costs of the remote tier. `stored_bytes`: of all objects with a row at the last
    sum; `byte_ms`: bytes times milliseconds of this month."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        storage: SegmentCatalog,
        meter: Meter,
        node_id: int,
        folder: str,
        log_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`log_bytes` returns the bytes of log objects that are not released. Raises ValueError if
        `tier.prices` is malformed."""
        self.prices: Prices = parse_prices(config.tier_prices)
        self.month = ""
        self.byte_ms = 0
        self.stored_bytes = 0
        self._env = env
        self._config = config
        self._storage = storage
        self._meter = meter
        self._node_id = node_id
        self._folder = folder
        self._log_bytes = log_bytes
        self._warned = 0
        self._saved = b""
        self._ticked_s = 0.0
        self._summed_s = -SUM_S

    async def run(self) -> None:
        """Count, save and warn periodically; failures are logged and do not end the task."""
        while True:
            try:
                if not self.month:
                    await self.load()
                await self.tick()
            except OSError as failure:
                logger.warning("cannot count the costs of the remote tier: %s", failure)
            except Exception:
                logger.warning("counting the costs of the remote tier failed", exc_info=True)
            await self._env.sleep(TICK_S)

    async def close(self) -> None:
        """Save the counts, if counting has started."""
        if self.month:
            self._pass_time()
            await self._save()

    async def load(self) -> None:
        clock, fs = self._env.clock, self._env.fs
        self._saved = await self._env.offload.submit("files", _read, fs, self._folder)
        self.month = month_of(clock.now_ms())
        self._ticked_s = clock.monotonic()
        self._summed_s = self._ticked_s - SUM_S
        try:
            says = json.loads(self._saved or b"{}")
            # A later month, too: the clock may have moved back since.
            if says.get("version") == VERSION and says["month"] >= self.month:
                self._take(says)
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("stored costs of the remote tier are damaged, counting from zero")

    async def tick(self) -> None:
        """Add the storage used since the last call."""
        self._pass_time()
        now_s = self._env.clock.monotonic()
        if now_s - self._summed_s >= SUM_S:
            self._summed_s = now_s
            self.stored_bytes = await self._sum()
        month = month_of(self._env.clock.now_ms())
        # Not if the clock moves backwards, which would restart a month.
        if month > self.month:
            self.month, self.byte_ms, self._warned = month, 0, 0
            self._meter.begin_month(Usages())
        self._warn()
        await self._save()

    def cost_of(self, usage: Usage) -> float:
        money = self.prices.of_requests(usage.requests())
        return money + self.prices.of_transfer(usage.in_bytes, usage.out_bytes)

    def sum_month_costs(self) -> float:
        """Return this month's costs so far, storage included."""
        requests = sum(self.cost_of(usage) for usage in self._meter.month.values())
        return requests + self.prices.of_storage(self.byte_ms)

    def dearest(self, count: int) -> list[tuple[str, float]]:
        """Return (topic, cost of its requests and bytes this month) of the most expensive topics,
        at most `count`; all other topics are summed up as OTHERS."""
        costs = {topic: self.cost_of(usage) for topic, usage in self._meter.month.items()}
        others = costs.pop(OTHERS, 0.0)
        shown = nlargest(count, costs.items(), key=lambda pair: (pair[1], pair[0]))
        others += sum(costs.values()) - sum(cost for _, cost in shown)
        return [*shown, (OTHERS, others)] if len(costs) > count or others else shown

    async def report(self) -> dict[str, Any]:
        """Return the result of `tier cost` as plain values: this month by topic, costly first."""
        self._pass_time()
        self.stored_bytes = await self._sum()
        meter, prices, budget = self._meter, self.prices, self._config.tier_budget_month
        stored_bytes = self.stored_bytes + self._log_bytes()
        topics = [
            {"topic": topic, **_numbers(usage), "cost": self.cost_of(usage)}
            for topic, usage in meter.month.items()
        ]
        topics.sort(key=lambda row: (-row["cost"], row["topic"]))
        spent = self.sum_month_costs()
        whole = Usage()
        for usage in meter.month.values():
            _add(whole, usage)
        return {
            "month": self.month,
            "prices": prices.name,
            "currency": prices.currency,
            "topics": topics,
            "kinds": [
                {
                    "kind": kind,
                    "requests": round(number, 3),
                    "cost": prices.of_requests({kind: number}),
                }
                for kind, number in sorted(whole.requests().items())
            ],
            "transfer_cost": prices.of_transfer(whole.in_bytes, whole.out_bytes),
            "storage": {
                "bytes": stored_bytes,
                "log_object_bytes": self._log_bytes(),
                "cost": prices.of_storage(self.byte_ms),
                "cost_of_a_month": prices.of_storage(stored_bytes * MONTH_MS),
            },
            "cost": spent,
            "budget": budget or None,
            "budget_percent": round(100 * spent / budget, 1) if budget else None,
            "since_start": {
                "requests": dict(meter.requests),
                "in_bytes": meter.in_bytes,
                "out_bytes": meter.out_bytes,
                "errors": dict(meter.errors),
            },
        }

    def _pass_time(self) -> None:
        now_s = self._env.clock.monotonic()
        stored = self.stored_bytes + self._log_bytes()
        self.byte_ms += int(stored * (now_s - self._ticked_s) * 1000)
        self._ticked_s = now_s

    async def _sum(self) -> int:
        """Sum the bytes of all objects that may be in the bucket, without log objects."""
        total, after = 0, b""
        states = (COPY_STARTED, COPY_FINISHED, DELETE_STARTED)
        while rows := await self._storage.objects(self._node_id, states, PAGE, after):
            total += sum(row.size_bytes for row in rows)
            after = rows[-1].uuid
        return total

    def _warn(self) -> None:
        budget = self._config.tier_budget_month
        percent = 100 * self.sum_month_costs() / budget if budget else 0.0
        reached = max((step for step in STEPS if percent >= step), default=0)
        if reached > self._warned:
            logger.warning(
                "the remote tier cost %.2f %s in %s, %.0f %% of tier.budget.month=%g",
                self.sum_month_costs(), self.prices.currency, self.month, percent, budget,
            )  # fmt: skip
        # Lower after the budget was raised: then the same steps are logged again.
        self._warned = reached

    def _take(self, says: Mapping[str, Any]) -> None:
        """Parse a saved file. Raises KeyError, ValueError or TypeError if it is invalid."""
        month = Usages()
        for topic, (micro, in_bytes, out_bytes) in says["topics"].items():
            counts = Counter({str(kind): int(count) for kind, count in micro.items()})
            month[str(topic)] = Usage(counts, int(in_bytes), int(out_bytes))
        self.month, self.byte_ms = str(says["month"]), int(says["byte_ms"])
        self._warned = int(says["warned"])
        # Requests were counted before the file was read.
        for topic, usage in self._meter.month.items():
            _add(month.usage_of_topic(topic), usage)
        self._meter.begin_month(month)

    def _line(self) -> bytes:
        topics = {
            topic: (dict(usage.micro), usage.in_bytes, usage.out_bytes)
            for topic, usage in self._meter.month.items()
        }
        says = {"month": self.month, "byte_ms": self.byte_ms, "warned": self._warned}
        return json.dumps({"version": VERSION, **says, "topics": topics}).encode()

    async def _save(self) -> None:
        line = self._line()
        # An idle broker writes nothing.
        if line == self._saved:
            return
        try:
            await self._env.offload.submit("files", _write, self._env.fs, self._folder, line)
        except OSError as failure:
            logger.warning("cannot store the costs of the remote tier: %s", failure)
        else:
            self._saved = line


def month_of(now_ms: int) -> str:
    """Return the calendar month of a time, like 2026-11; months sort as strings."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m")


def _numbers(usage: Usage) -> dict[str, Any]:
    requests = {kind: round(count, 3) for kind, count in sorted(usage.requests().items())}
    return {"requests": requests, "in_bytes": usage.in_bytes, "out_bytes": usage.out_bytes}


def _add(to: Usage, more: Usage) -> None:
    to.micro.update(more.micro)
    to.in_bytes += more.in_bytes
    to.out_bytes += more.out_bytes


def _read(fs: FileSystem, folder: str) -> bytes:
    data = read_whole_file(fs, os.path.join(folder, NAME), MAX_FILE_BYTES)
    line, _, checksum = (data or b"").partition(b"\n")
    return line if checksum == b"%08x\n" % crc32c(line) else b""


def _write(fs: FileSystem, folder: str, line: bytes) -> None:
    fs.makedirs(folder)
    write_whole_file(fs, os.path.join(folder, NAME), b"%s\n%08x\n" % (line, crc32c(line)))
