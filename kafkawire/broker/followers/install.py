"""Copy the journals of a broker from a follower, into a data folder that has none.

The followers in the stored set have everything that was acknowledged. Of those that answer, the one
with the longest copy is used, or the next one if that cannot be read. First it promises, durably,
to refuse the logs of earlier processes of the broker: these can acknowledge nothing any more, since
they wait for each follower in the set, and SQL accepts no other set from them. Then its journals
are read; recovery finds in them what a start in the former data folder would have found, and ends
the log where they end.

Where machines take over from each other, a start that gets no copy does not keep the broker:
another machine may have a complete folder of it. So a start is registered once `CopySearch` has
found a copy, and ends if that cannot be read after all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os.path
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafkawire.broker.liveness.takeover import SEARCH_S
from kafkawire.log.append.follower_sink import leads_replicated
from kafkawire.log.followers.network import Network
from kafkawire.log.followers.source import (
    FAILURES,
    CopyReader,
    FollowerSource,
    list_copies,
    reading,
)
from kafkawire.log.io.gathered_write import write_whole
from kafkawire.log.io.ports import Env, File, LogError
from kafkawire.log.journal.file import journal_name
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.log_lines import address_of
from kafkawire.metadata import heartbeats
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import BrokerSuperseded, SqlStore
from kafkawire.objectstore.backoff import wait_s
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet
from kafkawire.replication.journal_copy import position_text
from kafkawire.replication.messages import CopyMessage

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_WAIT_S = 5.0
"""Between two attempts while no follower can be read: a start waits for them as long as it
takes."""
MAX_ATTEMPTS = 5
"""Of a registered start where another machine may have the folder: it takes some seconds."""
REPORT_BYTES = 128 << 20
"""A line of the log for each of them."""


async def install(
    env: Env,
    network: Network,
    reader: CopyReader,
    stored: ReplicaSet,
    read_followers: Callable[[], Awaitable[Sequence[FollowerRow]]],
    home: str,
    max_attempts: int | None = None,
) -> int:
    """Copy the journals of a follower in the stored set to `home`, durably; return their bytes.

    While none of them can be read it waits, as long as it takes or `max_attempts` allow, and reads
    the registered followers again each time: one that was started again may have another address.
    Raises what `read_followers` raises; IdentityError if no follower is in the set: only the former
    data folder has what was acknowledged then; LogError if the disk of `home` fails; NoCopy;
    BrokerSuperseded."""

    async def read_members() -> list[FollowerRow]:
        return [each for each in await read_followers() if each.replica_id in stored.in_sync]

    members = await read_members()
    if not members:
        raise IdentityError(
            f"{home} has nothing of broker {reader.node_id}, and no follower was in sync when it "
            "last served: start it with the data folder that it was last used with"
        )
    installation = _Installation(env, network, reader, stored.broker_epoch, home)
    failures = 0
    while (size := await installation.attempt(members)) is None:
        failures += 1
        if failures == max_attempts:
            raise NoCopy(f"no follower gives a copy of the log of broker {reader.node_id}")
        if failures == 1:
            _report_wait(reader.node_id, members)
        await env.sleep(wait_s(failures, MAX_WAIT_S, env.random.random()))
        with contextlib.suppress(OSError):  # SQL may be away: the addresses are those of before
            members = await read_members() or members
    return size


class NoCopy(LogError):
    """No follower that was in sync gives a copy of the log."""


class CopySearch:
    """Finds out whether a start in an empty folder can get what broker `node_id` has
    acknowledged."""

    def __init__(
        self, env: Env, metadata: SqlStore, network: Network, cluster_id: str, node_id: int
    ) -> None:
        self._env = env
        self._metadata = metadata
        self._network = network
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._reported = False

    async def wait(self, after: int) -> None:
        """Return when there is a copy, or it is known that there is none, or the broker does not
        have the epoch `after` any more, so that this start cannot be registered. Raises what SQL
        raises."""
        while not await self._finds(after, lost=True):
            await self._env.sleep(SEARCH_S)

    async def finds(self, *, lost: bool) -> bool:
        """Return whether a follower that was in sync has a copy, or none is needed; `lost` if no
        follower was in sync, so that only the former data folder has everything. Raises what SQL
        raises."""
        return await self._finds(None, lost=lost)

    async def _finds(self, after: int | None, *, lost: bool) -> bool:
        node_id, metadata = self._node_id, self._metadata

        def load(session: Session) -> tuple[int, ReplicaSet | None, list[FollowerRow]]:
            epoch, _ = heartbeats.read(session, node_id)
            followers = replica_sets.load_followers(session)
            return epoch, replica_sets.load(session, node_id), followers

        epoch, stored, followers = await metadata.transact(load)
        if stored is None or after not in (None, epoch):
            return True
        members = [each for each in followers if each.replica_id in stored.in_sync]
        reader = CopyReader(self._cluster_id, node_id, epoch)
        copies = await list_copies(self._network, reader, members, stored.broker_epoch)
        if any(copy is not None and copy.end >= copy.committed for copy in copies):
            return True
        if not leads_any(await metadata.reload(), node_id):
            return True
        if members and not self._reported:
            _report_wait(node_id, members)
            self._reported = True
        return lost and not members


def leads_any(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker leads partitions with durability=replicated."""
    return any(leads_replicated(info, node_id) for info in catalog.by_name.values())


def _report_wait(node_id: int, members: Sequence[FollowerRow]) -> None:
    logger.warning(
        "the start of broker %d waits for a follower that was in sync (%s): none of them gives a "
        "copy of its log, and only they have everything that was acknowledged",
        node_id, ", ".join(address_of(each.host, each.port) for each in members),
    )  # fmt: skip


@dataclass(slots=True)
class _Installation:
    """Attempts to copy the log that was written in `epoch` to `home`. `reported`: the last failure
    of each follower that was logged."""

    env: Env
    network: Network
    reader: CopyReader
    epoch: int
    home: str
    reported: dict[str, str] = field(default_factory=dict)

    async def attempt(self, members: Sequence[FollowerRow]) -> int | None:
        """Copy the journals of one of these followers, the longest copy first; return their bytes,
        None if none of them can be read. Raises LogError, BrokerSuperseded."""
        listed = await asyncio.gather(*map(self._list, members))
        found = [(copy, each) for copy, each in zip(listed, members, strict=True) if copy]
        committed = max((copy.committed for copy, _ in found), default=0)
        for copy, follower in sorted(found, key=lambda each: each[0].end, reverse=True):
            if copy.end < committed:
                self._report(
                    follower,
                    f"it ends at {position_text(copy.end)}, and records up to "
                    f"{position_text(committed)} were acknowledged: files of it were lost",
                )
                continue
            try:
                async with reading(self.network, self.reader, follower) as source:
                    await source.fence()
                    return await self._copy_all(source)
            except BrokerSuperseded:
                raise
            except FAILURES as failure:
                self._report(follower, str(failure))
        return None

    async def _list(self, follower: FollowerRow) -> CopyMessage | None:
        """Return what a follower has of the log; None if it has no copy, or does not answer."""
        try:
            async with reading(self.network, self.reader, follower) as source:
                return await source.list(self.epoch)
        except FAILURES as failure:
            self._report(follower, str(failure))
            return None

    def _report(self, follower: FollowerRow, why: str) -> None:
        """Log why a copy is not used, unless it is the last line about this follower again."""
        if self.reported.get(follower.replica_id) != why:
            self.reported[follower.replica_id] = why
            logger.warning(
                "the copy of the log of broker %d of the follower at %s:%d, which was in sync, "
                "cannot be used: %s. That of another one is used if possible",
                self.reader.node_id, follower.host, follower.port, why or "no answer",
            )  # fmt: skip

    async def _copy_all(self, source: FollowerSource) -> int:
        """Copy the journals of a fenced follower; return their bytes. Raises FAILURES of the
        follower, LogError if the disk here fails."""
        folder = os.path.join(self.home, "journals")
        copy = await source.list(self.epoch)  # it may have grown before the fence
        size = sum(length for _, length in copy.files)
        logger.info(
            "copying %d bytes of journals of broker %d from the follower at %s",
            size, self.reader.node_id, source.name,
        )  # fmt: skip
        await self._on_disk(folder, _clear, self.env, folder)
        done = 0
        try:
            for number, length in copy.files:
                await self._copy(source, os.path.join(folder, journal_name(number)), number, length)
                if (done + length) // REPORT_BYTES > done // REPORT_BYTES:
                    logger.info("copied %d of %d bytes of journals", done + length, size)
                done += length
            await self._on_disk(folder, self.env.fs.sync_dir, folder)
        except LogError:
            with contextlib.suppress(OSError):  # other brokers may need the space
                await self.env.offload.submit("files", _clear, self.env, folder)
            raise
        return size

    async def _copy(self, source: FollowerSource, path: str, number: int, length: int) -> None:
        """Copy one journal, durably."""
        file = await self._on_disk(path, lambda: self.env.fs.open(path, create=True))
        try:
            at = 0
            async for data in source.chunks(number, length):
                await self._on_disk(path, _write, file, data, at)
                at += len(data)
            await self._on_disk(path, file.sync)
        finally:
            file.close()

    async def _on_disk(self, path: str, fn: Callable[..., T], *args: Any) -> T:
        """Call a function that changes a file or folder here, in a thread. Raises LogError if it
        fails: so it would with the copy of any follower."""
        try:
            return await self.env.offload.submit("files", fn, *args)
        except OSError as failure:
            raise LogError(
                f"{path} cannot be written ({failure.strerror or failure}), so the log of broker "
                f"{self.reader.node_id} cannot be copied from a follower: make space or repair the "
                "disk, and start again"
            ) from failure


def _clear(env: Env, folder: str) -> None:
    """Create the folder, or remove the files of an earlier attempt from it."""
    env.fs.makedirs(folder)
    for name in env.fs.listdir(folder):
        env.fs.remove(os.path.join(folder, name))


def _write(file: File, data: bytes, at: int) -> None:
    write_whole(file, [data], at, len(data))
