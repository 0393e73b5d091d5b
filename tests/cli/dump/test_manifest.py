"""`kafkawire dump` of manifest files, as text and as JSON; damage is reported.

Covers: kafkawire.cli.dump.manifest.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.manifest.format import pack
from kafkawire.manifest.state import Delta

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def dumped(path: Path, *options: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["dump", str(path), *options])
    assert result.exit_code == code, result.output
    return result.output


def test_dump_manifest_as_text() -> None:
    text = dumped(GOLDEN / "manifest-v1.delta")
    assert "delta 1 of cluster MkU3OEVBNTcwNTJENDM2Qk, written by node 3 in epoch 2" in text
    assert "2 topics, 2 objects with 3 entries" in text
    for word in ("orders-0", "täglich", "retention.ms=-1", "cleaned/tiered", "4 from 8 on",
                 "0123456789abcdef0123456789abcdef", "2023-11-14T23:13:20.000"):  # fmt: skip
        assert word in text
    assert "9584" not in text
    assert "9584" in dumped(GOLDEN / "manifest-v1.delta", "--records")
    assert "snapshot 2 of cluster" in dumped(GOLDEN / "manifest-v1.snapshot")


def test_dump_manifest_as_json() -> None:
    text = dumped(GOLDEN / "manifest-v1.delta", "--json", "--records")
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["kind"] == "delta"
    assert lines[0]["next_producer_id"] == 2000
    assert [line["topic"] for line in lines if "topic" in line] == ["orders", "täglich"]
    assert next(line["epochs"] for line in lines if "partition" in line) == [[0, 0], [4, 8]]
    assert [line["generation"] for line in lines if "object" in line] == [0, 1]
    entries = [line for line in lines if "in_object" in line]
    assert [(line["name"], line["end_offset"]) for line in entries] == [
        ("orders-0", 12), ("täglich-0", 9), ("orders-0", 20),
    ]  # fmt: skip
    assert lines[-4]["delete_after"] == 1_700_003_600_000


def test_damaged_manifest_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "delta"
    data = bytearray((GOLDEN / "manifest-v1.delta").read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "its deleted objects section is damaged" in dumped(path, code=1).replace("\n", " ")
    path.write_bytes(data[:100])
    assert "cannot be read" in dumped(path, code=1)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_empty_manifest(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "delta"
    path.write_bytes(pack(Delta(1, "c", 1, 1, 1)))
    assert "delta" in dumped(path, *options)
