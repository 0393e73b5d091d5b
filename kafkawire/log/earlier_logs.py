"""The logs of earlier lives of a broker: their ends, and which objects of them are still needed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from kafkawire.log.io.ports import Env
from kafkawire.log.objects.format import (
    LogObjectError,
    StoredFrame,
    read_frames,
    read_header,
    read_names,
    write_fence,
)
from kafkawire.log.objects.port import LogObjectStores, wait_for_answer
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject
from kafkawire.offsets.catalog.object_logs import ObjectLog

logger = logging.getLogger(__name__)

AT_ONCE = 16
"""Heads that are read concurrently: the threads of the storage process are the limit."""
FIRST_BYTES = 64 << 10
"""Bytes of an object that are read for its head: the names of about 1,000 partitions."""


@dataclass(frozen=True, slots=True)
class EarlierObject:
    """An object of a previous life, at `url`. `ends`: the end offset of each partition in it, by
    number; `fence`: it ends its log."""

    url: str
    key: str
    log: int
    sequence: int
    size_bytes: int
    ends: dict[int, int]
    fence: bool = False


class EarlierLogs:
    """Reads and ends the logs of earlier lives of one broker."""

    def __init__(
        self, env: Env, stores: LogObjectStores, node_id: int, broker_epoch: int, nonce: bytes
    ) -> None:
        """`nonce`: of this life, `broker_epoch` too."""
        self._nonce = nonce
        self._env = env
        self._stores = stores
        self._node_id = node_id
        self._broker_epoch = broker_epoch

    async def fence_log(self, log: ObjectLog) -> tuple[int, list[EarlierObject]]:
        """Return the sequence number of the fence of a log, which is put if there is none, and the
        needed objects below it. Missing and damaged ones are logged and left out. Raises ValueError
        if the URL of the log is invalid, JournalFormatError if a newer program wrote an object."""
        found: list[EarlierObject] = []
        sequence = log.released
        while log.ended is None or sequence < log.ended:
            wanted = range(sequence, sequence + AT_ONCE)
            # A log that has ended has nothing above its fence that counts.
            if log.ended is not None:
                wanted = range(sequence, min(sequence + AT_ONCE, log.ended))
            # Concurrently, but judged in order: the first free number is the end.
            heads = await asyncio.gather(*[self._head(log, at) for at in wanted])
            for each in heads:
                # A log that has ended was complete below its fence.
                if each is None and log.ended is not None:
                    _report(log_object_key(log.broker_epoch, sequence), "is missing")
                    sequence += 1
                    continue
                if each is None and await self._fence(log, sequence):
                    return sequence, found
                if each is None:
                    break  # the writer was faster: read again from here on
                if each.fence:
                    return sequence, found
                found.append(each)
                sequence += 1
        return sequence, found

    async def frames(self, earlier: EarlierObject) -> list[StoredFrame]:
        """Return the frames of an object, up to the first damaged one, which is logged. Raises
        JournalFormatError if a newer program wrote it."""
        frames: list[StoredFrame] = []
        try:
            data, _ = await wait_for_answer(
                self._env, lambda: self._stores.at(earlier.url).get(earlier.key)
            )
            head = read_header(data, earlier.key)
            for frame in read_frames(memoryview(data), head):
                frames.append(frame)
                await self._env.slices.give_way()
        except NoSuchObject:
            _report(earlier.key, "is missing")
        except LogObjectError as damage:
            _report(earlier.key, f"is damaged after {len(frames)} frames ({damage})")
        return frames

    async def _head(self, log: ObjectLog, sequence: int) -> EarlierObject | None:
        """Return what the head of an object says; None if it is absent."""
        store, key = self._stores.at(log.url), log_object_key(log.broker_epoch, sequence)
        try:
            data, _ = await wait_for_answer(self._env, lambda: store.get(key, 0, FIRST_BYTES))
        except NoSuchObject:
            return None
        ends: dict[int, int] = {}
        size_bytes, fence = len(data), False
        try:
            head = read_header(data, key)
            size_bytes, fence, length = head.frames_length, head.is_fence, head.frames_start
            if len(data) < length:
                data, _ = await wait_for_answer(self._env, lambda: store.get(key, 0, length))
            if not fence:
                ends = {at: naming.next_offset for at, naming in read_names(data, head).items()}
        except LogObjectError as damage:
            _report(key, f"is damaged ({damage})")
        return EarlierObject(log.url, key, log.broker_epoch, sequence, size_bytes, ends, fence)

    async def _fence(self, log: ObjectLog, sequence: int) -> bool:
        """Put a fence; return False if something is there already."""
        store, epoch = self._stores.at(log.url), log.broker_epoch
        fence = write_fence(
            self._node_id, epoch, sequence, self._nonce, self._broker_epoch,
            self._env.clock.now_ms(),
        )  # fmt: skip
        key = log_object_key(epoch, sequence)
        try:
            # Only if absent: this and a put of the writer exclude each other, so one of them ends
            # it.
            await wait_for_answer(self._env, lambda: store.put(key, fence, if_absent=True))
        except ConditionFailed:
            return False  # an object of the writer, or a fence: also one of an attempt of this call
        logger.info(
            "the log of broker %d in its life %d ends at object %d",
            self._node_id,
            epoch,
            sequence,
        )
        return True


def _report(key: str, what: str) -> None:
    logger.critical(
        "log object %s %s: acknowledged records may be lost, partitions are served without them",
        key,
        what,
    )
