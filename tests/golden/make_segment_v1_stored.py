"""Write segment-v1-stored.segment: the partitions of segment-v1 with store times.

Run once, like make_segment_v1: `python -m tests.golden.make_segment_v1_stored` from the root.
"""

from __future__ import annotations

import json
from typing import Any

from tests.golden import make_segment_v1
from tests.golden.make_segment_v1 import HERE

STORED = {
    5: [(0, 1_700_000_000_000), (8, 1_700_000_003_000), (19, 1_700_000_004_000)],
    1 << 33: [(5, 1_700_000_100_000)],
}


def build() -> tuple[bytes, dict[str, Any]]:
    """The file, and its content."""
    data, says = make_segment_v1.build(stored=STORED)
    says["stored"] = {str(number): steps for number, steps in STORED.items()}
    return data, says


if __name__ == "__main__":
    file, content = build()
    (HERE / "segment-v1-stored.segment").write_bytes(file)
    text = json.dumps(content, indent=1) + "\n"
    (HERE / "segment-v1-stored.json").write_text(text, encoding="utf-8")
