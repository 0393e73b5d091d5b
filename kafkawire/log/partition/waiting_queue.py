"""The queue of writes that are not durable yet where they have to be, with the callers that wait.

The disk, the log objects and the followers have one queue each. Write batches are added to the
newest entry; it is sealed when the sink begins to make it durable. Entries become durable in order:
then high watermarks move, waiting Fetches wake up, and answers leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import Callback, call_all

if TYPE_CHECKING:
    from kafkawire.log.partition.state import LoadedPartition

WITHOUT_BOUND = 1 << 62
"""The room while no Produce request waits for a sink: all refuse their batches, or answer them
before."""


class UncommittedWrite:
    """Frames that become durable together. `ends`: the end offset of each partition in it;
    `size_bytes`: of the frames; `log_position`: the end of the journals after its last frame;
    `at_s`: when it was sealed; `callbacks` wait for it and for all before it."""

    __slots__ = ("at_s", "callbacks", "ends", "log_position", "size_bytes")

    def __init__(self) -> None:
        self.ends: dict[LoadedPartition, int] = {}
        self.size_bytes = 0
        self.log_position = 0
        self.at_s = 0.0
        self.callbacks: list[Callback] = []


W = TypeVar("W", bound=UncommittedWrite)


class WaitingQueue(Generic[W]):
    """The uncommitted writes of one sink. `newest` takes what is written now; `filled`: whether it
    has anything; `sealed`: those before it, oldest first; `size_bytes`: of all; `failed`: why no
    more becomes durable."""

    __slots__ = ("_make", "_max_bytes", "failed", "filled", "newest", "sealed", "size_bytes")

    def __init__(self, make: Callable[[], W], max_bytes: int) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self.newest = make()
        self.filled = False
        self.sealed: deque[W] = deque()
        # Of all entries. It is bounded since a crash may take it, from clients that wait.
        self.size_bytes = 0
        self.failed: KafkaError | None = None

    def room_bytes(self) -> int:
        """Return how many bytes may be queued before Produce requests have to wait."""
        return self._max_bytes - self.size_bytes

    def add(self, partition: LoadedPartition, end: int, size_bytes: int) -> None:
        """Add a frame that was written, which ends at the offset `end`. Hot."""
        self.newest.ends[partition] = end
        self.add_bytes(size_bytes)

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes that were added to the newest entry."""
        self.newest.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self.filled = True

    def seal(self, log_position: int, at_s: float) -> W:
        """Return the newest entry, which takes no more; the next one begins. `log_position`: the
        end of the journals."""
        sealed, self.newest, self.filled = self.newest, self._make(), False
        sealed.log_position, sealed.at_s = log_position, at_s
        self.sealed.append(sealed)
        return sealed

    def wait(self, callbacks: list[Callback]) -> None:
        if self.failed is not None:
            call_all(callbacks, self.failed)
        elif self.filled:
            self.newest.callbacks += callbacks
        elif self.sealed:
            self.sealed[-1].callbacks += callbacks
        else:
            call_all(callbacks, None)

    def complete(self) -> W:
        """Remove the oldest entry, which is durable, and move the high watermarks; return it. The
        callbacks are left to the caller."""
        durable = self.sealed.popleft()
        self.size_bytes -= durable.size_bytes
        move_high_watermarks(durable.ends)
        return durable

    def fail(self, why: KafkaError) -> None:
        """Let nothing become durable any more, and answer everything that waits with an error."""
        self.failed = why
        # Replaced before the calls: a callback may append.
        waiting = [*self.sealed, self.newest]
        self.sealed.clear()
        self.newest, self.filled = self._make(), False
        for each in waiting:
            call_all(each.callbacks, why)


class FailedPartitions(KafkaError):
    """A write is durable, but the batches of `partitions` are answered with this error."""

    def __init__(
        self, code: ErrorCode, message: str, partitions: Collection[LoadedPartition]
    ) -> None:
        super().__init__(code, message)
        self.partitions = partitions


def unless_for_others(fn: Callback, partition: LoadedPartition | None = None) -> Callback:
    """Return a callback that calls `fn` without FailedPartitions, unless it is for `partition`."""

    def on_call(failure: BaseException | None) -> None:
        if isinstance(failure, FailedPartitions) and partition not in failure.partitions:
            failure = None
        fn(failure)

    return on_call


def after_calls(count: int, fn: Callback) -> Callback:
    """Return a callback that calls `fn` once, after `count` calls or the first failure. A failure
    of some partitions only is reported at the end."""
    left, ended = count, False
    partly: FailedPartitions | None = None

    def on_call(failure: BaseException | None) -> None:
        nonlocal left, ended, partly
        left -= 1
        if isinstance(failure, FailedPartitions):
            partly, failure = failure, None
        if not ended and (not left or failure is not None):
            ended = True
            fn(failure or partly)

    return on_call


def move_high_watermarks(ends: dict[LoadedPartition, int]) -> None:
    """Show readers the batches of partitions below these offsets."""
    for partition, end in ends.items():
        if end > partition.high_watermark:
            partition.raise_high_watermark(end)
            if partition.watchers:
                partition.notify_watchers()
