"""A damaged journal of a real broker with a tier: after the documented command it continues."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafkawire.log.io.disk import real_env
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.file.open import read_lost_ranges
from kafkawire.server.run import Server
from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce, values
from tests.kit.server import port_of, running
from tests.kit.waiting import until
from tests.tiering.test_broker import QUICK, Folder, uploaded

HELD = {**QUICK, "cut_interval_ms": "60000", "tiering_max_lag_ms": "3600000"}
"""Like the quick settings, but records stay in the journals."""
BAD = 3
COUNT = 8

pytestmark = pytest.mark.real


def fsck(data: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and problems of the command."""
    command = [sys.executable, "-m", "kafkawire", "fsck", "--data", str(data), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)[0]["problems"]


def partition_of(server: Server) -> Partition:
    catalog = server.broker.catalog
    return server.broker.log.loader.get(catalog.by_name["t"].partitions[0].number)


async def read(client: Client, offset: int) -> tuple[int, list[bytes]]:
    """Error code and values of one Fetch."""
    row = (await client.call(fetch("t", offset, wait_ms=30_000), 12)).responses[0].partitions[0]
    return row.error_code, values(row)


async def test_damaged_journal_is_cut_and_released_after_repair(tmp_path: Path) -> None:
    bucket, data = Folder(tmp_path / "bucket"), tmp_path / "data"
    sent = [b"value-%d" % at for at in range(COUNT)]
    async with running(data, tier_url=str(bucket.path), **HELD) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        for value in sent:
            await client.call(produce("t", batch(value)), 9)
        log_position = partition_of(server).rows.log_position[BAD]
        await client.close()
    number, position = log_position >> 32, log_position & 0xFFFFFFFF
    journal = data / "brokers" / "1" / "journals" / f"{number:010d}.journal"
    raw = bytearray(journal.read_bytes())
    raw[position + 70] ^= 1
    journal.write_bytes(raw)

    code, problems = fsck(data)
    assert code == 1
    assert any(f"offsets {BAD}-{BAD}" in each["what"] for each in problems), problems
    assert fsck(data, "--repair")[0] == 1
    async with running(data, tier_url=str(bucket.path), **QUICK) as server:
        cutter, partition = server.broker.log.segments.cutter, partition_of(server)
        await until(lambda: partition.number in cutter.damaged, "the cut meets the damage")
        assert partition.cut_offset <= BAD
        client = await Client.connect(port_of(server))
        assert (await read(client, BAD))[0] == 2, "CORRUPT_MESSAGE until it is discarded"
        await client.close()

    code, problems = fsck(data, "--repair", "--skip-lost")
    assert code == 0, problems
    assert fsck(data)[0] == 0
    async with running(data, tier_url=str(bucket.path), **QUICK) as server:
        await uploaded(server, COUNT)
        partition = partition_of(server)
        assert partition.cut_offset == COUNT
        client = await Client.connect(port_of(server))
        found: list[bytes] = []
        for offset in (0, BAD):
            error, some = await read(client, offset)
            assert error == 0
            found += some
        assert list(dict.fromkeys(found)) == sent[:BAD] + sent[BAD + 1 :]
        await client.call(produce("t", batch(b"more")), 9)
        await uploaded(server, COUNT + 1)
        await until(lambda: not journal.exists(), "the damaged journal leaves the journals")
        await client.close()
    assert bucket.end("t") == COUNT + 1
    aside = data / "brokers" / "1" / "quarantine"
    assert (aside / journal.name).read_bytes()[position : position + 100] == bytes(
        raw[position : position + 100]
    )
    assert journal.name in (aside / "report.jsonl").read_text()
    fs = real_env().fs
    segments = [str(path) for path in data.glob("brokers/1/segments/*.segment")]
    ranges = {
        (one.first, one.end)
        for path in segments
        for several in read_lost_ranges(fs, path).values()
        for one in several
    }
    assert ranges == {(BAD, BAD + 1)}
    assert fsck(data)[0] == 0
