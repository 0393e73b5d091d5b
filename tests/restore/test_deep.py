"""`restore TIER --deep`: every byte that is restored is checked first.

Covers: kafkawire.restore.findings.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafkawire.manifest.keys import segment_key
from tests.kit.tier.buckets import uuid
from tests.restore.test_restore import run, sample, stored


@pytest.mark.parametrize("name", [1, 2])
def test_damaged_batches_are_listed_by_offset(name: int, tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    key = segment_key(uuid(name))
    content = bytearray((tier / key).read_bytes())
    content[100] ^= 1
    (tier / key).write_bytes(bytes(content))
    before = json.loads(run(tier, data, "--dry-run", "--json").stdout)
    assert before["doubts"] == []
    found = json.loads(run(tier, data, "--dry-run", "--deep", "--json").stdout)
    (doubt,) = found["doubts"]
    assert doubt["kind"] == "damaged"
    assert doubt["text"].startswith(f"{key}: offsets ")
    assert " of orders-0 are damaged: bytes 64-" in doubt["text"]
    assert found["records"] == before["records"]
    assert "--skip-lost" in run(tier, data, "--yes", "--deep").output


def test_sound_bucket_has_no_findings(tmp_path: Path) -> None:
    tier, data = stored(sample(), tmp_path / "tier"), tmp_path / "data"
    assert json.loads(run(tier, data, "--dry-run", "--deep", "--json").stdout)["doubts"] == []
