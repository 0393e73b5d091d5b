"""SIGKILL of a real broker at each request of a transaction: when it is sent, and when it is
answered.

The client repeats what was not answered, as every client does; in the end the checker judges the
whole history. tests/transactions/test_wired_crash_points.py has the points in between.

Covers: kafkawire.transactions.coordinator, kafkawire.transactions.coordinator_log,
kafkawire.broker.markers.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from tests.kit.exactly_once.checker import check
from tests.kit.exactly_once.history import History, Key, Outcome, Partition
from tests.kit.exactly_once.producer import Abortable, Fenced, Transactional
from tests.kit.exactly_once.reader import finish
from tests.trials.process import Victim
from tests.trials.transactions.net import RealNet

pytestmark = [pytest.mark.real, pytest.mark.slow]

PARTITIONS: list[Partition] = [("a", 0), ("b", 0)]
KEY: Key = ("g", "in", 0)
MAX_REQUESTS = 12
"""Of one transaction: more than it has in either version."""
SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


class KillingNet(RealNet):
    """Kills and restarts the broker at one request; `sent`: before its answer, else after it."""

    def __init__(self, victim: Victim) -> None:
        super().__init__(lambda: victim.port, random.Random(1))
        self.victim = victim
        self.left = -1
        self.sent = False

    async def call(self, request: Any, version: int) -> Any:
        self.left -= 1
        if self.left != 0:
            return await super().call(request, version)
        if self.sent:
            asked = asyncio.ensure_future(super().call(request, version))
            await asyncio.sleep(self.rng.random() * 0.01)
            await self._restart()
            return await asked
        answer = await super().call(request, version)
        await self._restart()
        return answer

    async def _restart(self) -> None:
        await self.victim.kill()
        await self.victim.start()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_kill_at_any_request_leaves_whole_transactions(
    tmp_path: Path, version: int
) -> None:
    history = History()
    victim = Victim(tmp_path / "data", SETTINGS)
    net = KillingNet(victim)
    await victim.start()
    try:
        await prepare(net)
        for number in range(1, MAX_REQUESTS):
            for sent in (True, False):
                net.left, net.sent = number, sent
                await transaction(net, history, f"{number}{sent}", version)
        await finish(net, history, PARTITIONS, [KEY])
    finally:
        await net.close()
        victim.process.kill()
    assert check(history) == []
    ended = [each.outcome for each in history.attempts.values()]
    assert ended.count(Outcome.COMMITTED) >= MAX_REQUESTS
    assert victim.kills >= MAX_REQUESTS


async def prepare(net: RealNet) -> None:
    topics = [CreatableTopic(name, 1, 1) for name in ("a", "b", "in")]
    answer = await net.call(CreateTopicsRequest(topics, 30_000), 7)
    assert not any(topic.error_code for topic in answer.topics)
    for kind in (0, 1):
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
        while (await net.call(request, 4)).coordinators[0].error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def transaction(net: RealNet, history: History, name: str, version: int) -> None:
    """One of three partitions and the offsets of a group, then an aborted one."""
    producer = Transactional(net, history, name, "p", version, 12 if version == 2 else 11)
    with suppress(Fenced):
        await producer.init()
        for commit in (True, False):
            attempt = producer.begin()
            try:
                for partition in PARTITIONS:
                    await producer.send(partition, [f"{attempt}/{partition[0]}"])
                if commit:
                    offset = len(history.attempts)
                    await producer.commit_offsets("g", {("in", 0): offset})
                    await producer.commit()
                else:
                    await producer.abort()
            except Abortable:
                await producer.abort()
