"""The starve trial in short, and its checks of one client's responses and of memory.

test_starve_mutations covers defects of whole brokers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.waiting import until
from tests.trials.context import Context
from tests.trials.kill.world import Topic
from tests.trials.records import Outgoing, build
from tests.trials.starve import good as good_client
from tests.trials.starve.good import Good
from tests.trials.starve.storms import MIB, SPARE_DESCRIPTORS, allowed
from tests.trials.starve.trial import MAX_GROWTH, judge, round_

TOPIC = Topic("t", bytes(16), 1, compacted=False, tiered=False)


def context(folder: Path) -> Context:
    return Context("starve", 1, 0, folder, time.monotonic() + 30, short=True, say=print)


@pytest.mark.slow
async def test_unserved_client_is_reported(tmp_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    run = context(tmp_path)
    good = Good(run, server.sockets[0].getsockname()[1], TOPIC, TOPIC)
    serving = asyncio.create_task(good.run())
    await until(lambda: bool(run.findings), "a finding")
    good.stop.set()
    await serving
    server.close()
    assert "the well-behaved client is not served" in run.findings[0].text
    assert good.served == 0


class Answers:
    """A client that gets these responses, one after the other."""

    def __init__(self, *partitions: Any, last: Callable[[], None] = lambda: None) -> None:
        self.left = list(partitions)
        self.last = last

    async def call(self, request: Any, version: int) -> Any:
        row = self.left.pop(0)
        if not self.left:
            self.last()
        one = SimpleNamespace(partition_responses=[row], partitions=[row])
        return SimpleNamespace(responses=[one])


def sent(uid: int) -> bytes:
    return build([Outgoing(uid, b"k", b"v")], timestamp_ms=1)


def partition(error: int = 0, records: bytes = b"") -> Any:
    return SimpleNamespace(error_code=error, base_offset=7, records=records)


FIRST = (1 << 40) + 1
GOOD_ANSWERS = [partition(), partition(records=sent(FIRST)), partition(records=sent(1))]


@pytest.mark.parametrize(
    ("answers", "noticed"),
    [
        (GOOD_ANSWERS, ""),
        ([partition(6)], "a small produce is refused with 6"),
        ([*GOOD_ANSWERS[:1], partition(), GOOD_ANSWERS[2]], "is not read back: error 0"),
        ([*GOOD_ANSWERS[:1], partition(1), GOOD_ANSWERS[2]], "is not read back: error 1"),
        ([*GOOD_ANSWERS[:2], partition()], "an old record is not served: error 0"),
        ([*GOOD_ANSWERS[:2], partition(56)], "an old record is not served: error 56"),
    ],
)
async def test_wrong_responses_to_good_client_are_reported(
    tmp_path: Path, answers: list[Any], noticed: str
) -> None:
    run = context(tmp_path)
    client: Any = Answers(*answers)
    await Good(run, 0, TOPIC, TOPIC)._exchange(client)
    assert noticed in "".join(finding.text for finding in run.findings)
    assert bool(run.findings) == bool(noticed)


async def test_slow_responses_to_good_client_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(good_client, "PATIENCE_S", 0.0)
    run = context(tmp_path)
    good = Good(run, 0, TOPIC, TOPIC)
    client: Any = Answers(*GOOD_ANSWERS, last=good.stop.set)
    await good._exchanges(client)
    assert "for three small answers" in run.findings[0].text


def test_unbounded_memory_is_reported(tmp_path: Path) -> None:
    run = context(tmp_path)
    judge(run, "few", MAX_GROWTH, 1)
    judge(run, "many", MAX_GROWTH + 190 * MIB, 5000)
    assert run.findings == []
    judge(run, "hungry", MAX_GROWTH + MIB, 1)
    assert "hungry: the broker's memory grew by 601 MiB" in run.findings[0].text


def test_storm_size_is_limited_by_system_descriptors() -> None:
    assert allowed(10) == 10
    assert 0 < allowed(1 << 40) < (1 << 40) - SPARE_DESCRIPTORS


@pytest.mark.real
@pytest.mark.slow
async def test_short_starve_trial_passes(tmp_path: Path) -> None:
    run = context(tmp_path)
    await round_(run)
    assert run.findings == []
    assert run.counts["connections taken at max.connections"]
    assert run.counts["groups joined and committed"] == run.counts["commits of groups verified"]
