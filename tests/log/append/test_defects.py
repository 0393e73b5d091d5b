"""Exceptions during a write batch or a commit: every waiting caller is called back, with an
error."""

from __future__ import annotations

import logging
import struct
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.journal.directory import Journals
from kafkawire.log.partition.partition import Partition
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, offload, read_all
from tests.kit.waiting import ticks


async def one_partition(**settings: Any) -> tuple[World, CommitLog, Partition]:
    world = World(**settings)
    log = await world.start()
    (partition,) = await world.topic("t")
    return world, log.commit_log, partition


def appended(log: CommitLog, partition: Partition, value: bytes) -> list[BaseException | None]:
    """The arguments of the two callbacks of an append, in time."""
    partition.append(batch(value), EPOCH_MS)
    answers: list[BaseException | None] = []
    log.after_write(answers.append)
    log.after_commit(answers.append)
    return answers


def codes(answers: list[BaseException | None]) -> list[ErrorCode | None]:
    return [answer.code if isinstance(answer, KafkaError) else None for answer in answers]


@pytest.mark.interpreted
async def test_write_batch_that_cannot_be_laid_out_fails_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, log, partition = await one_partition()

    def overflow(*values: int) -> bytes:
        raise struct.error("int too large to convert")

    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.log.journal.write_batch.pack_body", overflow)
        answers = appended(log, partition, b"lost")
        await ticks()
    assert codes(answers) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert "int too large" in caplog.text
    assert "Traceback" in caplog.text
    assert partition.named_in == -1  # nor was its naming frame written
    answers = appended(log, partition, b"kept")
    await ticks()
    assert answers == [None, None]
    assert await read_all(partition) == [(0, b"kept")]
    await world.crash()
    assert await read_all(world.find("t")) == [(0, b"kept")]


@pytest.mark.interpreted
async def test_exception_while_applying_written_batch_stops_writing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, log, partition = await one_partition()
    first = appended(log, partition, b"first")
    await ticks()
    assert first == [None, None]

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(Journals, "note_written", broken)
        answers = appended(log, partition, b"unknown")
        await ticks()
    assert codes(answers) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert "memory may differ from the journal" in caplog.text
    with pytest.raises(KafkaError):
        partition.append(batch(b"refused"), EPOCH_MS)
    assert await read_all(partition) == [(0, b"first")]
    await world.crash(power=False)
    assert (await read_all(world.find("t")))[0] == (0, b"first")


@pytest.mark.parametrize("slow", [False, True])
async def test_failing_statvfs_does_not_stop_writes(
    slow: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """statvfs fails when the next journal is prepared, after a write of the writer's thread."""
    caplog.set_level(logging.WARNING)
    world, log, partition = await one_partition(journal_bytes=1 << 20)
    journals = world.log.journals
    journals.ready.clear()
    for spare in journals.spares:
        world.fs.remove(spare.path)
    journals.spares.clear()
    log.writer.slow = slow
    world.log.commit_log.writer.slow_s = -1.0 if slow else 1e9
    with monkeypatch.context() as patched:

        def broken(_: str) -> tuple[int, int]:
            raise OSError(5, "Input/output error")

        patched.setattr(world.fs, "free_bytes", broken)
        if slow:
            offload(world).hold("write")
        first = appended(log, partition, bytes(600_000))
        await ticks(2)
        second = appended(log, partition, b"queued while that is written")
        await ticks(2)
        if slow:
            offload(world).release("write")
        await ticks()
    assert first == [None, None]
    assert second == [None, None]
    assert "cannot prepare the next journal" in caplog.text


async def test_commit_that_cannot_start_fails_all_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, log, partition = await one_partition()

    def no_thread(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(world.env.offload, "submit_then", no_thread)
    answers = appended(log, partition, b"written")
    await ticks()
    assert codes(answers) == [None, ErrorCode.KAFKA_STORAGE_ERROR]
    assert log.failed is not None
    assert "can't start new thread" in log.failed
