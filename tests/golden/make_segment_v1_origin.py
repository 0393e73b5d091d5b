"""Write segment-v1-origin.segment: the partitions of segment-v1 and their origin.

Run once, like make_segment_v1: `python -m tests.golden.make_segment_v1_origin` from the root.
"""

from __future__ import annotations

import json
from typing import Any

from kafkawire.codec.segment.format import Origin, TopicOrigin
from tests.golden import make_segment_v1
from tests.golden.make_segment_v1 import HERE, TOPICS

ORIGIN = Origin(
    "abcdefghijklmnopqrstuv",
    3,
    "compact/tiered/ever",
    [
        TopicOrigin(
            TOPICS["orders"], 2, 1_600_000_000_000, False,
            {"cleanup.policy": "compact", "überschrift": "ä" * 300},
        ),
        TopicOrigin(TOPICS["täglich"], 8, 1_600_000_000_001, True),
    ],
)  # fmt: skip


def build() -> tuple[bytes, dict[str, Any]]:
    """The file, and its content."""
    data, says = make_segment_v1.build(ORIGIN)
    says["origin"] = {
        "cluster_id": ORIGIN.cluster_id,
        "generation": ORIGIN.generation,
        "retention_class": ORIGIN.retention_class,
        "topics": [
            {
                "id": topic.id.hex(),
                "partitions": topic.partitions,
                "created_ms": topic.created_ms,
                "internal": topic.internal,
                "configs": dict(topic.configs),
            }
            for topic in ORIGIN.topics
        ],
    }
    return data, says


if __name__ == "__main__":
    file, content = build()
    (HERE / "segment-v1-origin.segment").write_bytes(file)
    text = json.dumps(content, indent=1) + "\n"
    (HERE / "segment-v1-origin.json").write_text(text, encoding="utf-8")
