"""`kafkawire dump FILE.segment`, as text and as JSON; damage is reported.

Covers: kafkawire.cli.dump.segment.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.codec.batches import build, empty_batches
from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import LostRange, PartitionState
from kafkawire.metadata.checkpoint import ProducerEntry, pack_epochs, pack_producers
from tests.kit.log.segments import UUID, Part, batch, everything, segment

STATE = PartitionState(
    2, pack_epochs([(0, 0), (3, 4)]), pack_producers([ProducerEntry(9, 1)]), [Aborted(9, 4, 5)]
)


def sample() -> bytes:
    pairs = [(b"key", b"value"), (None, b"\xff\0")]
    return segment(
        [Part(3, [bytes(build(pairs, base_offset=4, timestamp_ms=86_400_000))], 2, 8, STATE),
         Part(4, [batch(0), batch(1)])]
    )  # fmt: skip


def dumped(path: Path, data: bytes, *options: str, code: int = 0) -> str:
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["dump", str(path), *options])
    assert result.exit_code == code, result.output
    return result.output


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.segment"


def test_dump_segment_as_json(path: Path) -> None:
    data = sample()
    whole = everything(data)
    said = lines(dumped(path, data, "--json"))
    assert said[0] == {
        "segment": UUID.hex(), "node": 1, "created_ms": 5, "bytes": len(data),
        "partitions": 2, "batches": 3, "records": 4,
    }  # fmt: skip
    assert [line["section"] for line in said[1:4]] == ["index", "state", "directory"]
    assert all(line["sound"] for line in said[1:4])
    one, other = said[4:]
    entry = whole.entries[0]
    assert (one["partition"], one["name"], one["start"]) == (3, "t3-2", entry.start)
    assert (one["base_offset"], one["end_offset"], one["log_start"]) == (2, 8, 2)
    assert one["leader_epochs"] == [[0, 0], [3, 4]]
    assert one["producers"] == [
        {"producer_id": 9, "epoch": 1, "coordinator_epoch": -1, "last_timestamp": -1,
         "open_offset": -1}
    ]  # fmt: skip
    assert one["aborted"] == [[9, 4, 5]]
    assert other["records"] == 2
    said = lines(dumped(path, data, "--json", "--records"))[6:]
    assert [line["base_offset"] for line in said if "base_offset" in line] == [4, 0, 1]
    assert [line["value"] for line in said if "value" in line][:2] == ["value", "0xff00"]


def test_damage_is_reported_and_rest_is_shown(path: Path) -> None:
    data = sample()
    whole = everything(data)
    for section in whole.trailer.sections[:2]:
        hurt = bytearray(data)
        hurt[section.body_start] ^= 1
        text = dumped(path, bytes(hurt), code=1)
        assert f"its {section.name} is damaged" in text
        assert "t4-2" in text
    hurt = bytearray(data)
    hurt[whole.entries[0].start + 12] ^= 1
    assert "the batches of t3-2 at 64" in dumped(path, bytes(hurt), "--records", code=1)
    for size in (100, len(data) - 1):
        assert "cannot be read" in dumped(path, data[:size], code=1)
    hurt = bytearray(data)
    hurt[9] ^= 1
    assert "its header is damaged" in dumped(path, bytes(hurt), code=1)
    hurt = bytearray(data)
    hurt[whole.entries[0].start + 8] = 0xFF
    assert "is damaged" in dumped(path, bytes(hurt), "--records", code=1)


def test_lost_ranges_are_shown(path: Path) -> None:
    state = PartitionState(lost=[LostRange(2, 4, 86_400_000, 1)])
    data = segment([Part(3, [batch(0, 2), bytes(empty_batches(2, 4))], state=state)])
    text = dumped(path, data)
    assert "lost ranges" in text
    assert "2-4" in text
    assert "damaged" in text
    found = [row for row in lines(dumped(path, data, "--json")) if "lost" in row]
    assert found == [{"name": "t3-2", "lost": "2-4", "reason": "damaged", "given_up": 86_400_000}]
