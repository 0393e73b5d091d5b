"""The Java consumer with `client.rack`: it reads old records at the broker of its rack, which it
finds among the replicas in Metadata, and the others at the leader.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.java.conftest import CLASSES
from tests.java.tools import ToolServer
from tests.kit.log.transactional import Producer
from tests.kit.racks import Racks, racks
from tests.kit.tier.commands import buckets_in_memory  # noqa: F401  (a fixture, by name)
from tests.kit.tier.fake_bucket import FakeBucket

TIME_LIMIT_S = 120


def consume(tools: ToolServer, made: Racks, *words: str) -> list[str]:
    """Run the console consumer of rack b."""
    arguments = ["--bootstrap-server", made.bootstrap(1), "--topic", "t", "--from-beginning"]
    arguments += ["--command-property", "client.rack=b", "--timeout-ms", "60000", *words]
    done = tools.run(CLASSES["ConsoleConsumer"], arguments, "", TIME_LIMIT_S)
    assert done.code == 0, done
    return done.stdout.split()


async def test_console_consumer(
    tool_server: ToolServer, tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with racks(tmp_path) as made:
        await made.create()
        old = [b"old-%d" % at for at in range(500)]
        producer = Producer(100)
        for at in range(0, len(old), 100):
            await made.append(*old[at : at + 100])
            await made.transaction(producer, b"aborted", commit=False)
            await made.upload()
        made.pause()
        tail = [b"tail-%d" % at for at in range(50)]
        await made.append(*tail)
        wanted = [value.decode() for value in old + tail]
        words = "--max-messages", str(len(wanted)), "--isolation-level", "read_committed"
        found = await asyncio.to_thread(consume, tool_server, made, *words)
        assert found == wanted
        assert made.two.counts.replica_bytes == made.two.counts.fetched_bytes
        assert made.two.counts.replica_bytes > made.one.counts.fetched_bytes > 0
