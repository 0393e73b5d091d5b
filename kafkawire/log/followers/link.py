"""The connection to one follower: sends it the journals, byte for byte, from where its copy ends.

It is live once the follower has sent where its copy ends. Connects again, with growing pauses,
whenever the connection ends. Messages: kafkawire.replication.wire.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from kafkawire.log.followers.network import Network
from kafkawire.log.io.ports import Env
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK, Journal, Pins
from kafkawire.objectstore.backoff import wait_s
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication import wire
from kafkawire.replication.journal_copy import position_text
from kafkawire.replication.messages import (
    FROM_FOLLOWER,
    VERSION,
    AckMessage,
    BeginMessage,
    ChallengeMessage,
    ErrorMessage,
    FencedMessage,
    ForgetMessage,
    HaveMessage,
    HelloMessage,
    MarkMessage,
    Message,
    Purpose,
    WireError,
)

if TYPE_CHECKING:
    from kafkawire.log.journal.directory import Journals

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""Bytes of one message: a third of a millisecond to copy and to compute the checksum of."""
BUFFERED_BYTES = 2 << 20
"""Bytes that wait in the connection before no more are read from the journals."""
RECENT_BYTES = 4 << 20
"""Bytes before the end of the log that are read on the event loop, since they are in memory; what
is older is read in a thread."""
CONNECT_S = 20.0
"""Limit for a connection and its first messages. They take milliseconds, but a follower finishes an
earlier connection of this process first, for 10 s at most, and may have a slow disk."""
SILENCE_S = 10.0
"""After which a connection without a message from the follower is closed: it answers each MARK,
which is sent twice a second."""
STEADY_S = 1.0
"""After a connection that lasted for so long the next attempt is made without a pause."""
UNREACHABLE = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)
"""Errors of an attempt to connect that no machine has answered."""
MAX_WAIT_S = 2.0
"""Between two attempts to connect: a follower that is back should be in sync soon."""


@dataclass(frozen=True, slots=True)
class ReplicatedLog:
    """A log as its followers know it. `node_id`, `broker_epoch`: its writer; `continues`: the
    epoch of the process whose log this one continues up to the log position `start`, or
    CONTINUES_NONE."""

    cluster_id: str
    node_id: int
    broker_epoch: int
    continues: int
    start: int


def greeting(
    challenge: ChallengeMessage,
    secret: bytes,
    purpose: Purpose,
    node_id: int,
    epoch: int,
    cluster_id: str,
) -> HelloMessage:
    proof = wire.proof(secret, challenge.nonce, purpose, node_id, epoch, cluster_id)
    return HelloMessage(VERSION, purpose, node_id, epoch, proof, cluster_id)


def is_unreachable(failure: BaseException) -> bool:
    """Return whether an attempt to connect has failed without an answer."""
    return isinstance(failure, TimeoutError) or getattr(failure, "errno", None) in UNREACHABLE


class LinkEvents(Protocol):
    """Called with what followers report."""

    def note_connected(self, replica_id: str, end: int) -> None:
        """Note that a follower receives the log from `end` on, where its copy ends."""

    def note_disconnected(self, replica_id: str) -> None:
        """Note that a follower receives nothing any more."""

    def note_refused(self, replica_id: str) -> None:
        """Note that nothing listens at the address of a follower."""

    def note_acknowledged(self, replica_id: str, end: int) -> None:
        """Note that the copy of a follower is durable up to a log position."""

    def note_fenced(self, replica_id: str, epoch: int) -> None:
        """Note that a follower refuses this process, because of one with a higher epoch."""


class FollowerLink:
    """The link to one follower. `failing_s`: since when it does not receive the log; None: it
    does. `unreachable_s`: since when nothing has answered at its address, not even to refuse the
    connection; None: something has."""

    def __init__(
        self,
        env: Env,
        network: Network,
        journals: Journals,
        follower: FollowerRow,
        origin: ReplicatedLog,
        events: LinkEvents,
    ) -> None:
        self._env = env
        self._network = network
        self._journals = journals
        self.follower = follower
        self._origin = origin
        self._events = events
        self._connection: _Connection | None = None
        self.failing_s: float | None = None
        self.unreachable_s: float | None = env.clock.monotonic()
        # Copies of earlier processes are not needed any more: repeated at each connection.
        self._forgets = False
        self._reported = ""
        self._task = env.spawn(self._run(), f"follower {follower.replica_id}")

    def pump(self) -> None:
        if self._connection is not None:
            self._connection.pump()

    def mark(self, committed: int) -> None:
        """Report what is committed and which journals are needed; a follower that has not answered
        for long is disconnected."""
        if self._connection is not None:
            self._connection.mark(committed)

    def delete_earlier_copies(self) -> None:
        """Request the deletion of the follower's copies of earlier processes, now and after each
        later connection."""
        self._forgets = True
        if self._connection is not None:
            self._connection.delete_earlier_copies()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            began_s = self._env.clock.monotonic()
            # A new decoder and buffers: nothing of the last connection is left.
            connection = _Connection(
                self._env, self._journals, self.follower, self._origin, self._events
            )
            lasted = False
            try:
                await self._use(connection)
            except (OSError, TimeoutError, WireError) as failure:
                lasted = connection.live and self._env.clock.monotonic() - began_s >= STEADY_S
                self._report(failure, connection.live, lasted)
                # Nothing listens there: the follower need not be waited for.
                if isinstance(failure, ConnectionRefusedError):
                    self._events.note_refused(self.follower.replica_id)
                # Something has answered, if only to refuse.
                if connection.reached or not is_unreachable(failure):
                    self.unreachable_s = None
                elif self.unreachable_s is None:
                    self.unreachable_s = began_s
            # The loop must not end: the follower would receive nothing until a restart.
            except Exception:
                logger.exception(
                    "a defect: the link to %s has failed; it is tried again", self._name
                )
            finally:
                if self._connection is not None:
                    self._connection = None
                    self._events.note_disconnected(self.follower.replica_id)
                connection.close()
            if self.failing_s is None:
                self.failing_s = self._env.clock.monotonic()
            # The pauses grow only while connections fail.
            failures = 0 if connection.live else failures
            if not lasted:  # otherwise at once: a follower that was stopped is noticed then
                failures += 1
                await self._env.sleep(wait_s(failures, MAX_WAIT_S, self._env.random.random()))

    async def _use(self, connection: _Connection) -> None:
        """Send the log over a new connection until that ends. Raises OSError, TimeoutError,
        WireError with the reason."""
        await connection.open(self._network)
        self._connection = connection
        self.failing_s = self.unreachable_s = None
        connection.pump()
        if self._forgets:
            connection.delete_earlier_copies()
        await connection.ended
        raise ConnectionResetError("the follower has closed it")

    def _report(self, failure: BaseException, was_live: bool, lasted: bool) -> None:
        """Log a failure, unless it is that of the attempt before. `was_live`: the connection was;
        `lasted`: for so long that the next failure is another one."""
        text = str(failure) or f"no answer within {CONNECT_S:g} s"
        if isinstance(failure, ConnectionRefusedError):
            text = f"kafkawire does not run there, or does not listen there ({text})"
        if lasted or text != self._reported:
            head = "the connection to %s has ended" if was_live else "%s cannot be used"
            logger.warning(
                head + ": %s. It receives nothing of the log of broker %d until another connection "
                "succeeds, which is tried every %g s", self._name, text, self._origin.node_id,
                MAX_WAIT_S,
            )  # fmt: skip
        self._reported = text

    @property
    def _name(self) -> str:
        return self.follower.name


class _Connection(asyncio.Protocol):
    """One connection. `reached`: something has accepted it; `live`: it was live; `ended` is done
    when it has ended, with an exception if the follower, or what it sent, is the reason."""

    def __init__(
        self,
        env: Env,
        journals: Journals,
        follower: FollowerRow,
        origin: ReplicatedLog,
        events: LinkEvents,
    ) -> None:
        self._env = env
        self._journals = journals
        self._follower = follower
        self._origin = origin
        self._events = events
        self._decoder = wire.WireDecoder(FROM_FOLLOWER)
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self._live: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._paused = self._reading = False
        # The log position up to which it was sent. There is no queue, so a slow follower costs no
        # memory.
        self._sent = 0
        self.reached = self.live = False
        self._heard_s = env.clock.monotonic()

    async def open(self, network: Network) -> None:
        """Connect, and return when the follower has sent where its copy ends. Raises OSError,
        TimeoutError, WireError."""
        async with asyncio.timeout(CONNECT_S):
            follower = self._follower
            await network.connect(lambda: self, follower.host, follower.port, follower.certificate)
            await asyncio.wait([self._live, self.ended], return_when=asyncio.FIRST_COMPLETED)
        if not self._live.done():
            await self.ended
            raise ConnectionResetError("the follower has closed the connection")

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
        if self.ended.done() and not self.ended.cancelled():
            # It was reported: asyncio must not log it as not retrieved.
            self.ended.exception()
        self._live.cancel()

    def pump(self) -> None:
        """Send what is in the journals from the sent position on, until the connection is full."""
        transport = self._transport
        while (
            transport is not None
            and self._live.done()
            and not (self._paused or self._reading or transport.is_closing())
        ):
            span = self._next_span()
            if span is None:
                return
            journal, start, stop = span
            if journal.view is not None and self._is_recent(stop):
                self._send(bytes(journal.view[start:stop]))
            else:
                self._read(journal, start, stop)

    def mark(self, committed: int) -> None:
        """Report what is committed, and which journals are needed."""
        if self._transport is None or not self._live.done():
            return
        # It answers each mark, so it or its machine has stopped.
        if self._env.clock.monotonic() - self._heard_s > SILENCE_S:
            self._end(TimeoutError(f"it has not answered for {SILENCE_S:g} s"))
            return
        self._transport.write(wire.encode(MarkMessage(max(committed, 0), self._first())))

    def delete_earlier_copies(self) -> None:
        """Have copies of earlier processes deleted."""
        if self._transport is not None and self._live.done():
            self._transport.write(wire.encode(ForgetMessage()))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the challenge."""
        self.reached = True
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has another class
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES)

    def data_received(self, data: bytes) -> None:
        """Handle messages of the follower."""
        self._heard_s = self._env.clock.monotonic()
        try:
            self._decoder.feed(data)
            for message in self._decoder:
                # A message before was wrong: what follows is not trusted.
                if self.ended.done():
                    return
                self._handle(message)
        except WireError as wrong:
            self._end(wrong)

    def pause_writing(self) -> None:
        """Send no more for now: the connection is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue to send: the connection has room again."""
        self._paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        self._transport = None
        self._end(exc)

    def _handle(self, message: Message) -> None:
        replica_id = self._follower.replica_id
        if isinstance(message, AckMessage) and self._live.done():
            # It would count for records that it cannot have.
            if message.end > self._sent:
                text = f"it acknowledges {position_text(message.end)}, which it was not sent"
                self._end(WireError(text))
                return
            self._events.note_acknowledged(replica_id, message.end)
        elif isinstance(message, ChallengeMessage) and not self._live.done():
            self._greet(message)
        elif isinstance(message, HaveMessage) and not self._live.done():
            self._begin(message.end)
        elif isinstance(message, FencedMessage):
            self._events.note_fenced(replica_id, message.epoch)
            self._end(ConnectionAbortedError(f"epoch {message.epoch} of this broker has begun"))
        elif isinstance(message, ErrorMessage):
            self._end(ConnectionAbortedError(message.text))
        else:
            self._end(WireError(f"a message of kind {type(message).__name__} at a wrong time"))

    def _begin(self, end: int) -> None:
        """Send the log from the end of the copy on."""
        number, at = end >> POSITION_BITS, end & POSITION_MASK
        journal = self._journals.by_number.get(number)
        # Its copy has more than this log: another process has written it in the same epoch.
        if number > self._journals.active.number or (journal is not None and at > journal.end):
            self._end(
                WireError(
                    f"its copy of the log of epoch {self._origin.broker_epoch} ends at "
                    f"{position_text(end)}, which this log does not have: another process has "
                    "written it in the same epoch. Restart the broker, which then has a higher one"
                )
            )
            return
        self._sent = end
        self.live = True
        self._live.set_result(None)
        self.mark(0)  # first: bytes of journals that are not needed any more are not cut then
        self._events.note_connected(self._follower.replica_id, end)

    def _greet(self, challenge: ChallengeMessage) -> None:
        """Answer a challenge, and name the log that is sent."""
        # Before the proof: another follower must not get it.
        if challenge.replica_id.hex() != self._follower.replica_id:
            self._end(WireError("another follower is at this address"))
            return
        origin, transport = self._origin, self._transport
        assert transport is not None, "it has sent the challenge"
        hello = greeting(
            challenge, self._follower.secret, Purpose.WRITE, origin.node_id,
            origin.broker_epoch, origin.cluster_id,
        )  # fmt: skip
        begin = BeginMessage(origin.continues, origin.start, self._first())
        transport.write(wire.encode(hello) + wire.encode(begin))

    def _first(self) -> int:
        """The number of the oldest journal that is needed."""
        return next(iter(self._journals.by_number))

    def _next_span(self) -> tuple[Journal, int, int] | None:
        """Return the journal and the range [start, stop) in it that is sent next."""
        while True:
            number, start = self._sent >> POSITION_BITS, self._sent & POSITION_MASK
            journal = self._journals.by_number.get(number)
            if journal is not None and start < journal.end:
                return journal, start, min(journal.end, start + CHUNK_BYTES)
            if number == self._journals.active.number:
                return None
            # Numbers have gaps, and the journal may have been recycled: the copy continues with the
            # next one.
            later = [each for each in self._journals.by_number if each > number]
            if not later:
                return None
            self._sent = min(later) << POSITION_BITS

    def _is_recent(self, stop: int) -> bool:
        active = self._journals.active
        number = self._sent >> POSITION_BITS
        return number == active.number and active.end - stop < RECENT_BYTES

    def _read(self, journal: Journal, start: int, stop: int) -> None:
        """Read a range in a thread, then send it."""
        self._reading = True
        pins = Pins()
        # Not recycled while the thread reads it.
        pins.add(journal)

        def on_read(parts: list[bytes] | None, failure: BaseException | None) -> None:
            pins.release()
            self._reading = False
            if parts is None:
                self._end(OSError(f"{journal.path} cannot be read: {failure}"))
            elif self._transport is not None and not self._transport.is_closing():
                self._send(parts[0])
                self.pump()

        spans = [(start, stop - start)]
        self._env.offload.submit_then("read", on_read, journal.read, self._env.fs, spans)

    def _send(self, data: bytes) -> None:
        assert self._transport is not None, "checked before"
        self._transport.writelines(wire.encode_bytes(self._sent, data))
        self._sent += len(data)

    def _end(self, why: BaseException | None) -> None:
        """Close the connection."""
        if not self.ended.done():
            if why is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(why)
        if self._transport is not None:
            self._transport.abort()
