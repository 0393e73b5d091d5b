"""Unexpected exceptions: the tier continues, and the exception is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.tiering.publishing.publisher import Rounds
from kafkawire.tiering.store.process import StoreProcess
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.tiering.test_broker import QUICK, tier_of

pytestmark = pytest.mark.slow


async def test_unexpected_exception_while_attaching_or_uploading_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened, uploaded = Rounds.open, StoreProcess.upload
    failures = {"open": 0, "upload": 0}

    async def open_later(self: Rounds, **arguments: Any) -> None:
        if failures["open"] < 2:
            failures["open"] += 1
            raise RuntimeError("a defect of attaching")
        await opened(self, **arguments)

    async def upload_later(self: StoreProcess, *arguments: Any) -> Any:
        if failures["upload"] < 2:
            failures["upload"] += 1
            raise RuntimeError("a defect of uploading")
        return await uploaded(self, *arguments)

    monkeypatch.setattr(Rounds, "open", open_later)
    monkeypatch.setattr(StoreProcess, "upload", upload_later)
    tier = {"tier_url": str(tmp_path / "tier"), "tier_retry_max_ms": "100"}
    async with running(tmp_path / "data", **QUICK, **tier) as server:
        await until(lambda: tier_of(server).state == "attached", "it is attached")
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.call(produce("t", batch(b"v")), 7)
        partition = server.broker.table.find_by_name("t", 0)
        await until(lambda: partition.commit_offset == 1, "it is in the tier")
        await client.close()
    assert failures == {"open": 2, "upload": 2}
    assert "a defect of attaching" in caplog.text
    assert "a defect of uploading" in caplog.text
