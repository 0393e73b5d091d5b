"""A connection to a follower that reads the copy of a log, or has copies deleted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from kafkawire.log.followers.link import greeting
from kafkawire.log.followers.network import Network, open_streams
from kafkawire.log.io.ports import LogError
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK
from kafkawire.log_lines import address_of
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication import wire
from kafkawire.replication.messages import (
    FROM_FOLLOWER,
    AwaitMessage,
    BytesMessage,
    ChallengeMessage,
    CopyMessage,
    ErrorMessage,
    FencedMessage,
    FenceMessage,
    ForgetMessage,
    ListMessage,
    Message,
    Purpose,
    ReadMessage,
    WireError,
)

ANSWER_S = 10.0
"""Limit for one message of a follower: it reads at most a mebibyte for it."""
ANSWERS_S = 2.0
"""Limit for the answers of several followers that are only compared: one that answers later, or not
at all, counts as one that is away."""
CHUNK_BYTES = 1 << 20
"""Bytes read at a time; the next ones are read while these are written."""
AHEAD = 4
"""Chunks that are requested before the first of them is written."""
FAILURES = (OSError, TimeoutError, EOFError, WireError)
"""Raised for a follower that cannot be used."""


@dataclass(frozen=True, slots=True)
class CopyReader:
    """The process that reads a copy."""

    cluster_id: str
    node_id: int
    broker_epoch: int


@contextlib.asynccontextmanager
async def reading(
    network: Network, reader: CopyReader, follower: FollowerRow
) -> AsyncIterator[FollowerSource]:
    """Connect to a follower for the duration of a block. Raises FAILURES."""
    async with asyncio.timeout(ANSWER_S):
        streams = await open_streams(network, follower.host, follower.port, follower.certificate)
    source = FollowerSource(reader, follower, *streams)
    try:
        await source.greet()
        yield source
    finally:
        streams[1].close()


async def list_copies(
    network: Network, reader: CopyReader, followers: Sequence[FollowerRow], epoch: int
) -> list[CopyMessage | None]:
    """Return what each of these followers has of the log of a process; None for one that has
    nothing of it, or does not answer soon."""

    async def list_copy(follower: FollowerRow) -> CopyMessage | None:
        try:
            # These are only compared: one that answers later counts as away.
            async with asyncio.timeout(ANSWERS_S), reading(network, reader, follower) as source:
                return await source.list(epoch)
        except FAILURES:
            return None

    return await asyncio.gather(*map(list_copy, followers))


class FollowerSource:
    """A connection to a follower for reading."""

    def __init__(
        self,
        process: CopyReader,
        follower: FollowerRow,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._follower = follower
        self._reader = reader
        self._writer = writer
        self._decoder = wire.WireDecoder(FROM_FOLLOWER)
        self.name = address_of(follower.host, follower.port)

    async def greet(self) -> None:
        """Answer the challenge. Raises WireError if it is another follower."""
        challenge = await self._receive()
        if not isinstance(challenge, ChallengeMessage):
            raise WireError("it sends no challenge")
        if challenge.replica_id.hex() != self._follower.replica_id:
            raise WireError("another follower is at this address")
        hello = greeting(
            challenge, self._follower.secret, Purpose.READ, self._process.node_id,
            self._process.broker_epoch, self._process.cluster_id,
        )  # fmt: skip
        self._writer.write(wire.encode(hello))

    async def fence(self) -> None:
        """Make it refuse the logs of earlier processes, durably. Raises BrokerSuperseded if it
        refuses that of this one."""
        self._writer.write(wire.encode(FenceMessage()))
        answer = await self._receive()
        if not isinstance(answer, FencedMessage):
            raise WireError(f"{type(answer).__name__} in answer to a fence")
        if answer.epoch != self._process.broker_epoch:
            raise BrokerSuperseded(self._process.node_id, answer.epoch)

    async def delete_earlier_copies(self) -> None:
        """Request the deletion of copies of earlier processes, which are not needed any more."""
        # A fence is answered, the deletion is not: its answer shows that both were read.
        self._writer.write(wire.encode(ForgetMessage()) + wire.encode(FenceMessage()))
        await self._receive()

    async def list(self, epoch: int) -> CopyMessage:
        """Return what it has of the log of a process."""
        return await self._request_listing(ListMessage(epoch))

    async def wait_for_commit(self, epoch: int, known: int) -> CopyMessage:
        """Return what consumers may read of the log of a process, once that is more than up to the
        log position `known`, or the process has sent a mark."""
        return await self._request_listing(AwaitMessage(epoch, known))

    async def _request_listing(self, request: Message) -> CopyMessage:
        self._writer.write(wire.encode(request))
        answer = await self._receive()
        if not isinstance(answer, CopyMessage):
            raise WireError(f"{type(answer).__name__} in answer to a request for a COPY")
        return answer

    async def chunks(self, number: int, length: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a journal."""
        asked = at = 0
        while at < length:
            # Requests ahead keep the connection busy while chunks are written.
            while asked < length and asked - at < AHEAD * CHUNK_BYTES:
                size = min(CHUNK_BYTES, length - asked)
                read = ReadMessage(number << POSITION_BITS | asked, size)
                self._writer.write(wire.encode(read))
                asked += size
            answer = await self._receive()
            expected = min(CHUNK_BYTES, length - at)
            if not isinstance(answer, BytesMessage):
                raise WireError(f"{type(answer).__name__} in answer to a read")
            # A shorter answer would shift everything after it.
            if len(answer.data) != expected:
                raise WireError(
                    f"it has {len(answer.data)} of {expected} bytes of a part of journal {number}: "
                    "the file was truncated"
                )
            at += expected
            yield bytes(answer.data)

    async def _receive(self) -> Message:
        async with asyncio.timeout(ANSWER_S):
            while (message := self._decoder.next()) is None:
                data = await self._reader.read(CHUNK_BYTES)
                if not data:
                    raise EOFError("it has closed the connection")
                self._decoder.feed(data)
        if isinstance(message, ErrorMessage):
            raise ConnectionRefusedError(message.text)
        return message


class LogBehindCopies(LogError):
    """Followers have acknowledged records that the journals of this folder lack.

    Everything that was acknowledged is in the journals of the folder and at the followers in the
    stored set. If the folder lacks some of it, as after damage to a file, or when an older copy of
    the volume was restored, the start is repeated with a follower's copy instead of this folder.
    """


async def check_end_with_copies(
    network: Network,
    reader: CopyReader,
    epoch: int,
    members: Sequence[FollowerRow],
    end: int,
) -> None:
    """Raise LogBehindCopies if a log that ends at the log position `end` lacks something that one
    of the followers knows as committed. `epoch`: that of the process whose log it is."""

    # A follower that does not answer compares by itself when the log is sent to it.
    copies = await list_copies(network, reader, members, epoch)
    for follower, copy in zip(members, copies, strict=True):
        position = 0 if copy is None else copy.committed
        # Followers would cut their copies where this log ends.
        if position > end:
            raise LogBehindCopies(
                f"the log of broker {reader.node_id} ends at {_text(end)}, and the follower at "
                f"{address_of(follower.host, follower.port)} has records up to {_text(position)} "
                "that were acknowledged: files of this folder were damaged, or are an older copy"
            )


def damaged_folder_error(node_id: int) -> LogBehindCopies:
    """Return the reason for not using a folder whose recovery has found damage."""
    return LogBehindCopies(
        f"journals of broker {node_id} are damaged, and followers have intact copies of them"
    )


def _text(position: int) -> str:
    return f"byte {position & POSITION_MASK} of journal {position >> POSITION_BITS}"
