"""Take the journals of a broker from a follower, into a data folder that has none.

The followers in the stored set have everything that was acknowledged. Of those that answer, the one
with the longest copy is used. First it promises, durably, to take nothing more of earlier processes
of the broker: these can acknowledge nothing any more, since they wait for each follower in the set,
and SQL does not take another set from them. Then its journals are read; recovery finds in them what
a start in the former data folder would have found, and ends the log where they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
from collections.abc import Sequence

from kafkawire.log.io.gathered_write import write_whole
from kafkawire.log.io.ports import Env, File
from kafkawire.log.journal.file import journal_name
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.log.replicas.network import Network
from kafkawire.log.replicas.source import FAILURES, CopyReader, FollowerSource, reading
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.objectstore.backoff import wait_s
from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet
from kafkawire.replication.messages import CopyMessage

logger = logging.getLogger(__name__)

MAX_WAIT_S = 5.0
"""Between two attempts while no follower answers: a start waits for them as long as it takes."""
REPORT_BYTES = 128 << 20
"""A line of the log for each of them."""


async def install(
    env: Env,
    network: Network,
    reader: CopyReader,
    stored: ReplicaSet,
    followers: Sequence[FollowerRow],
    home: str,
) -> int:
    """Copy the journals of a follower in the stored set to `home`, durably; return their bytes.

    Waits while none of them answers. Raises IdentityError if no follower is in the set: only the
    former data folder has what was acknowledged then."""
    members = [each for each in followers if each.replica_id in stored.in_sync]
    if not members:
        raise IdentityError(
            f"{home} has nothing of broker {reader.node_id}, and no follower was in sync when it "
            "last served: start it with the data folder that it was last used with"
        )
    failures = 0
    while True:
        try:
            return await _install_once(env, network, reader, stored, members, home)
        except BrokerSuperseded:
            raise
        except FAILURES as failure:
            failures += 1
            if failures == 1:
                names = ", ".join(f"{each.host}:{each.port}" for each in members)
                logger.warning(
                    "the start of broker %d waits for a follower that was in sync (%s): %s",
                    reader.node_id, names, failure or "no answer",
                )  # fmt: skip
        await env.sleep(wait_s(failures, MAX_WAIT_S, env.random.random()))


async def _install_once(
    env: Env,
    network: Network,
    reader: CopyReader,
    stored: ReplicaSet,
    members: Sequence[FollowerRow],
    home: str,
) -> int:
    async with contextlib.AsyncExitStack() as stack:
        found = await asyncio.gather(
            *(_listed(stack, network, reader, stored, each) for each in members)
        )
        copies = [each for each in found if each is not None]
        if not copies:
            raise ConnectionError("none of them answers with a copy")
        source, _ = max(copies, key=lambda each: each[1].end)
        await source.fence()
        copy = await source.list(stored.broker_epoch)  # it may have grown before the fence
        size = sum(length for _, length in copy.files)
        logger.info(
            "copying %d bytes of journals of broker %d from the follower at %s",
            size, reader.node_id, source.name,
        )  # fmt: skip
        folder = os.path.join(home, "journals")
        await env.offload.submit("files", _clear, env, folder)
        done = 0
        for number, length in copy.files:
            await _copy(env, source, os.path.join(folder, journal_name(number)), number, length)
            if (done + length) // REPORT_BYTES > done // REPORT_BYTES:
                logger.info("copied %d of %d bytes of journals", done + length, size)
            done += length
        await env.offload.submit("files", env.fs.sync_dir, folder)
        return size


async def _listed(
    stack: contextlib.AsyncExitStack,
    network: Network,
    reader: CopyReader,
    stored: ReplicaSet,
    follower: FollowerRow,
) -> tuple[FollowerSource, CopyMessage] | None:
    """Connect to a follower; return the connection and what it has, None if it does not answer."""
    try:
        source = await stack.enter_async_context(reading(network, reader, follower))
        return source, await source.list(stored.broker_epoch)
    except FAILURES as failure:
        logger.warning(
            "the follower at %s:%d, which was in sync, gives no copy of the log of broker %d: %s",
            follower.host, follower.port, reader.node_id, failure or "no answer",
        )  # fmt: skip
        return None


async def _copy(env: Env, source: FollowerSource, path: str, number: int, length: int) -> None:
    """Copy one journal, durably."""
    file = await env.offload.submit("files", lambda: env.fs.open(path, create=True))
    try:
        at = 0
        async for data in source.chunks(number, length):
            await env.offload.submit("files", _write, file, data, at)
            at += len(data)
        await env.offload.submit("files", file.sync)
    finally:
        file.close()


def _clear(env: Env, folder: str) -> None:
    """Create the folder, or remove from it what an earlier attempt has copied."""
    env.fs.makedirs(folder)
    for name in env.fs.listdir(folder):
        env.fs.remove(os.path.join(folder, name))


def _write(file: File, data: bytes, at: int) -> None:
    write_whole(file, [data], at, len(data))
