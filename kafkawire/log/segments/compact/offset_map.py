"""The newest offset of each key, in a buffer of fixed size (Kafka: SkimpyOffsetMap).

Keys are not stored, only 87 bits of two hashes of each: with seven million keys (128 MiB) the
probability that any two collide is 2e-13. Open addressing with double hashing in two arrays: 16
bytes a slot, no object for a key. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

SLOT_BYTES = 16
_TAG_BITS = 23
_TAG_MASK = (1 << _TAG_BITS) - 1
MAX_OFFSETS = 1 << (63 - _TAG_BITS)
"""Largest distance between the offsets of one map."""
_SLOTS_MIN = 1 << 10
_OTHER = b"\1"  # appended to a key for its second hash


class OffsetMap:
    """Make a map for `keys_at_most` keys of offsets in [base, base + MAX_OFFSETS).

    `capacity` is smaller where `buffer_bytes` at `load_factor` are not enough for as many.
    """

    __slots__ = ("_hashes", "_load_factor", "_mask", "_values", "base", "capacity", "size")

    def __init__(self, base: int, keys_at_most: int, buffer_bytes: int, load_factor: float) -> None:
        slots = _SLOTS_MIN
        # A power of two, so that a mask finds the slot.
        while slots * load_factor < keys_at_most and slots * 2 * SLOT_BYTES <= buffer_bytes:
            slots *= 2
        self.base = base
        self._load_factor = load_factor
        self._allocate(slots)

    def _allocate(self, slots: int) -> None:
        self._mask = slots - 1
        self._hashes: array[int] = array("q", bytes(8)) * slots
        self._values: array[int] = array("q", bytes(8)) * slots
        self.capacity = int(slots * self._load_factor)
        self.size = 0

    def has_room(self, count: int) -> bool:
        """Return whether so many more keys fit."""
        # Fuller than this, searches become long.
        if self.size + count <= self.capacity:
            return True
        # An empty map grows, since one batch must fit whole; its unpacked size is bounded.
        if self.size:
            return False
        slots = self._mask + 1
        while slots * self._load_factor < count:
            slots *= 2
        self._allocate(slots)
        return True

    def put(self, keys: Sequence[bytes | None], deltas: Sequence[int], base: int) -> None:
        """Add records of offsets base + delta, which rise over all calls. Hot.

        The caller has checked that they fit. Records without a key are skipped.
        """
        hashes, values, mask = self._hashes, self._values, self._mask
        base = base - self.base + 1  # 0 marks an empty slot
        size = self.size
        for key, delta in zip(keys, deltas, strict=True):
            if key is None:
                continue
            # SipHash with a secret of the process: no client can construct keys that collide.
            first = hash(key)
            second = hash(key + _OTHER)
            tag = second & _TAG_MASK
            slot = first & mask
            # Odd, so that it reaches every slot of a power of two.
            step = second >> _TAG_BITS | 1
            while value := values[slot]:
                if hashes[slot] == first and value & _TAG_MASK == tag:
                    break
                slot = slot + step & mask
            else:
                hashes[slot] = first
                size += 1
            # Offsets rise over all calls: the last one of a key is the newest.
            values[slot] = (base + delta) << _TAG_BITS | tag
        self.size = size

    def newest(self, keys: Sequence[bytes | None], deltas: Sequence[int], base: int) -> list[int]:
        """Return the indexes of the records that no later one replaces. Hot.

        One without a key is never kept: nothing could ever replace it.
        """
        hashes, values, mask = self._hashes, self._values, self._mask
        base = base - self.base + 1
        kept = []
        for at, key in enumerate(keys):
            if key is None:
                continue
            first = hash(key)
            slot = first & mask
            value = values[slot]
            if value:
                second = hash(key + _OTHER)
                tag = second & _TAG_MASK
                step = second >> _TAG_BITS | 1
                while value:
                    if hashes[slot] == first and value & _TAG_MASK == tag:
                        # Its own entry, or an older one: no later record replaces it.
                        if value >> _TAG_BITS <= base + deltas[at]:
                            kept.append(at)
                        break
                    slot = slot + step & mask
                    value = values[slot]
                else:
                    # Not in the map: no record in the dirty part has this key.
                    kept.append(at)
            else:
                kept.append(at)
        return kept
