"""Stores the objects of one log: head and names are made here, the storage process reads the frames
from the journals itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.log.append.object_sink import Gathered
from kafkawire.log.io.ports import Env, LogError, Superseded
from kafkawire.log.journal.format import Naming, pad_length
from kafkawire.log.objects.format import (
    HEADER_BYTES,
    ObjectHead,
    read_header,
    write_head,
)
from kafkawire.log.objects.port import LogObjectStore
from kafkawire.manifest.keys import log_object_key
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.objectstore.port import FileRange

if TYPE_CHECKING:
    from kafkawire.log.journal.directory import Journals

SLICE = 256
"""Partitions named per event-loop iteration: less than a millisecond."""


class LogObjectWriter:
    """The writer of the log of one life of a broker. `nonce`: 16 random bytes, by which it knows
    its objects."""

    def __init__(
        self,
        env: Env,
        store: LogObjectStore,
        journals: Journals,
        node_id: int,
        broker_epoch: int,
        nonce: bytes,
    ) -> None:
        self._env = env
        self._store = store
        self._journals = journals
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._nonce = nonce

    async def store(self, sequence: int, gathered: Gathered) -> None:
        """Store the object with a sequence number; make one attempt. Raises StoreError, OSError of
        a journal, Superseded."""
        names = await self._names(gathered)
        head = self._head(sequence, gathered)
        ranges = [
            FileRange(
                self._journals.by_number[each.journal].path, each.start, each.end - each.start
            )
            for each in gathered.spans
        ]
        key = log_object_key(self._broker_epoch, sequence)
        try:
            await self._store.put_ranges(key, write_head(head, names), ranges)
        # Something is there: an earlier attempt of this process, or the fence of another life.
        except ConditionFailed:
            await self._check_own(key, sequence)

    async def _check_own(self, key: str, sequence: int) -> None:
        """Return if an earlier attempt stored the object and only its answer was lost. Raises
        Superseded if another life of the broker has put something there."""
        try:
            data, _ = await self._store.get(key, 0, HEADER_BYTES)
        except NoSuchObject:  # S3 answers so while another conditional request is in progress
            raise StoreError("Conflict", f"{key} was being written concurrently") from None
        if self._is_own(data, key):
            return
        raise Superseded(
            f"broker {self._node_id} was started elsewhere and has ended the log of this process "
            f"at object {sequence}"
        )

    def _is_own(self, data: bytes, key: str) -> bool:
        try:
            found = read_header(data, key)
        # Written by a newer program, or none of ours.
        except LogError:
            return False
        # By the nonce: the key has node id and epoch only.
        return not found.is_fence and found.nonce == self._nonce

    def _head(self, sequence: int, gathered: Gathered) -> ObjectHead:
        return ObjectHead(
            node_id=self._node_id,
            broker_epoch=self._broker_epoch,
            sequence=sequence,
            nonce=self._nonce,
            frame_count=gathered.frames,
            frames_length=sum(pad_length(each.end - each.start) for each in gathered.spans),
            created_ms=self._env.clock.now_ms(),
        )

    async def _names(self, gathered: Gathered) -> dict[int, Naming]:
        """Return the names of the partitions, with their end offsets in the object."""
        names = {}
        # With the end offset in this object, as a naming frame at its end would have it.
        for at, (partition, end) in enumerate(gathered.ends.items()):
            names[partition.number] = Naming(
                partition.topic_id, partition.topic, partition.index, partition.leader_epoch, end,
                partition.log_start,
            )  # fmt: skip
            if at % SLICE == SLICE - 1:
                await self._env.slices.pause()
        return names
