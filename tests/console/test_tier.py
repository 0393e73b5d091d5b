"""The page of the remote tier.

Covers: kafkawire.console.pages.cluster, kafkawire.console.views.tier, kafkawire.console.views.own,
kafkawire.console.views.parts, kafkawire.console.views.storage, kafkawire.console.views.findings.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.security import security_of
from kafkawire.client.tier import send_command
from kafkawire.console.app import application
from kafkawire.console.views.parts import PAGE, page_of
from kafkawire.console.views.tier import (
    ADVICE,
    WaitingRange,
    elapsed_share,
    group_by_topic,
    sum_costs,
)
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import broker
from tests.console.test_pages import check_page
from tests.kit.tier.commands import (
    URL,
    Typed,
    all_uploaded,
    buckets_in_memory,  # noqa: F401  (a fixture, by name)
    pieces,
    tiered,
)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import wait_until


async def get(tier: Typed, path: str) -> str:
    """Return a page of a console for the broker; its status must be 200."""

    def read() -> str:
        app = application(ConsoleOptions(tier.address, ("127.0.0.1",)))
        with TestClient(app, base_url="http://127.0.0.1") as pages:
            answer = pages.get(path)
        assert answer.status_code == 200, answer.text
        check_page(answer.text)
        return answer.text

    return await asyncio.to_thread(read)


@pytest.mark.real
async def test_tier_page_says_why_records_are_not_uploaded(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier("pause")
        await tier.produce("t", 3)
        await tier.until(lambda answer: pieces(answer) == [("t", 0, 0, 3, "paused")], "why")
        await tier.produce("plain", 3, remote_storage_enable="false")
        text = await get(tier, "/tier")
        assert URL in text
        assert "Run kafkawire tier resume." in text
        assert 'href="/tier?topic=t"' in text
        assert "are paused (tier.paused)" in text
        assert "are paused (tier.paused)" in await get(tier, "/")
        assert "remote.storage.enable=false" not in text
        assert "remote.storage.enable=false" in await get(tier, "/tier?all=1")
        assert '<td class="n">0</td><td class="n">3</td>' in await get(tier, "/tier?topic=t")
        await tier("resume")
        await tier.until(all_uploaded, "why")
        await tier("scrub")
        text = await get(tier, "/tier")
        assert "All records are in the remote tier." in text
        assert "they agree" in text
        assert '<th scope="row">PUT</th>' in text
        assert "No budget is set." in text
        overview = await get(tier, "/")
        assert re.search(r"disk and S3: [0-9.]+ KiB, [0-9]+ %", overview)
        assert "journal: " in overview
        assert "is forecast for the month" in overview


@pytest.mark.real
async def test_broker_without_a_tier_says_so(tmp_path: Path) -> None:
    async with tiered(tmp_path / "data", tier_url="") as tier:
        assert "broker has no remote tier" in await get(tier, "/tier")
        overview = await get(tier, "/")
        assert "journal: " in overview
        assert "The bucket cost" not in overview


@pytest.mark.slow
async def test_findings_of_a_scrub_and_a_move_are_shown(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with tiered(tmp_path / "data", journal_roll_ms="50") as tier:
        await tier.produce("t", 3)
        await tier.until(all_uploaded, "why")
        await tier("move", "--to", "s3://other/place")
        text = await get(tier, "/tier")
        assert "Move to s3://other/place: " in text
        (key,) = [k for k in buckets["s3://other/place"].objects if k.startswith("segments/")]
        buckets["s3://other/place"].forget(key)

        def scrub() -> None:
            with Cluster(tier.address) as cluster:
                send_command(cluster, "scrub")
                wait_until(
                    lambda: send_command(cluster, "scrub", watch=True)["state"] == "done",
                    "the scrub",
                )

        await asyncio.to_thread(scrub)
        text = await get(tier, "/tier")
        assert "1 differ." in text
        assert f'<td>dangling</td><td class="id">{key}</td>' in text


@pytest.mark.real
def test_user_without_rights_gets_a_sentence() -> None:
    with broker(users={"alice": "secret"}, acls=[]) as running:
        given = running.client_settings("alice")
        options = ConsoleOptions(given["bootstrap.servers"], ("127.0.0.1",), security_of(given))
        with TestClient(application(options), base_url="http://127.0.0.1") as pages:
            for path in ("/", "/tier", "/transactions", "/schedules", "/cluster", "/security"):
                answer = pages.get(path)
                assert answer.status_code == 200, (path, answer.text)
                check_page(answer.text)
            assert "CLUSTER_AUTHORIZATION_FAILED" in pages.get("/tier").text


def waiting(partition: int, since_ms: int | None, **changes: Any) -> WaitingRange:
    made = WaitingRange("t", partition, 5, 9, 1, 100, "queued", "", since_ms, late=False)
    return made._replace(**changes)


def test_ranges_of_a_topic_are_joined_by_reason() -> None:
    rows = [
        waiting(0, None),
        waiting(0, 70, detail="why"),
        waiting(1, 30, late=True),
        waiting(1, 10, reason="paused"),
    ]
    queued, paused = group_by_topic(rows)
    assert (queued.partitions, queued.size_bytes, queued.start) == (2, 300, -1)
    assert (queued.since_ms, queued.late, queued.detail) == (30, True, "why")
    assert (paused.since_ms, paused.late, paused.advice) == (10, False, ADVICE["paused"])


def cost(**changes: Any) -> dict[str, Any]:
    """Return what `tier cost` answers: 1 for PUTs, 0.5 for transfer and 0.2 for storage."""
    return {
        "month": "2026-04", "prices": "p", "currency": "EUR", "cost": 1.7, "budget": None,
        "topics": [{"topic": "t", "requests": {"PUT": 10}, "cost": 1.5}],
        "kinds": [{"kind": "PUT", "requests": 10, "cost": 1.0}], "transfer_cost": 0.5,
        "storage": {"bytes": 7, "cost": 0.2, "cost_of_a_month": 3.0},
    } | changes  # fmt: skip


def test_forecast_is_the_rate_so_far_and_storage_as_it_is_now() -> None:
    now_ms = int(datetime(2026, 4, 11, tzinfo=UTC).timestamp() * 1000)
    assert elapsed_share(now_ms) == pytest.approx(1 / 3)
    assert sum_costs([], now_ms) is None
    found = sum_costs([cost(), cost()], now_ms)
    assert found is not None
    assert found.spent == pytest.approx(3.4)
    assert {each.name: round(each.forecast, 6) for each in found.kinds} == {
        "PUT": 6.0, "transfer": 3.0, "storage": 0.4 + 2 / 3 * 6,
    }  # fmt: skip
    assert [(row.name, row.requests, row.cost) for row in found.topics] == [("t", 20, 3.0)]


def test_first_minutes_of_a_month_forecast_no_more_than_an_hour_does() -> None:
    now_ms = int(datetime(2026, 4, 1, 0, 1, tzinfo=UTC).timestamp() * 1000)
    assert elapsed_share(now_ms) == pytest.approx(1 / 720)


def test_page_after_the_last_is_the_last() -> None:
    rows = list(range(PAGE + 1))
    assert page_of(rows, 9).rows == [PAGE]
    assert (page_of(rows, 1).pages, page_of([], 3).page) == (2, 1)
