"""Parts of the model: the rules, disks and what they have, messages, and SQL."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

Entry = tuple[int, int]
"""An entry of a log: the epoch of the life that has appended it, and a number."""


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol, of which a test leaves one out, and its variants."""

    # A start in a fresh folder
    fence: bool = True  # the follower that it copies from
    keep_fence: bool = True  # durable
    fence_connections: bool = True  # those that are open, too
    end_after_fence: bool = True
    fresh_unless_paired: bool = True
    pair_complete: bool = True  # only a folder that has the log
    pair_newest: bool = True  # by the newest life
    # The row
    newest_epoch: bool = True  # only the newest life changes it
    versioned: bool = True  # an update that arrives late changes nothing
    by_disk: bool = True  # it names disks, not machines
    establish_with_start: bool = True  # only followers that have the log as the life found it
    enter_with_committed: bool = True
    # Acknowledgements
    acknowledge_established: bool = True
    own_fsync: bool = True
    recovered_synced: bool = True  # what a start has found is not durable until it is synced
    durable_acks: bool = True
    entering_counts: bool = True  # from before the update is sent
    abandoned_counts: bool = True  # while an update without an answer may arrive
    leaving_counts: bool = True  # until the update is known to have succeeded
    # Copies
    refuse_earlier: bool = True  # epochs below that of the newest copy
    lineage_fits: bool = True  # a copy with another history is not continued
    cut_at_start: bool = True  # a continued copy ends where the log of the life did
    cut_copy_at_epoch: bool = True  # and before entries of epochs after the continued one
    cut_own_at_epoch: bool = True  # the log that a life finds ends there, too
    # If folders are paired before they have the log
    interrupted_is_fresh: bool = True
    # If the copy of a life that was not established is not continued
    keep_older: bool = True  # next to the empty copy
    forget_established: bool = True  # the older copy, only then
    # Variants
    append_early: bool = True  # before the life is established
    continue_unestablished: bool = True  # the copy of a life that was not established
    common_prefix: bool = False  # each copy is continued, up to where it is equal to the life's log


def end_of(entries: list[Entry], epoch: int) -> int:
    """Return where entries of epochs after `epoch` begin."""
    end = len(entries)
    while end and entries[end - 1][0] > epoch:
        end -= 1
    return end


@dataclass(slots=True)
class Stored:
    """Entries in files, of which those before `durable` are synced."""

    entries: list[Entry] = field(default_factory=list)
    durable: int = 0

    def sync(self) -> None:
        self.durable = len(self.entries)

    def cut(self, end: int) -> None:
        """Remove what is after a position, durably."""
        del self.entries[end:]
        self.durable = min(self.durable, end)

    def lose(self, choices: random.Random) -> None:
        """Lose what is not synced, or the end of it."""
        if choices.random() < 0.7:
            self.cut(self.durable)
        else:
            self.cut(choices.randint(self.durable, len(self.entries)))
            self.sync()


@dataclass(slots=True)
class Folder(Stored):
    """A data folder of the broker; a fresh one is not complete until it has the log."""

    number: int = 0
    complete: bool = False


@dataclass(slots=True)
class Copy(Stored):
    """A follower's copy of the log of the life `epoch`, which continues the epoch `base`."""

    epoch: int = 0
    base: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message of a connection of a life: its log is that of the epoch `base` up to the
    position `start`, where it was found to end. `log`: what it was, for `Rules.common_prefix`."""

    epoch: int
    base: int
    start: int
    log: list[Entry]


@dataclass(frozen=True, slots=True)
class Data:
    """Entries from a position on."""

    position: int
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Forget:
    """Copies of earlier epochs are not needed any more."""


Message = Begin | Data | Forget


@dataclass(slots=True, eq=False)
class Disk:
    """A disk: a data folder of the broker, and the files of the machine's follower, with the newest
    copy last. `number`: its id; that of a machine that was replaced is another one."""

    number: int
    machine: int
    rules: Rules
    folder: Folder = field(default_factory=Folder)
    fence: int = 0
    copies: list[Copy] = field(default_factory=list)
    replaced: bool = False

    def refuses(self, epoch: int) -> bool:
        if self.copies and epoch < self.copies[-1].epoch and self.rules.refuse_earlier:
            return True
        return epoch < self.fence

    def source(self, base: int) -> tuple[Copy, int] | None:
        """Return the copy that has most of the log of an epoch, and the end of the log in it."""
        return max(self._ends(base), key=lambda each: each[1], default=None)

    def durable_log(self, base: int) -> list[Entry]:
        """Return what of the log of an epoch the follower has after a crash."""
        logs = [copy.entries[: min(end, copy.durable)] for copy, end in self._ends(base)]
        return max(logs, key=len, default=[])

    def _ends(self, base: int) -> list[tuple[Copy, int]]:
        if self.rules.common_prefix:
            return [(copy, len(copy.entries)) for copy in self.copies[-1:]]
        found = [copy for copy in self.copies if base in (copy.epoch, copy.base)]
        if not self.rules.cut_own_at_epoch:
            return [(copy, len(copy.entries)) for copy in found]
        return [(copy, end_of(copy.entries, base)) for copy in found]

    def begin(self, begin: Begin) -> None:
        """Continue the newest copy as that of a life, or begin an empty one; sync it."""
        newest = self.copies[-1] if self.copies else None
        if newest is not None and newest.epoch == begin.epoch:
            pass  # the life has connected again
        elif newest is not None and self._continues(newest, begin):
            newest.cut(self._common_end(newest, begin))
            newest.epoch, newest.base = begin.epoch, begin.base
        else:
            if not self.rules.keep_older:
                self.copies.clear()
            self.copies.append(Copy(epoch=begin.epoch, base=begin.base))
        self.copies[-1].sync()

    def forget(self, epoch: int) -> None:
        """Delete copies of earlier epochs, but not the newest copy."""
        later = [copy for copy in self.copies[:-1] if copy.epoch >= epoch]
        self.copies = [*later, *self.copies[-1:]]

    def _continues(self, copy: Copy, begin: Begin) -> bool:
        if self.rules.common_prefix or not self.rules.lineage_fits:
            return True
        unestablished = copy.base == begin.base and self.rules.continue_unestablished
        return copy.epoch == begin.base or unestablished

    def _common_end(self, copy: Copy, begin: Begin) -> int:
        """Return up to where a copy is equal to the log that a life has found."""
        if self.rules.common_prefix:
            both = min(len(copy.entries), len(begin.log))
            differing = (at for at in range(both) if copy.entries[at][0] != begin.log[at][0])
            return next(differing, both)
        end = len(copy.entries)
        if self.rules.cut_copy_at_epoch:
            end = end_of(copy.entries, begin.base)
        return min(end, begin.start) if self.rules.cut_at_start else end


@dataclass(slots=True, eq=False)
class Link:
    """A connection of a life to a follower. `sent`: the end of what was sent, None before the first
    answer; `unsynced`: the follower has not yet synced something; `closed`: by the life."""

    epoch: int
    disk: Disk
    messages: deque[Message]
    slow: bool
    acks: list[int] = field(default_factory=list)
    sent: int | None = None
    unsynced: bool = False
    forgot: bool = False
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """The row `replica_set`; before there is one, that of epoch 0."""

    epoch: int = 0
    members: frozenset[int] = frozenset()
    version: int = 0


@dataclass(slots=True)
class Update:
    """A statement that stores the next version of the row. `done`: its answer, None until it has
    arrived."""

    row: Row
    slow: bool
    done: bool | None = None


class Sql:
    """The newest epoch, the row, the number of the paired folder, and statements that have not
    arrived. A superseded life reads nothing."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.epoch = 0
        self.row = Row()
        self.paired = -1
        self.network: list[Update] = []

    def register(self) -> int:
        self.epoch += 1
        return self.epoch

    def read(self, epoch: int) -> Row | None:
        return self.row if epoch == self.epoch else None

    def pair(self, epoch: int, folder: int) -> bool:
        newest = epoch == self.epoch or not self._rules.pair_newest
        if newest:
            self.paired = folder
        return newest

    def arrive(self, update: Update) -> None:
        row = update.row
        newest = row.epoch == self.epoch or not self._rules.newest_epoch
        next_one = row.version == self.row.version + 1 or not self._rules.versioned
        update.done = newest and next_one
        if update.done:
            self.row = replace(row, version=self.row.version + 1)

    def next_rows(self) -> list[Row]:
        """Return the row, and those that may replace it."""
        sent = (update.row for update in self.network)
        return [self.row, *(row for row in sent if row.epoch == self.epoch)]
