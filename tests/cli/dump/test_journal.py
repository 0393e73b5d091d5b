"""`kafkawire dump` of a journal: every frame is shown, and bytes that are not a frame are reported.

Covers: kafkawire.cli.dump.journal, kafkawire.cli.dump.records.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.codec.batches import build
from kafkawire.codec.control import ABORT, COMMIT, pack_marker
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.dump import FrameShown, GapShown, walk
from kafkawire.log.journal.format import HEAD_BYTES, HEADER_BYTES, JournalHeader, Naming
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state.records import StateSnapshot, StateUpdate, StoredShareState
from kafkawire.share.state.records import encode_record as encode_share_state
from kafkawire.transactions.machine.records import TransactionRecord, encode_record
from kafkawire.transactions.machine.transaction import ONGOING, Transaction

NUMBER = 7
TOPIC_ID = bytes(range(16))


class Written:
    """A journal built by hand; `at` is the position of each frame."""

    def __init__(self, number: int = NUMBER) -> None:
        self.number = number
        self.data = bytearray(journal_format.write_header(JournalHeader(number, 1 << 32, 5, 1000)))
        self.at: list[int] = []

    def add(self, kind: int, parts: list[bytes], *, of: int = 0, run: int = 1 << 32) -> Written:
        position = len(self.data)
        log_position = self.number << 32 | position
        batches = len(parts) if kind == journal_format.KIND_BATCH else 0
        length = sum(map(len, parts))
        head = struct.pack(
            ">IHHqqqq", length, kind, batches, log_position, run, of, log_position - 8
        )
        covered = [part[:21] if batches else part for part in parts]
        self.data += (
            journal_format.MAGIC + struct.pack(">I", crc32c(head + b"".join(covered))) + head
        )
        self.data += b"".join(parts)
        self.data += bytes(-len(self.data) % 8)
        self.at.append(position)
        return self

    def name(self, of: int, topic: str, index: int) -> Written:
        naming = Naming(TOPIC_ID, topic, index, 3, 10, 4)
        return self.add(journal_format.KIND_NAMING, [journal_format.write_naming(naming)], of=of)

    def batch(self, of: int, base: int, run: int = 1 << 32) -> Written:
        made = build([(b"k", b"v"), (None, b"w")], base_offset=base, timestamp_ms=86_400_000)
        return self.add(journal_format.KIND_BATCH, [bytes(made)], of=of, run=run)

    def walk(self) -> list[FrameShown | GapShown]:
        return list(walk(memoryview(bytes(self.data)), self.number))


@pytest.fixture
def written() -> Written:
    body = journal_format.write_catalog({"name": "t", "id": "x"})
    journal = Written().add(journal_format.KIND_TOPIC_CREATED, [body])
    return journal.name(42, "t", 1).batch(42, 10).batch(42, 12)


def test_every_frame_is_shown(written: Written) -> None:
    shown = written.walk()
    assert [(item.position, item.kind) for item in shown if isinstance(item, FrameShown)] == list(
        zip(written.at, ("topic created", "naming", "batch", "batch"), strict=True)
    )
    naming, batch = shown[1], shown[2]
    assert isinstance(naming, FrameShown)
    assert isinstance(batch, FrameShown)
    assert naming.says["topic_id"] == "AAECAwQFBgcICQoLDA0ODw"
    assert (naming.says["next_offset"], naming.says["log_start"]) == (10, 4)
    assert [(b.head.base_offset, b.head.count, b.sound) for b in batch.batches] == [(10, 2, True)]


def test_bytes_after_last_frame_are_reported_as_end(written: Written) -> None:
    end = len(written.data)
    written.data += bytes(1000)
    assert written.walk()[-1] == GapShown(end, end + 1000, True)


def test_damaged_frame_is_reported_as_gap(written: Written) -> None:
    written.data[written.at[2] + 50] ^= 1
    shown = written.walk()
    assert shown[2] == GapShown(written.at[2], written.at[3], False)
    assert isinstance(shown[3], FrameShown)


def test_damaged_records_in_valid_frame_are_reported(written: Written) -> None:
    written.data[written.at[2] + HEAD_BYTES + 65] ^= 1
    item = written.walk()[2]
    assert isinstance(item, FrameShown)
    assert [batch.sound for batch in item.batches] == [False]


def test_frames_of_previous_use_of_file_are_not_shown(written: Written) -> None:
    end = len(written.data)
    written.data += Written(number=3).batch(1, 0).data[HEADER_BYTES:]
    assert written.walk()[-1] == GapShown(end, len(written.data), True)


def test_frame_of_older_run_is_not_shown() -> None:
    journal = Written().batch(1, 0, run=5 << 32).batch(1, 2, run=4 << 32).batch(1, 2, run=6 << 32)
    first, gap, last = journal.walk()
    assert gap == GapShown(journal.at[1], journal.at[2], False)
    assert isinstance(first, FrameShown)
    assert isinstance(last, FrameShown)
    assert last.position == journal.at[2]


def test_dump_journal_as_json(written: Written, tmp_path: Path) -> None:
    file = tmp_path / "7.journal"
    file.write_bytes(written.data)
    result = CliRunner().invoke(app, ["dump", str(file), "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0] == {"journal": 7, "run": 1 << 32, "previous_end": 5, "created_ms": 1000}
    assert [line["kind"] for line in lines[1:]] == ["topic created", "naming", "batch", "batch"]
    assert (lines[3]["partition"], lines[3]["name"]) == (42, "t-1")
    assert lines[3]["batches"][0]["last_offset"] == 11


def test_transactions_are_decoded(tmp_path: Path) -> None:
    at = Transaction(7, 2, 60_000, ONGOING, frozenset({("t", 1)}), 5, 6)
    values = [
        encode_record(TransactionRecord("tx", at), 2),
        encode_record(TransactionRecord("gone", None), 2),
        (b"\0\x09", b"of a later version"),
        (b"\0\0", b"damaged"),
    ]
    journal = Written().name(42, "__transaction_state", 1)
    journal.add(journal_format.KIND_BATCH, [bytes(build(values, timestamp_ms=9))], of=42)
    journal.name(43, "t", 1)
    for kind in (COMMIT, ABORT):
        journal.add(journal_format.KIND_BATCH, [bytes(pack_marker(7, 2, 5, kind, 9))], of=43)
    file = tmp_path / "7.journal"
    file.write_bytes(journal.data)
    result = CliRunner().invoke(app, ["dump", str(file), "--records", "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    shown = [line for line in lines if "offset" in line]
    assert shown[0] == {
        "offset": 0, "timestamp": 9, "transactional_id": "tx", "state": "Ongoing",
        "producer_id": 7, "producer_epoch": 2, "previous_producer_id": -1, "next_producer_id": -1,
        "timeout_ms": 60_000, "started_ms": 5, "updated_ms": 6, "client_version": 0,
        "partitions": ["t-1"],
    }  # fmt: skip
    assert (shown[1]["transactional_id"], shown[1]["state"]) == ("gone", None)
    assert shown[2]["value"] == "of a later version"
    assert "damaged" in shown[3]
    assert [(line["marker"], line["coordinator_epoch"]) for line in shown[4:]] == [
        ("commit", 5),
        ("abort", 5),
    ]
    batches = [each for line in lines for each in line.get("batches", ())]
    kinds = [(each["transactional"], each["control"]) for each in batches]
    assert kinds == [(False, False), (True, True), (True, True)]
    text = CliRunner().invoke(app, ["dump", str(file), "--records"]).stdout
    assert "producer 7 epoch 2 from -1, transactional, control" in text
    assert "transactional_id=tx state=Ongoing producer_id=7" in text


def test_share_states_are_decoded(tmp_path: Path) -> None:
    key = SharePartitionKey("pool", bytes(16), 3)
    batches = (StateBatch(4, 6, 2, 1), StateBatch(8, 8, 9, 2))
    state = StoredShareState(5, 4, 1, 2, 3, batches, 7, 8)
    values = [
        encode_share_state(StateSnapshot(key, state)),
        encode_share_state(StateUpdate(key, 1, 2, 7, 0, ())),
        encode_share_state(StateSnapshot(key, None)),
        (b"\0\x09", b"of a later version"),
        (b"\0\0", b"damaged"),
    ]
    journal = Written().name(42, "__share_group_state", 1)
    journal.add(journal_format.KIND_BATCH, [bytes(build(values, timestamp_ms=9))], of=42)
    file = tmp_path / "7.journal"
    file.write_bytes(journal.data)
    result = CliRunner().invoke(app, ["dump", str(file), "--records", "--json"])
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    shown = [line for line in lines if "offset" in line]
    named = {
        "timestamp": 9, "group": "pool", "topic_id": "AAAAAAAAAAAAAAAAAAAAAA", "partition": 3,
    }  # fmt: skip
    assert shown[0] == {
        "offset": 0, **named, "kind": "snapshot", "state_epoch": 5, "snapshot_epoch": 1,
        "leader_epoch": 2, "start_offset": 4, "delivery_complete_count": 3,
        "batches": ["4-6 acknowledged 1", "8-8 9 2"],
    }  # fmt: skip
    assert shown[1] == {
        "offset": 1, **named, "kind": "update", "snapshot_epoch": 1, "leader_epoch": 2,
        "start_offset": 7, "delivery_complete_count": 0, "batches": [],
    }  # fmt: skip
    assert shown[2] == {"offset": 2, **named, "kind": "deleted"}
    assert shown[3]["value"] == "of a later version"
    assert "damaged" in shown[4]
