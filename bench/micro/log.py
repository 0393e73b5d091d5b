"""The cost of the log alone: appends of small and large batches, no network, no SQL.

`python bench/micro/log.py` prints microseconds per append (its share of the flush included) for 16
one-record batches per write batch, the same idempotent, and megabytes a second for 100 KB batches.
Bounded: a few hundred megabytes in a temporary folder, deleted at the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from types import SimpleNamespace

from kafkawire.codec.batches import build
from kafkawire.codec.configs.settings import BrokerConfig, TopicConfig
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.disk import real_env
from kafkawire.log.journal.directory import Journals
from kafkawire.log.partition.hooks import Hooks
from kafkawire.log.partition.partition import Partition
from kafkawire.metric_counters import TopicTraffic

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]


def make_log(folder: str, partitions: int) -> tuple[CommitLog, list[Partition]]:
    config = BrokerConfig({"flush": "os"})
    env = real_env()
    journals = Journals(env, folder, config.journal_bytes, config.hot_bytes, config.recycle_bytes)
    cut = SimpleNamespace()  # nothing is cut, and no log start moves
    log = CommitLog(env, config, journals, cut, Hooks(lambda rolled: None), cut)  # type: ignore[arg-type]
    journals.start([], [], 1)
    log.start(1 << 32, journals.active.end_log_position)
    config_of_all, traffic = TopicConfig(), TopicTraffic()
    made = [
        Partition(log, n + 1, bytes(16), "bench", n, 0, config_of_all, traffic)
        for n in range(partitions)
    ]
    return log, made


async def small(log: CommitLog, partitions: list[Partition], turns: int, idempotent: bool) -> float:
    """Microseconds of CPU per append, 16 of one record and 100 bytes of value in each write
    batch."""
    loop = asyncio.get_running_loop()
    now_ms = int(time.time() * 1000)
    each = len(partitions)
    pool = []
    for n in range(each):
        more = {"producer_id": n, "producer_epoch": 0, "base_sequence": 0} if idempotent else {}
        pool.append(build([(None, bytes(100))], timestamp_ms=now_ms, **more))
    blank = [bytes(batch) for batch in pool]
    views = [memoryview(batch) for batch in pool]
    spent = 0.0
    for turn in range(turns):
        for n in range(each):
            if idempotent:
                data = build(
                    [(None, bytes(100))],
                    timestamp_ms=now_ms,
                    producer_id=n,
                    producer_epoch=0,
                    base_sequence=turn,
                )
                views[n] = memoryview(data)
            else:
                pool[n][:] = blank[n]
        done = loop.create_future()
        before = time.thread_time()
        for n in range(each):
            partitions[n].append(views[n], now_ms)
        log.after_write(done.set_result)
        log._write_queued()
        spent += time.thread_time() - before
        await done
        log.scheduled = False
        if log.writer.slow:
            await asyncio.sleep(0.05)
            log.writer.slow = False
        await asyncio.sleep(0)
    return spent / turns / each * 1e6


async def bulk(log: CommitLog, partition: Partition, megabytes: int) -> float:
    """Megabytes per second of CPU in batches of 100 KB, ten per write batch."""
    now_ms = int(time.time() * 1000)
    data = build([(None, os.urandom(1000)) for _ in range(98)], timestamp_ms=now_ms)
    blank = bytes(data)
    copies = [bytearray(blank) for _ in range(10)]
    loop = asyncio.get_running_loop()
    turns = megabytes * 1_000_000 // (10 * len(data))
    spent = 0.0
    for _ in range(turns):
        for copy in copies:
            copy[:61] = blank[:61]
        done = loop.create_future()
        before = time.thread_time()
        for copy in copies:
            partition.append(memoryview(copy), now_ms)
        log.after_write(done.set_result)
        await done
        spent += time.thread_time() - before
    return turns * 10 * len(data) / spent / 1e6


def speed() -> float:
    """Nanoseconds of one empty event-loop iteration: 16 to 20 on a quiet 2.5 GHz core with Python
    3.11.

    On a shared machine all figures below grow with it.
    """
    before = time.thread_time()
    for _ in range(2_000_000):
        pass
    return (time.thread_time() - before) / 2_000_000 * 1e9


async def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    with tempfile.TemporaryDirectory(
        prefix="micro-log-", dir=os.environ.get("BENCH_DIR")
    ) as folder:
        log, partitions = make_log(folder, 16)
        await small(log, partitions, 200, False)
        print(f"an empty loop turn:           {speed():.1f} ns")
        print(f"append, 170 bytes, 16 a turn: {await small(log, partitions, turns, False):.2f} us")
        cost = await small(log, partitions, turns, True)
        print(f"append, idempotent:           {cost:.2f} us")
        print(f"append, 100 KB:               {await bulk(log, partitions[0], 400):.0f} MB/s")
        log.disk_sink.stop()
        log.env.offload.close()
        log.journals.close()


if __name__ == "__main__":
    loop = new_event_loop()
    loop.run_until_complete(main())
