"""Verification guards of one partition (KIP-890 part 1; Kafka: VerificationStateEntry).

Before the first batch of a transaction is appended, the transaction coordinator is asked whether
the partition belongs to an ongoing transaction. The append needs the guard that was made before the
question. A marker that arrives meanwhile drops the guard, so an answer that is older than the
marker cannot let a late batch open a transaction that no marker will end. Pure.
"""

from __future__ import annotations

MAX_GUARDS = 10_000
"""Guards of one partition. One is made for each producer that asks, and most are dropped within
milliseconds. Without a bound a client that invents producer IDs would fill the memory; beyond it
the oldest guard is dropped, and its producer gets INVALID_TXN_STATE for one batch."""


class Guard:
    """A question to the coordinator that is not used up. `epoch` and `lowest_sequence`: the newest
    epoch that asked, and the least first sequence with it; a higher one must wait for it. `adds`:
    asked under transaction version 2, which adds the partition to the transaction."""

    __slots__ = ("adds", "created_ms", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, sequence: int, created_ms: int, *, adds: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.created_ms = created_ms
        self.adds = adds

    def add_batch(self, epoch: int, sequence: int) -> None:
        """Record that another batch waits for the same answer of the coordinator."""
        # A newer epoch asked: sequences start again with it.
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


NOT_VERIFIED = Guard(-1, -1, -1, adds=False)
"""Stands for a guard where `transaction.partition.verification.enable` is off."""
NOT_ALLOWED = Guard(-1, -1, -1, adds=False)
"""Stands for a guard where no transactional batch may be appended, not even to an open transaction:
the request has no transactional id."""
ONLY_OPEN = Guard(-1, -1, -1, adds=False)
"""Stands for a guard where only batches of open transactions may be appended, without a question to
the coordinator: others are refused before anything else is checked, duplicates too."""


class Guards:
    """The guards of a partition by producer ID, the oldest first."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[int, Guard] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get_or_create(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, adds: bool
    ) -> Guard:
        """Return the guard for a batch, which is made if the producer has none."""
        guard = self._by_id.get(producer_id)
        if guard is None:
            guard = self._by_id[producer_id] = Guard(epoch, sequence, now_ms, adds=adds)
            # The oldest, whose producer gets an error for one batch.
            if len(self._by_id) > MAX_GUARDS:
                del self._by_id[next(iter(self._by_id))]
        else:
            guard.add_batch(epoch, sequence)
        return guard

    def find(self, producer_id: int) -> Guard | None:
        return self._by_id.get(producer_id)

    def use(self, producer_id: int) -> None:
        """Drop the guard of a producer: a transactional batch of it was appended."""
        self._by_id.pop(producer_id, None)

    def remove_guard(self, producer_id: int, epoch: int, version: int) -> None:
        """Remove the guard of a producer: a marker was appended."""
        guard = self._by_id.get(producer_id)
        # Under version 2 a guard with the marker's epoch belongs to the next transaction, which
        # waits already.
        if guard is not None and not (version >= 2 and guard.epoch == epoch):
            del self._by_id[producer_id]

    def expire(self, before_ms: int) -> None:
        for producer_id in [
            number for number, guard in self._by_id.items() if guard.created_ms < before_ms
        ]:
            del self._by_id[producer_id]
