"""Lives of a simulated log between which the disk loses acknowledged data.

After an end a byte of a journal is flipped, or a journal is removed or truncated: one damage at a
time, and only within what the ledger records as committed (a loss in what the ledger misses after a
machine failure, at most a second, cannot be noticed). Acknowledged records may be lost then, but
every lost offset is answered with an error, none is assigned again, everything else is there, and
fsck reports the loss first. Sometimes `fsck --repair --skip-lost` discards what is lost: readers
may skip exactly that.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from itertools import count

from kafkawire.codec.errors import DamagedOffsets, ErrorCode, KafkaError
from kafkawire.fsck.check import check as fsck
from kafkawire.log.journal.file import POSITION_MASK, journal_name
from kafkawire.log.journal.ledger import read_ledger
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead
from kafkawire.log.recovery.given_up import read_given_up
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.storage.memory import MemoryStorage
from tests.kit.log.life import LastLife, Life, expect
from tests.kit.log.logs import FOLDER, values
from tests.kit.log.model import Model, Producer
from tests.kit.memfs import Node

JOURNALS = f"{FOLDER}/journals"
VERSION_FIELD = range(8, 12)
"""Length of a journal's header: damage there looks like a newer format, which a start refuses to
open."""


class DamagedModel(Model):
    """`excused`: acknowledged records that are known to be lost; `harmed`: the damage done so far;
    `given_up`: offsets by partition that readers may skip."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.config.flush = "commit"
        self.excused: set[tuple[int, int]] = set()
        self.harmed: list[str] = []
        self.given_up: dict[int, set[int]] = defaultdict(set)


class DamagedLife(Life):
    """A life that may find damage, and cause some at its end."""

    model: DamagedModel

    async def end(self, tasks: list[asyncio.Task[None]]) -> None:
        await super().end(tasks)
        if self.rng.random() < 0.7:
            harm = harm_journal(self.model)
            if harm:
                self.model.harmed.append(harm)
                self.model.trace.append(harm)
                # The state of a producer's last batches may have been in what is lost.
                self.model.producers = [
                    Producer(self.model, self.rng.randrange(1 << 40)) for _ in self.model.producers
                ]

    async def inspect(self, catalog: Catalog, storage: MemoryStorage) -> None:
        report = await fsck(self.env, FOLDER, 1, catalog, storage, self.metadata)
        self.clean = report.clean
        assert report.clean or self.model.harmed, report.problems
        if not report.clean and self.rng.random() < 0.4:
            aside = any("into the quarantine" in each.repair for each in report.problems)
            await report.repair(skip_lost=True)
            if aside:
                # A rebuild could have used the file, which had the only copy of something: that is
                # given up by the next repair.
                report = await fsck(self.env, FOLDER, 1, catalog, storage, self.metadata)
                await report.repair(skip_lost=True)
            self.model.trace.append("gave up what is lost")
            for number, (_, ranges) in read_given_up(self.env.fs, FOLDER).ranges.items():
                for one in ranges:
                    self.model.given_up[number].update(range(one.first, one.end))
            again = await fsck(self.env, FOLDER, 1, catalog, storage, self.metadata)
            assert again.clean, [p for p in again.problems if not p.harmless]

    async def check(self) -> None:
        model = self.model
        for partition in self.partitions:
            given_up = model.given_up[partition.number]
            found, refused = await read_left(partition, given_up)
            assert set(found.values()) <= model.sent, "a record is there that no producer sent"
            assert len(set(found.values())) == len(found), "a record is stored twice"
            for key, value in model.promised.items():
                number, offset = key
                if number != partition.number or offset < partition.log_start:
                    continue
                assert offset < partition.next_offset, f"offset {key} will be assigned again"
                if found.get(offset) == value:
                    continue
                assert model.harmed, f"{partition.index} lost offset {offset}"
                if offset not in given_up:
                    assert offset in refused, f"offset {key} is missing without an error"
                    assert not self.clean, f"fsck does not know that offset {key} is lost"
                model.excused.add(key)
            for offset, stored in found.items():
                model.record_stored(partition, offset, stored)

    async def reader(self) -> None:
        """Read like a client of an undamaged log, and continue elsewhere where a read fails."""
        while True:
            await self.env.sleep(self.rng.random() * 0.1)
            partition = self.rng.choice(self.partitions)
            if self.rng.random() < 0.5:
                self.log.commit_log.want_commit()
            try:
                given_up = self.model.given_up[partition.number]
                found, _ = await read_left(partition, given_up)
            except KafkaError as failure:
                expect(failure, ErrorCode.OFFSET_OUT_OF_RANGE)
                continue
            if not self.over:
                for offset, value in found.items():
                    self.model.record_stored(partition, offset, value)


class DamagedLastLife(DamagedLife, LastLife):
    """The last life, after which nothing is damaged."""


async def read_left(
    partition: Partition, given_up: Collection[int] = ()
) -> tuple[dict[int, bytes], set[int]]:
    """Everything below the high watermark that can be read, and the offsets that are answered with
    an error. No offset above the log start may be missing from both, except discarded ones."""
    found: dict[int, bytes] = {}
    refused: set[int] = set()
    offset = partition.log_start
    while offset < partition.high_watermark:
        try:
            got = await read_some(partition, offset)
        except DamagedOffsets as failure:
            refused.update(range(offset, failure.end))
            offset = failure.end
            continue
        if offset in given_up and (not got or min(got) > offset):
            offset += 1
            continue
        assert got, f"nothing at {offset}, before {partition.high_watermark}"
        assert min(got) <= offset, f"offset {offset} is skipped without an error"
        found.update(got)
        offset = next(at for at in count(offset) if at not in got)
    return {at: value for at, value in found.items() if at >= partition.log_start}, refused


async def read_some(partition: Partition, offset: int) -> dict[int, bytes]:
    """The result of one Fetch."""
    plan = partition.plan(offset, 1 << 20, partition.high_watermark, True)
    if isinstance(plan, HotRead):
        views, release = partition.log.views(plan)
        got = values(list(views))
        release()
    else:
        got = values(await partition.log.read(plan))
    return {at: value or b"" for at, value in got}


def harm_journal(model: DamagedModel) -> str:
    """Damage one journal of a log that is not running; return a description, "" if there is no
    journal."""
    rng, fs = model.rng, model.fs
    ledger = read_ledger(fs, FOLDER)
    assert ledger is not None, "a ledger is written before anything is served"
    last = ledger.committed >> 32
    # A journal after that one may have ended without a commit, as far as the ledger knows.
    ends = {number: end for number, end in ledger.journals.items() if end > 0 and number < last}
    if ledger.committed & POSITION_MASK:
        ends[last] = ledger.committed & POSITION_MASK
    there = [n for n in sorted(ends) if f"{JOURNALS}/{journal_name(n)}" in fs.files]
    if not there:
        return ""
    number = rng.choice([*there, there[-1]])
    path = f"{JOURNALS}/{journal_name(number)}"
    how = rng.choice(("flip", "flip", "remove", "cut"))
    node = fs.files[path]
    if how == "remove":
        _forget(model, path)
        return f"removed {number}"
    if how == "cut":
        size = rng.randrange(ends[number])
        node.resize(size)
        settle(node)
        return f"cut {number} at {size}"
    at = rng.randrange(ends[number])
    if at in VERSION_FIELD:
        return ""
    node.data[at] ^= 1 << rng.randrange(8)
    settle(node)
    return f"flipped {number} at {at}"


def settle(node: Node) -> None:
    """Make the disk match what programs see."""
    node.writes.clear()
    node.durable = bytearray(node.data)


def _forget(model: DamagedModel, path: str) -> None:
    model.fs.files.pop(path, None)
    model.fs.durable.pop(path, None)
