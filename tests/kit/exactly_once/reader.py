"""Readers over any connection: committed and uncommitted fetches, and committed offsets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.list_transactions import ListTransactionsRequest
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from tests.kit.exactly_once.batches import Row, committed, read
from tests.kit.exactly_once.history import Final, History, Key, Partition
from tests.kit.exactly_once.producer import RETRY, Lost, Net, Stuck, code, repeated

COMMITTED, UNCOMMITTED = 1, 0
OUT_OF_RANGE, CORRUPT_MESSAGE, UNKNOWN_TOPIC, UNSTABLE = 1, 2, 3, 88
AT_REST = {"Empty", "CompleteCommit", "CompleteAbort"}
SETTLE_S = 120.0
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Page:
    """One fetched piece: rows of [start, end) for the isolation level."""

    start: int
    end: int
    rows: list[Row]
    stable: int
    high: int
    log_start: int


class Gone(Exception):
    """The topic does not exist (any more)."""


class Unreadable(AssertionError):
    """The records at an offset are damaged."""


async def fetch(
    net: Net, partition: Partition, offset: int, isolation: int, max_bytes: int = 1 << 20
) -> Page | None:
    """One fetch; None if the offset is out of range. Raises Lost, Gone and Unreadable."""
    topic, index = partition
    row = FetchPartition(index, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=200, min_bytes=1, max_bytes=1 << 22, isolation_level=isolation,
        topics=[FetchTopic(topic, partitions=[row])],
    )  # fmt: skip
    found = (await net.call(request, 12)).responses[0].partitions[0]
    if found.error_code == OUT_OF_RANGE:
        return None
    if found.error_code == UNKNOWN_TOPIC:
        raise Gone(topic)
    if found.error_code in RETRY:
        raise Lost(f"Fetch: {found.error_code}")
    if found.error_code == CORRUPT_MESSAGE:
        raise Unreadable(f"{partition} at offset {offset}")
    assert not found.error_code, f"Fetch of {partition} from {offset}: {found.error_code}"
    batches = list(read(bytes(found.records or b"")))
    if isolation == COMMITTED:
        aborted = [(a.producer_id, a.first_offset) for a in found.aborted_transactions]
        rows = committed(batches, aborted)
    else:
        rows = [each for batch in batches for each in batch.rows]
    end = batches[-1].last + 1 if batches else offset
    rows = [each for each in rows if each[0] >= offset]
    stable, high = found.last_stable_offset, found.high_watermark
    return Page(offset, end, rows, stable, high, found.log_start_offset)


async def poll(
    net: Net, history: History, reader: str, partition: Partition, offset: int, max_bytes: int
) -> Page | None:
    """One read_committed fetch that is reported to the history; None: nothing was answered."""
    asked = net.now()
    try:
        page = await fetch(net, partition, offset, COMMITTED, max_bytes)
    except (Lost, Gone):
        return None
    if page is None:
        return None
    history.polled(
        reader, *partition, page.start, page.end, page.rows, asked, net.now(), page.stable,
        page.high,
    )  # fmt: skip
    return page


async def read_all(net: Net, partition: Partition, isolation: int) -> Final:
    """Everything in a partition that can be read, from its start. Raises Gone and Stuck."""
    offset, began = 0, net.now()
    rows: list[Row] = []
    damaged: list[int] = []
    start = -1
    while True:
        try:
            page = await fetch(net, partition, offset, isolation)
        except Unreadable:
            damaged.append(offset)
            offset += 1
            continue
        except Lost:
            page = None
            await net.sleep(PAUSE_S)
        else:
            if page is None:
                offset = await _start_of(net, partition)
        if net.now() - began > SETTLE_S:
            raise Stuck(f"{partition} cannot be read from {offset}")
        if page is None:
            continue
        start = page.log_start if start < 0 else start
        rows += page.rows
        end = page.stable if isolation == COMMITTED else page.high
        offset = page.end
        if offset >= end:
            read_committed = rows if isolation else []
            return Final(start, page.stable, page.high, read_committed, rows, damaged)
        if page.end == page.start:
            await net.sleep(PAUSE_S)


async def _start_of(net: Net, partition: Partition) -> int:
    """The log start of a partition whose offset 0 is gone: probe from the answer of a fetch."""
    topic, index = partition
    row = FetchPartition(index, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic, partitions=[row])])
    try:
        found = (await net.call(request, 12)).responses[0].partitions[0]
    except Lost:
        return 0
    return max(0, int(found.log_start_offset))


async def committed_offset(net: Net, key: Key, *, stable: bool) -> int | None:
    """A group's committed offset; None while a transaction may change it, or without an answer."""
    group, topic, index = key
    request = OffsetFetchRequest(
        group, [OffsetFetchRequestTopic(topic, [index])], require_stable=stable
    )
    try:
        answer = await net.call(request, 7)
    except Lost:
        return None
    if answer.error_code in RETRY:
        return None
    assert not answer.error_code, f"OffsetFetch of {key}: {answer}"
    row = answer.topics[0].partitions[0]
    if row.error_code == UNSTABLE or row.error_code in RETRY:
        return None
    assert not row.error_code, f"OffsetFetch of {key}: {answer}"
    return int(row.committed_offset)


async def check_offset(net: Net, history: History, key: Key, *, stable: bool) -> int | None:
    """Like `committed_offset`, reported to the history."""
    asked = net.now()
    found = await committed_offset(net, key, stable=stable)
    if found is not None:
        history.read_offset(*key, found, stable, asked, net.now())
    return found


async def finish(net: Net, history: History, partitions: list[Partition], keys: list[Key]) -> None:
    """Wait until nothing is open any more, then read everything; what stays open is reported as
    hanging."""
    began = net.now()
    while states := await _open_states(net):
        if net.now() - began > SETTLE_S:
            history.hanging += states
            break
        await net.sleep(PAUSE_S)
    for partition in partitions:
        final = await _settled(net, partition)
        history.final[partition] = final
    for key in keys:
        began = net.now()
        while (offset := await committed_offset(net, key, stable=True)) is None:
            if net.now() - began > SETTLE_S:
                history.hanging.append(f"{key} is unstable")
                break
            await net.sleep(PAUSE_S)
        if offset is not None:
            history.final_offsets[key] = offset


async def _settled(net: Net, partition: Partition) -> Final:
    """The partition as both isolation levels see it, once they agree on its end."""
    began = net.now()
    while True:
        final = await read_all(net, partition, COMMITTED)
        if final.stable == final.high or net.now() - began > SETTLE_S:
            break
        await net.sleep(PAUSE_S)
    everything = await read_all(net, partition, UNCOMMITTED)
    return replace(final, written=everything.written, damaged=everything.damaged)


async def _open_states(net: Net) -> list[str]:
    answer: Any
    answer, _ = await repeated(net, ListTransactionsRequest(), 1, code)
    return [
        f"{each.transactional_id} is {each.transaction_state}"
        for each in answer.transaction_states
        if each.transaction_state not in AT_REST
    ]
