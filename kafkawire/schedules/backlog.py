"""The waiting records of one schedule partition: the next in memory, all in the index on disk.

What arrives and what is delivered is saved together, every few seconds. What arrives and is
delivered in between never reaches the disk.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

from kafkawire.codec.batches import Record, dump_record, load_record
from kafkawire.codec.errors import KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.schedules.feed import RecordFeed
from kafkawire.schedules.headers import (
    CancelKey,
    CancelOffset,
    Delivery,
    Instruction,
    Invalid,
    instruction_of,
)
from kafkawire.schedules.progress import LAST_OFFSET, Due, Progress
from kafkawire.schedules.waiting import Arrival, WaitingIndex
from kafkawire.schedules.window import WINDOW_RECORDS, DueWindow

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)

UNSAVED_MAX = 5_000
"""Changes that are not in the index on disk yet: after a crash so many records are read again."""
SAVED_EVERY_S = 5.0
"""How often changes are saved."""
KEY_HASH_BYTES = 16
"""Of a key in the index: a collision would cancel another record."""
CONTENT_BYTES = 512
"""Records up to this size are in the index, too: reading one of them from the log means to read and
parse a batch, which takes a hundred times as long if others of the batch are due at other times.
With larger ones the bytes themselves count."""
BEFORE_ALL: Due = (-1, -1)


def first_waiting(delivery: Delivery, offset: int, progress: Progress) -> int | None:
    """Return the first due time of a record that is not delivered yet; None: there is none."""
    until = progress.delivered_until(offset)
    if until is None:
        return delivery.due_ms
    due_ms, last = until
    return delivery.next_after(due_ms if offset <= last else due_ms - 1)


def _content(record: Record) -> bytes | None:
    """Return a small record as it is in the index; None for a larger one, which is read again."""
    if len(record.key or b"") + len(record.value or b"") > CONTENT_BYTES or len(record.headers) > 8:
        return None
    content = dump_record(record)
    return content if len(content) <= CONTENT_BYTES else None


class Backlog:
    """The waiting records of one partition. `followed`: the offset up to which they are known."""

    def __init__(
        self,
        env: Env,
        partition: Partition,
        commit_log: CommitLog,
        feed: RecordFeed,
        index: WaitingIndex,
    ) -> None:
        self._env = env
        self._partition = partition
        self._commit_log = commit_log
        self._feed = feed
        self._index = index
        self._window = DueWindow()
        self._unsaved: dict[int, Arrival] = {}
        self._replaced: dict[bytes, int] = {}
        self._gone: list[Due] = []
        self._passed = 0  # saved records that are delivered since
        self._progress = Progress()
        self._saved = 0
        self._saved_at_s = 0.0
        self._outdated = False  # the index, beyond the horizon of the window
        self._saving: dict[int, Arrival] = {}
        self._one_save = asyncio.Lock()
        self._save_task: asyncio.Task[None] | None = None
        self._generation = 0
        self.followed = 0

    async def open(self, progress: Progress) -> None:
        """Begin with what the index has. Raises KafkaError, OSError, sqlite3.Error."""
        with suppress(KafkaError, sqlite3.Error):  # what failed is read again
            await self.finish_saving(wait=True)
        number = self._partition.number
        self._generation = self._index.generation
        found = await self._env.offload.submit("files", self._index.read_followed, number)
        if found is not None and found.until > self._partition.next_offset:
            # With flush=os a crash can lose records that the index has.
            await self._env.offload.submit("files", self._index.delete_partition, number)
            found = None
        self.followed = self._partition.log_start if found is None else found.until
        self._saved = 0 if found is None else found.records
        self._window = DueWindow(horizon=None if found is None else BEFORE_ALL)
        self._unsaved.clear()
        self._saving = {}
        self._replaced.clear()
        self._gone.clear()
        self._passed = 0
        self._progress = Progress()
        self._outdated = False
        self._saved_at_s = self._env.clock.monotonic()
        # Before anything is followed: a record that repeats may be in the index with a due time
        # that is delivered, and what cancels it looks for the next one.
        await self.fill(progress)

    async def rebuild_index(self, reason: str) -> None:
        """Replace a damaged index by an empty one, unless another partition has done it. The next
        `open` begins with it, or finds the damage again if that failed."""
        try:
            await self._env.offload.submit("files", self._index.recreate, reason, self._generation)
        except (OSError, sqlite3.Error) as error:
            logger.error("the damaged index of waiting records cannot be replaced: %s", error)

    # -- arrivals -------------------------------------------------------------------------

    def instruction(self, record: Record) -> Instruction:
        """Return what a record of the partition asks for."""
        config = self._partition.config
        return instruction_of(
            record, compacted=config.cleanup_compact, target_header=config.schedule_header
        )

    async def follow(self, progress: Progress) -> list[tuple[int, str]]:
        """Enter the next committed records. Return the offsets of those that cannot be delivered,
        with the reasons. Raises KafkaError, OSError, sqlite3.Error."""
        found, after = await self._feed.follow(self.followed)
        invalid: list[tuple[int, str]] = []
        for record in found:
            await self._enter(record, progress, invalid)
            await self._env.slices.give_way()
        self.followed = after
        # Records of compacted topics are saved at once: the index finds those that they replace.
        if self._replaced or self._changes() >= UNSAVED_MAX:
            await self.save()
        return invalid

    async def _enter(
        self, record: Record, progress: Progress, invalid: list[tuple[int, str]]
    ) -> None:
        asked = self.instruction(record)
        key = None
        if self._partition.config.cleanup_compact and record.key is not None:
            key = blake2b(record.key, digest_size=KEY_HASH_BYTES).digest()
            self._replaced[key] = record.offset
        if isinstance(asked, CancelOffset):
            await self._cancel(asked.offset, progress)
            return
        if isinstance(asked, Invalid):
            invalid.append((record.offset, asked.reason))
        # An invalid one, too, has replaced the record before it with its key.
        if isinstance(asked, Invalid | CancelKey):
            return
        due_ms = first_waiting(asked, record.offset, progress)
        if due_ms is not None:
            repeats = asked.repetition is not None
            self._add(Arrival(due_ms, record.offset, repeats, key, _content(record)))

    async def _cancel(self, offset: int, progress: Progress) -> None:
        # The index has it still, so it must be saved before the window is filled from there.
        self._outdated = True
        arrival = self._unsaved.pop(offset, None)
        self._window.discard(offset)
        if arrival is not None:
            self._gone.append((arrival.due_ms, offset))
            return
        # Rows of the index are found by their due time, which only the record itself tells.
        record = (await self._feed.find([offset])).get(offset)
        asked = None if record is None else self.instruction(record)
        if isinstance(asked, Delivery):
            due_ms = first_waiting(asked, offset, progress)
            if due_ms is not None:
                self._gone.append((due_ms, offset))

    def _add(self, arrival: Arrival) -> None:
        self._unsaved[arrival.offset] = arrival
        if not self._window.add(arrival.due_ms, arrival.offset):
            self._outdated = True

    # -- what is due ----------------------------------------------------------------------

    def first_due_ms(self) -> int | None:
        """Return when the next record is due; None: no record waits. Call `fill` before."""
        first = self._window.first_due()
        return None if first is None else first[0]

    def overdue_ms(self, now_ms: int) -> int:
        """Return for how long the next record has been due; 0 if it is not."""
        first_ms = self.first_due_ms()
        return 0 if first_ms is None else max(0, now_ms - first_ms)

    def next_due(self, count: int, until_ms: int) -> list[Due]:
        """Return the next records, at most `count`, that are due at or before `until_ms`. Call
        `fill` before."""
        return self._window.next_due(count, until_ms)

    def until(self, entries: Sequence[Due], count: int, until_ms: int) -> Due:
        """Return up to which due time everything is delivered when `entries` are, the result of
        `next_due` with the same arguments."""
        horizon = self._window.horizon
        # All that was due: records with these due times that arrive later are late ones.
        if len(entries) < count and (horizon is None or horizon[0] > until_ms):
            return until_ms, LAST_OFFSET
        return entries[-1]

    def remove_delivered(
        self, entries: Collection[Due], again: Sequence[Arrival], progress: Progress
    ) -> None:
        """Remove records that are delivered, or held, which the state has; `again`: those that
        repeat, with their next due time. `progress`: with these records, committed."""
        for _, offset in entries:
            self._window.discard(offset)
            if self._unsaved.pop(offset, None) is None:
                self._passed += 1
        self._progress = progress
        for arrival in again:
            self._add(arrival)

    def again(self, record: Record, delivery: Delivery, progress: Progress) -> Arrival | None:
        """Return how a delivered record waits for its next due time; None: it is done."""
        due_ms = first_waiting(delivery, record.offset, progress)
        if due_ms is None:
            return None
        key = None
        if self._partition.config.cleanup_compact and record.key is not None:
            key = blake2b(record.key, digest_size=KEY_HASH_BYTES).digest()
        return Arrival(due_ms, record.offset, True, key, _content(record))

    async def records(self, entries: Sequence[Due]) -> dict[int, Record]:
        """Return the records of entries, which are in the order of delivery, by offset; those that
        are not in the log any more are absent. Raises KafkaError, OSError, sqlite3.Error."""
        found: dict[int, Record] = {}
        rest: dict[int, Due] = {}
        for entry in entries:
            offset = entry[1]
            arrival = self._unsaved.get(offset) or self._saving.get(offset)
            if arrival is not None and arrival.content is not None:
                found[offset] = load_record(arrival.content, offset)
            else:
                rest[offset] = entry
            await self._env.slices.give_way()
        if rest:
            dues = sorted(rest.values())
            rows = await self._env.offload.submit(
                "files", self._index.contents, self._generation, self._partition.number, dues[0],
                dues[-1], 2 * len(dues),
            )  # fmt: skip
            for offset, content in rows:
                if rest.pop(offset, None) is not None:
                    found[offset] = load_record(content, offset)
                await self._env.slices.give_way()
        return found | await self._feed.find(rest) if rest else found

    async def fill(self, progress: Progress) -> None:
        """Have the next waiting records in memory. Raises KafkaError, OSError, sqlite3.Error."""
        while self._window.first_due() is None and self._window.horizon is not None:
            if self._outdated or self._saving:
                await self.save()
            rows = await self._env.offload.submit(
                "files", self._index.next_entries, self._generation, self._partition.number,
                self._window.horizon, WINDOW_RECORDS,
            )  # fmt: skip
            complete = len(rows) < WINDOW_RECORDS
            self._window.refill([row.due for row in rows], complete=complete)
            await self._drop_delivered(rows, progress)

    async def _drop_delivered(self, rows: Sequence[Arrival], progress: Progress) -> None:
        """Correct rows that were delivered after the index was last saved."""
        repeating: list[int] = []
        for row in rows:
            until = progress.delivered_until(row.offset)
            if until is not None and row.due <= until:
                self._window.discard(row.offset)
                self._gone.append(row.due)
                if row.repeats:
                    repeating.append(row.offset)
        for record in (await self._feed.find(repeating)).values():
            asked = self.instruction(record)
            if isinstance(asked, Delivery):
                arrival = self.again(record, asked, progress)
                if arrival is not None:
                    self._add(arrival)

    # -- saving ---------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of waiting records; held ones are not among them."""
        waiting = self._saved + len(self._saving) + len(self._unsaved)
        waiting -= len(self._gone) + self._passed
        return max(waiting, len(self._window))

    def due_until(self, until_ms: int) -> int:
        """Return how many of the records in memory are due at or before `until_ms`."""
        return self._window.count(until_ms)

    async def hours(self, limit: int) -> list[tuple[int, int]]:
        """Return (start of an hour in ms, saved records that are due in it), the next hours first.
        Raises sqlite3.Error."""
        number = self._partition.number
        return await self._env.offload.submit("files", self._index.per_hour, number, limit)

    def has_unsaved(self) -> bool:
        return self._changes() > 0

    def _changes(self) -> int:
        return len(self._unsaved) + len(self._gone) + self._passed

    async def save_if_due(self) -> None:
        elapsed_s = self._env.clock.monotonic() - self._saved_at_s
        if elapsed_s >= SAVED_EVERY_S and self.has_unsaved():
            await self.save()

    def save_many(self) -> None:
        """Save in the background if there is much to save; `finish_saving` reports failures."""
        if self._changes() >= UNSAVED_MAX and self._save_task is None:
            self._save_task = self._env.spawn(self.save(), "save the index of waiting records")

    async def finish_saving(self, *, wait: bool = False) -> None:
        """Raise what an ended save in the background has raised; `wait`: wait for its end."""
        task = self._save_task
        if task is not None and (wait or task.done()):
            self._save_task = None
            await task

    async def save(self) -> None:
        """Save everything that changed. Raises KafkaError, sqlite3.Error."""
        async with self._one_save:
            self._saved_at_s = self._env.clock.monotonic()
            self._saving, self._unsaved = self._unsaved, {}
            replaced, self._replaced = list(self._replaced.items()), {}
            gone, self._gone, self._passed = self._gone, [], 0
            # What is delivered from here on removes nothing: its repetitions are in the next save.
            corners = self._progress.corners
            self._outdated, followed = False, self.followed
            # The index must not know of what a crash can lose: its offsets would be given again.
            await self._commit_log.wait_until_durable()
            removed, self._saved = await self._env.offload.submit(
                "files", self._index.save, self._generation, self._partition.number, followed,
                list(self._saving.values()), replaced, gone, corners,
            )  # fmt: skip
            for offset in removed:
                self._window.discard(offset)
            self._saving = {}

    async def least_offset(self) -> int:
        """Return the lowest offset of a waiting record, or of what is not followed. Raises
        KafkaError, sqlite3.Error."""
        await self.save()
        index, number = self._index, self._partition.number
        found = await self._env.offload.submit("files", index.least_offset, number)
        return self.followed if found is None else min(found, self.followed)
