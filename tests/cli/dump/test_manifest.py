"""`kafkawire dump` of manifest files, as text and as JSON; damage is reported.

Covers: kafkawire.cli.dump.manifest.
"""

from __future__ import annotations

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
