"""Log objects stored by earlier versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kafkawire.log.objects import format as object_format
from tests.golden import make_log_object_v1 as maker

GOLDEN = Path(__file__).parent.parent.parent / "golden"
VERSIONS = range(1, object_format.VERSION + 1)


def golden(version: int, kind: str) -> tuple[bytes, dict[str, Any]]:
    says = json.loads((GOLDEN / f"log-object-v{version}.json").read_text(encoding="utf-8"))
    return (GOLDEN / f"log-object-v{version}.{kind}").read_bytes(), says[kind]


@pytest.mark.parametrize("kind", ["object", "fence"])
@pytest.mark.parametrize("version", VERSIONS)
def test_golden_objects_of_every_version_are_read(version: int, kind: str) -> None:
    data, says = golden(version, kind)
    assert json.loads(json.dumps(maker.says(kind, data))) == says


@pytest.mark.parametrize("kind", ["object", "fence"])
def test_golden_objects_are_written_the_same(kind: str) -> None:
    """If this fails, the format has changed: raise its version, keep the old file."""
    assert maker.build()[kind] == golden(1, kind)[0]
