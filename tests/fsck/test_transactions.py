"""fsck of transactions: nothing to report after every kind of end, each difference is located.

Covers: kafkawire.fsck.transactions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kafkawire.codec.control import Aborted
from kafkawire.log.journal.file import index_name
from kafkawire.log.journal.index_file import read_index
from kafkawire.log.segments.file.open import SegmentFile
from kafkawire.metadata.checkpoint import Checkpoint
from tests.kit.log.cutting import cut, fill, started
from tests.kit.log.fsck import scanned
from tests.kit.log.logs import FOLDER, World
from tests.kit.log.transactional import Producer
from tests.kit.memory_metadata import MemoryMetadata
from tests.kit.waiting import settle

ONE, TWO, THREE = 1, 2, 3


async def stopped(power: bool | None = None) -> World:
    """Aborted: 0, 61 of producer 1 (marker 62) in segments, of producer 2 in the journals; open: of
    producer 3; a marker without records."""
    world = await started(1)
    partition = world.find("t0")
    one, two, three = Producer(ONE), Producer(TWO), Producer(THREE)
    one.send(partition, b"aborted")
    await world.log.commit_log.wait_until_committed()
    await fill(partition, 60)
    one.send(partition, b"aborted")
    one.end(partition, commit=False)
    one.end(partition, commit=False)  # the coordinator sent it twice
    await world.log.commit_log.wait_until_committed()
    await fill(partition, 20)
    await cut(world)
    assert partition.cut_offset > 63
    two.send(partition, b"aborted")
    two.end(partition, commit=False, version=2)
    two.send(partition, b"committed")
    two.end(partition, commit=True, version=2)
    three.send(partition, b"open")
    await world.log.commit_log.wait_until_committed()
    await fill(partition, 40)  # the journal with the markers is rolled, and indexed
    await settle()
    await world.log.checkpoint()
    if power is None:
        await world.log.close()
    else:
        await world.abandon()
        world.fs.crash() if power else world.fs.kill()
        world.metadata = MemoryMetadata(world.database)
        world.catalog = await world.metadata.open()
        world.storage = world.metadata.storage(world.env.clock.now_ms)
    return world


async def problems(world: World) -> list[str]:
    report = await scanned(world)
    return [f"{each.where}: {each.text}" for each in report.problems if not each.harmless]


@pytest.mark.parametrize("power", [None, False, True])
async def test_transactions_are_counted_and_nothing_is_wrong(power: bool | None) -> None:
    world = await stopped(power)
    report = await scanned(world)
    assert report.clean, [each.text for each in report.problems]
    assert (report.open_transactions, report.aborted_transactions) == (1, 2)
    assert report.lone_markers == 1


def with_aborted(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Make the lists of segments say something else."""
    states = SegmentFile.states

    def changed(file: SegmentFile, *pace: Any) -> Any:
        found = states(file, *pace)
        for state in found.values():
            state.aborted = change(state.aborted)
        return found

    monkeypatch.setattr(SegmentFile, "states", changed)


async def test_transaction_that_a_segment_leaves_out_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await stopped()
    with_aborted(monkeypatch, lambda entries: [])
    found = await problems(world)
    assert found
    for text in found:
        assert text.startswith("t0-0: the segment of offsets ")
        assert "leaves out the aborted transaction of producer 1 that ends at offset 62" in text


async def test_transaction_that_a_segment_invents_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await stopped()
    with_aborted(monkeypatch, lambda entries: sorted([*entries, Aborted(9, 10, 20)]))
    assert any(
        "lists an aborted transaction of producer 9 at offsets 10-20, which the log does not have"
        in text
        for text in await problems(world)
    )


async def test_wrong_first_offset_in_a_segment_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await stopped()
    with_aborted(
        monkeypatch, lambda entries: [Aborted(pid, first + 1, end) for pid, first, end in entries]
    )
    assert any("began at offset 1 of producer 1, its batches at 0" in text
               for text in await problems(world))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda entries: [], "leaves out the aborted transaction of producer 2"),
        (
            lambda entries: [*entries, Aborted(9, 84, 90)],
            "lists an aborted transaction of producer 9",
        ),
    ],
)
async def test_index_that_differs_from_its_journal_is_removed(
    monkeypatch: pytest.MonkeyPatch, change: Any, what: str
) -> None:
    world = await stopped()

    def changed(*arguments: Any) -> Any:
        index = read_index(*arguments)
        if index is not None and index.transactions is not None and index.transactions.aborted:
            aborted = {n: change(found) for n, found in index.transactions.aborted.items()}
            index.transactions = replace(index.transactions, aborted=aborted)
        return index

    with monkeypatch.context() as patch:
        patch.setattr("kafkawire.fsck.journals.read_index", changed)
        report = await scanned(world)
    (problem,) = [each for each in report.problems if what in each.text]
    assert problem.text.startswith("of t0-0, its index ")
    number = int(problem.where.removeprefix("journal "))
    path = f"{FOLDER}/journals"
    assert index_name(number) in world.fs.listdir(path)
    await report.repair()
    assert index_name(number) not in world.fs.listdir(path)
    assert await problems(world) == []


@pytest.mark.parametrize(
    ("open_offset", "what"),
    [
        (-1, "leaves out the transaction that producer 3 has open since offset 88"),
        (86, "has a transaction of producer 3 open since offset 86, its batches do not"),
    ],
)
async def test_checkpoint_that_differs_from_the_log_is_reported(
    open_offset: int, what: str
) -> None:
    world = await stopped()
    (row,) = await world.storage.load_partitions([world.catalog.by_name["t0"].partitions[0].number])
    assert row.checkpoint is not None
    row.checkpoint.producers = [
        replace(each, open_offset=open_offset) if each.producer_id == THREE else each
        for each in row.checkpoint.producers
    ]
    log_position = await world.storage.load_log_position(1)
    await world.storage.save_checkpoint(Checkpoint(1, log_position, [row.checkpoint]))
    assert any(text.startswith("t0-0: the checkpoint ") and what in text
               for text in await problems(world))  # fmt: skip
