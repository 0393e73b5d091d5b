"""The rot trial must fail where a broker serves what it should not: a test for each of its checks.

Each changes a folder as damage that no checksum notices would: with the right checksums.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from crc32c import crc32c

from kafkawire.codec.batches import load_record
from kafkawire.log.journal import format as journals
from kafkawire.schedules.waiting import Arrival, WaitingIndex
from tests.trials.context import Context
from tests.trials.flip.base import make
from tests.trials.flip.damage import Hit
from tests.trials.flip.kinds import HARMLESS, Kind
from tests.trials.records import CRC_FROM, records_of, scan
from tests.trials.rot.base import YEARS_MS, RotBase
from tests.trials.rot.case import case_of
from tests.trials.rot.damage import NO_RECORDS

pytestmark = [pytest.mark.real, pytest.mark.slow]

WRITTEN_MS = int(time.time() * 1000)
KIND = Kind("sabotage", "", HARMLESS, "no checksum notices it")


@dataclass(frozen=True, slots=True)
class Sabotage:
    """A change of a folder instead of a flipped bit."""

    change: Callable[[Path], None]

    def apply(self, folder: Path) -> None:
        """Change the folder; see Rot."""
        self.change(folder)

    def hit(self, pristine: Path, kind: Kind) -> Hit:
        """Return none: nothing may be lost. See Rot."""
        return NO_RECORDS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[RotBase, Path]:
    """The folder of a round, and the path of its copy."""
    folder = tmp_path_factory.mktemp("rot")
    context = Context("rot", 1, 0, folder, time.monotonic() + 60, short=True)
    base = asyncio.run(make(context, RotBase))
    assert isinstance(base, RotBase)
    pristine = folder / "pristine"
    base.folder.rename(pristine)
    return base, pristine


async def findings(written: tuple[RotBase, Path], change: Callable[[Path], None]) -> str:
    """Return the findings of a case of the trial."""
    base, pristine = written
    context = Context("rot", 1, 0, base.folder.parent, time.monotonic() + 60, short=True)
    await case_of(context, base, pristine, "", KIND, Sabotage(change)).run()
    return "\n".join(finding.text for finding in context.findings)


def replace_waiting(folder: Path, change: Callable[[Arrival], Arrival | None]) -> None:
    """Change the waiting records of the index, as its own code would store them."""
    (path,) = folder.glob("data/brokers/*/schedules.db")
    with closing(sqlite3.connect(path)) as connection:
        ((number, until),) = connection.execute("SELECT number, until FROM followed").fetchall()
    index = WaitingIndex(str(path))
    index.open()
    rows = index.next_entries(0, number, (-1, -1), 1000)
    assert any(row.due_ms < WRITTEN_MS + YEARS_MS / 2 for row in rows), "none is due soon"
    index.delete_partition(number)
    changed = [each for each in map(change, rows) if each is not None]
    assert changed != rows
    index.save(0, number, until, changed, [], [])
    index.close()


async def test_other_bytes_of_a_delayed_record(written: tuple[RotBase, Path]) -> None:
    def other(row: Arrival) -> Arrival:
        if row.content is None or row.due_ms > WRITTEN_MS + YEARS_MS / 2:
            return row
        value = load_record(row.content, row.offset).value or b""
        return row._replace(content=row.content.replace(value, b"9" + value[1:]))

    found = await findings(written, lambda folder: replace_waiting(folder, other))
    assert "delivered with other bytes" in found


async def test_delayed_record_that_is_early(written: tuple[RotBase, Path]) -> None:
    def early(row: Arrival) -> Arrival:
        return row._replace(due_ms=min(row.due_ms, WRITTEN_MS))

    found = await findings(written, lambda folder: replace_waiting(folder, early))
    assert "early by years" in found


async def test_delayed_record_that_is_never_delivered(
    written: tuple[RotBase, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.trials.rot.case.DELIVERED_WITHIN_S", 5.0)

    def without(row: Arrival) -> Arrival | None:
        return None if row.due_ms < WRITTEN_MS + YEARS_MS / 2 else row

    found = await findings(written, lambda folder: replace_waiting(folder, without))
    assert "delayed records are not delivered" in found


def change_record(folder: Path) -> None:
    """Change a byte of a record in the last journal with records, and the checksums over it."""
    for path in sorted(folder.glob("data/brokers/*/journals/*.journal"), reverse=True):
        data = bytearray(path.read_bytes())
        for batch in scan(bytes(data)):
            if not all(each.uid > 0 for each in records_of(bytes(data), batch)):
                continue
            frame = data.rindex(journals.MAGIC, 0, batch.start)
            data[batch.end - 20] ^= 1  # of the value; a header with the id follows
            crc = crc32c(data[batch.start + CRC_FROM : batch.end])
            data[batch.start + 17 : batch.start + 21] = crc.to_bytes(4, "big")
            sum_frame(data, frame)
            path.write_bytes(data)
            return
    raise AssertionError("no journal has a record")


def sum_frame(data: bytearray, at: int) -> None:
    """Compute the checksum of a frame again."""
    length = int.from_bytes(data[at + 8 : at + 12], "big")
    checksum = crc32c(data[at + 8 : at + journals.HEAD_BYTES])
    start = at + journals.HEAD_BYTES
    end = start + length
    while start < end:
        checksum = crc32c(data[start : start + journals.BATCH_PREFIX_BYTES], checksum)
        start += 12 + int.from_bytes(data[start + 8 : start + 12], "big")
    data[at + 4 : at + 8] = checksum.to_bytes(4, "big")


async def test_other_bytes_of_a_record(written: tuple[RotBase, Path]) -> None:
    assert "other bytes" in await findings(written, change_record)


async def test_topic_and_its_records_that_are_gone(written: tuple[RotBase, Path]) -> None:
    base, _ = written
    topic = base.topics.pop()
    base.extra["gone"] = topic  # a topic that the ledger takes for deleted is there
    try:
        found = await findings(written, lambda folder: None)
    finally:
        base.topics.append(base.extra.pop("gone"))
    assert found


async def test_offset_that_is_given_again(written: tuple[RotBase, Path]) -> None:
    base, _ = written
    ledger = base.topics[0].ledgers[0]
    newest = max(ledger.acked)
    ledger.acked[newest + 100] = ledger.acked[newest]  # the ledger knows more than the log
    try:
        found = await findings(written, lambda folder: None)
    finally:
        del ledger.acked[newest + 100]
    assert "given again" in found
    assert "skipped without an error" in found


async def test_sound_folder_passes(written: tuple[RotBase, Path]) -> None:
    assert await findings(written, lambda folder: None) == ""
