"""Batches of more records than are always walked: what no client could read is refused, and a
head that contradicts its records is corrected.

Covers: kafkawire.codec.walk, kafkawire.log.append.long_batch, kafkawire.log.partition.partition.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkawire.codec.batches import HEAD_BYTES, Record, pack, read_head, records
from kafkawire.codec.compression import LZ4, ZSTD, compress
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.walk import (
    FEW_RECORDS,
    LONG_BYTES,
    LONG_PACKED_BYTES,
    MANY_RECORDS,
    newest_of_ends,
)
from tests.kit.client import Client
from tests.kit.codec.odd_batches import (
    COUNT,
    ODD,
    T0,
    plain,
    records_section,
    unreadable,
    with_newest,
    with_payload,
)
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.server import port_of, running

FEW = plain("few")
LONG = [Record(n, T0 + n, b"k%d" % n, b"v" * 100) for n in range(30_000)]
"""Records of a batch that is not decompressed on the event loop."""


async def produced(client: Client, raw: bytes) -> tuple[int, str | None]:
    answer = await client.call(produce("t", raw), 9)
    row = answer.responses[0].partition_responses[0]
    return row.error_code, row.error_message


async def stored(client: Client) -> bytes:
    answer = await client.call(fetch("t", 0, partition_max_bytes=8 << 20), 12)
    return bytes(answer.responses[0].partitions[0].records or b"")


@pytest.mark.parametrize("items", [FEW, pytest.param(LONG[:12_000], marks=pytest.mark.slow)])
async def test_batches_that_no_client_could_read_are_refused(
    client: Client, items: list[Record]
) -> None:
    await make(client, "t", max_message_bytes="10000000")
    for name, raw in unreadable(items).items():
        code, text = await produced(client, raw)
        assert (name, code) == (name, ErrorCode.INVALID_RECORD)
        assert text
    assert await stored(client) == b"", "nothing was stored"


async def test_odd_batches_are_accepted(client: Client) -> None:
    await make(client, "t")
    for name, odd in ODD.items():
        assert (name, *await produced(client, odd.data)) == (name, 0, None)


@pytest.mark.parametrize("codec", [0, LZ4, ZSTD])
@pytest.mark.parametrize("items", [FEW, pytest.param(LONG, marks=pytest.mark.slow)])
@pytest.mark.parametrize("newest", [0, -1, T0 - 1, T0 + 5])
async def test_newest_timestamp_that_is_too_old_is_corrected(
    client: Client, codec: int, items: list[Record], newest: int
) -> None:
    """0 and -1: of clients that leave it unset; the others: of those that take the first one."""
    await make(client, "t", max_message_bytes="10000000")
    raw = with_newest(pack(items, codec=codec), newest)
    assert await produced(client, raw) == (0, None)
    found = await stored(client)
    assert read_head(found).max_timestamp == items[-1].timestamp
    assert len(list(records(found))) == len(items)


def broken_inside(count: int, size: int, codec: int) -> list[bytes]:
    """Batches with sound ends: one has garbage for a record, one has a record too few."""
    items = [Record(n, T0, b"k", bytes(size)) for n in range(count)]
    raw, middle = records_section(items), count // 2
    begin = len(records_section(items[:middle]))
    end = len(records_section(items[: middle + 1]))
    garbage = raw[:begin] + b"\xff" * (end - begin) + raw[end:]
    sections = (garbage, raw[:begin] + raw[end:])
    return [with_payload(items, codec, bytes(compress(codec, each))).data for each in sections]


@pytest.mark.parametrize("codec", [0, LZ4, ZSTD])
@pytest.mark.parametrize(("count", "size"), [(FEW_RECORDS, 10), (40, 2 * LONG_BYTES)])
async def test_lengths_of_few_or_long_records_must_add_up(
    client: Client, codec: int, count: int, size: int
) -> None:
    await make(client, "t")
    for raw in broken_inside(count, size, codec):
        assert (await produced(client, raw))[0] == ErrorCode.INVALID_RECORD
    assert await stored(client) == b""


async def test_lengths_of_very_many_long_records_must_add_up(client: Client) -> None:
    await make(client, "t")
    for raw in broken_inside(MANY_RECORDS + 1, LONG_PACKED_BYTES, ZSTD):
        assert (await produced(client, raw))[0] == ErrorCode.INVALID_RECORD


async def test_every_record_is_checked_with_full_validation(tmp_path: Path) -> None:
    async with running(tmp_path / "data", record_validation="full") as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        for raw in broken_inside(1000, 10, 0) + broken_inside(1000, 10, ZSTD):
            assert (await produced(client, raw))[0] == ErrorCode.INVALID_RECORD
        await client.close()


async def test_only_head_is_checked_where_heads_are_trusted(tmp_path: Path) -> None:
    async with running(tmp_path / "data", record_validation="head") as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        for raw in (unreadable(FEW)["gzip twice"], with_newest(pack(FEW), T0 + 5)):
            assert await produced(client, raw) == (0, None)
        assert await produced(client, with_newest(pack(FEW), 0)) == (0, None)
        found = await stored(client)
        assert read_head(found, len(found) - len(pack(FEW))).max_timestamp == FEW[-1].timestamp
        await client.close()


def section(items: list[Record]) -> memoryview:
    return memoryview(pack(items))[HEAD_BYTES:]


def test_ends_of_batches_are_found() -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(500):
        count = rng.choice([9, 33, 64, 65, 129, 1000, 9000])
        size = rng.choice([0, 3, 100, 1000]) if count < 9000 else 3
        items = [
            Record(n, T0 + rng.randrange(-3, 99), None, rng.randbytes(size)) for n in range(count)
        ]
        try:
            newest = newest_of_ends(section(items), count, items[0].timestamp)
        except IndexError:
            assert count <= 64, "its offset delta may be anywhere in the last record"
            continue
        found += 1
        assert newest == max(items[0].timestamp, items[-1].timestamp)
    assert found > 450


def test_ends_with_long_numbers_are_found() -> None:
    items = [Record(n, T0 + n * 10**9, b"k", b"v", [("h", b"x")]) for n in range(COUNT)]
    assert newest_of_ends(section(items), COUNT, T0) == items[-1].timestamp
    items = [Record(n, T0 - n * 10**9, b"k", b"v" * 9000) for n in range(COUNT)]
    assert newest_of_ends(section(items), COUNT, T0) == T0


@pytest.mark.parametrize("wrong", ["count", "cut", "longer", "empty", "large"])
def test_ends_that_do_not_fit_are_not_found(wrong: str) -> None:
    items = [Record(n, T0 + n, None, b"v" * 20) for n in range(COUNT)]
    whole, count = section(items), COUNT
    if wrong == "count":
        count += 1
    elif wrong == "cut":
        whole = whole[:-1]
    elif wrong == "longer":
        whole = memoryview(bytes(whole) + b"\0")
    elif wrong == "empty":
        whole = whole[:0]
    else:
        count = 100
        items = [Record(n, T0, None, b"v" * 20) for n in range(count - 1)]
        whole = section([*items, Record(count - 1, T0, None, bytes(70_000))])
    with pytest.raises(IndexError):
        newest_of_ends(whole, count, T0)
