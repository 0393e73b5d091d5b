"""Collect the hashes of keys of a segment being written, and build its key index.

Runs in the worker, with numba (`pip install 'kafkawire[keys]'`): a loop in Python over the records
would triple the time of a cut. Memory: 8 bytes a key of the current partition, 2.5 bytes of those
before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np

from kafkawire.codec.batches import payload, read_head
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.keys import (
    BUCKET_BYTES,
    KEY_BLOCK_BYTES,
    FilterShape,
    KeyFilters,
    shape_of,
    write_keys,
)
from kafkawire.codec.types import Buffer
from kafkawire.log.segments.file.key_port import PartSpans

logger = logging.getLogger(__name__)

_RECORD_BYTES_MIN = 7
_HASHES_MIN = 1 << 16


class HashCollector:
    """The KeyCollector of kafkawire.log.segments.file.key_port."""

    def __init__(self, kernels: ModuleType, decompress: bool) -> None:
        self._kernels = kernels
        self._decompress = decompress
        self._filters: list[KeyFilters | None] = []
        self._partition: _PartitionHashes | None = None
        # One thread, which keeps the order of the parts. It does not hold the interpreter while it
        # hashes, so a cut takes hardly longer where there are two cores.
        self._thread = ThreadPoolExecutor(1, "key-index")
        self._running: list[Future[None]] = []

    def start_partition(self, number: int) -> None:
        self._partition = _PartitionHashes(self._kernels, self._decompress, number)

    def add(self, parts: Sequence[Buffer], spans: PartSpans | None = None) -> None:
        """Add whole batches that were checked; nothing while no partition is begun."""
        if self._partition is not None:
            # The arrays, arguments of the thread's call, keep the buffers as long as it reads them.
            if spans is None:
                arrays = [np.frombuffer(part, np.uint8) for part in parts]
                addresses = np.array([_address(each) for each in arrays], np.int64)
                lengths = np.array([len(each) for each in arrays], np.int64)
            else:
                arrays = [np.frombuffer(spans.buffer, np.uint8)]
                addresses = np.array(spans.positions, np.int64) + _address(arrays[0])
                lengths = np.array(spans.lengths, np.int64)
            self._start(self._partition.add, parts, arrays, addresses, lengths)

    def abandon(self) -> None:
        self._partition = None

    def end_partition(self) -> None:
        if self._partition is not None:
            self._start(self._build, self._partition)
            self._partition = None

    def wait_for_reads(self) -> None:
        """Wait until the buffers of all parts are no longer read."""
        running, self._running = self._running, []
        for each in running:
            each.result()

    def section(self) -> bytes | None:
        """Return the body of the section; None if no partition has an index."""
        # The filters of the last partitions may still be computed.
        self.wait_for_reads()
        filters = [each for each in self._filters if each is not None]
        return write_keys(filters) if filters else None

    def close(self) -> None:
        self._thread.shutdown()

    def _start(self, run: Any, *arguments: Any) -> None:
        self._running.append(self._thread.submit(run, *arguments))

    def _build(self, partition: _PartitionHashes) -> None:
        self._filters.append(partition.build())


class _PartitionHashes:
    """The hashes of the keys of one partition and its key blocks; used by the thread only."""

    def __init__(self, kernels: ModuleType, decompress: bool, number: int) -> None:
        self._kernels = kernels
        self._decompress = decompress
        self._number = number
        self._complete = True
        # Grows by doubling; pages that are not written take no memory.
        self._hashes = np.empty(_HASHES_MIN, np.uint64)
        self._blocks = np.empty(0, np.int64)
        self._state = np.zeros(kernels.STATE_FIELDS, np.int64)

    def add(
        self, parts: Sequence[Buffer], _arrays: object, addresses: np.ndarray, lengths: np.ndarray
    ) -> None:
        kernels, state = self._kernels, self._state
        # Each call has parts of its own; the position in the partition continues.
        state[kernels.PART] = state[kernels.AT] = 0
        size = int(lengths.sum())
        self._blocks = _room(
            self._blocks, 2 * int(state[kernels.BLOCKS]), 2 * (size // KEY_BLOCK_BYTES + 2)
        )
        why = -1
        # The kernel stops at the end, before a compressed batch, or at a damaged one.
        while self._complete and why != kernels.DONE:
            # The kernel checks no bounds: room for as many records as the bytes can have.
            self._reserve(size // _RECORD_BYTES_MIN)
            why = kernels.hash_parts(
                _address(addresses), _address(lengths), len(addresses),
                _address(self._hashes), _address(self._blocks), _address(state),
            )  # fmt: skip
            at = int(state[kernels.AT])
            # Its keys would have to be decompressed: the partition gets no index.
            if why == kernels.OTHER and not self._decompress:
                self._complete = False
            elif why != kernels.DONE:
                after = -1
                if why == kernels.OTHER:
                    after = self._hash_compressed(parts[int(state[kernels.PART])], at)
                if after < 0:
                    self._give_up(int(state[kernels.START]) + at)
                state[kernels.AT] = after

    def _hash_compressed(self, data: Buffer, at: int) -> int:
        """Hash the keys of a compressed batch; return where it ends, -1 if it cannot be
        decompressed."""
        try:
            head = read_head(data, at)
            records = payload(data, at, head)
        except (KafkaError, FormatError):
            return -1
        self._reserve(len(records) // _RECORD_BYTES_MIN)
        array = np.frombuffer(records, np.uint8)
        count = int(self._state[self._kernels.HASHES])
        found = self._kernels.hash_records(
            _address(array), len(records), head.count, _address(self._hashes) + 8 * count
        )
        if found < 0:
            return -1
        self._state[self._kernels.HASHES] += found
        return at + head.size_bytes

    def _reserve(self, more: int) -> None:
        self._hashes = _room(self._hashes, int(self._state[self._kernels.HASHES]), more)

    def _give_up(self, position: int) -> None:
        logger.warning(
            "partition %s: the records of the batch at %s cannot be read for the key index, "
            "so a search for a key will scan this partition in this segment",
            self._number,
            position,
        )
        self._complete = False

    def build(self) -> KeyFilters | None:
        """Build the filters: those of kafkawire.codec.segment.keys. None if a batch was not
        hashed."""
        # An index without some keys would hide them: rather none, and the partition is scanned.
        if not self._complete:
            return None
        state, kernels = self._state, self._kernels
        keys, found = int(state[kernels.HASHES]), int(state[kernels.BLOCKS])
        shape = shape_of(keys, found, int(state[kernels.START]))
        # Keys, but too many for their bytes; or none at all, which is an answer too.
        if not shape.rows:
            return None if keys else KeyFilters(self._number, 0, FilterShape(0, 0), [], b"")
        count, rows = shape
        whole = np.zeros(rows * count * BUCKET_BYTES, np.uint8)
        # With one block the filter of the whole is the table.
        table = whole if count == 1 else np.empty(rows * shape.row_bytes, np.uint8)
        block = np.empty(rows * BUCKET_BYTES, np.uint8)
        kernels.fill(
            _address(table), _address(whole), _address(block), count, rows,
            _address(self._blocks), _address(self._hashes), keys,
        )  # fmt: skip
        positions = self._blocks[0 : 2 * count : 2].tolist()
        return KeyFilters(self._number, keys, shape, positions, table.data)


def _room(array: np.ndarray, used: int, more: int) -> np.ndarray:
    """Return an array with room for so many more entries after those that are used."""
    if used + more <= len(array):
        return array
    larger = np.empty(2 * (used + more), array.dtype)
    larger[:used] = array[:used]
    return larger


def _address(array: np.ndarray) -> int:
    address: int = array.ctypes.data
    return address
