"""Write log-object-v1.object and log-object-v1.fence, and their content as log-object-v1.json.

Run once, for a new version: `python -m tests.golden.make_log_object_v1` from the root. A golden
file is never written again, because it is what users have in their buckets; the files of earlier
versions stay.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kafkawire.log.objects.format import (
    ObjectHead,
    read_frames,
    read_header,
    read_names,
    write_fence,
)
from kafkawire.manifest.keys import log_object_key
from tests.kit.log.log_objects import NONCE, small_object

HERE = Path(__file__).parent
KEYS = {"object": log_object_key(7, 2), "fence": log_object_key(7, 3)}


def build() -> dict[str, bytes]:
    """The files, by their kind."""
    fence = write_fence(1, 7, 3, NONCE[::-1], 9, 1_700_000_000_001)
    return {"object": small_object(), "fence": fence}


def says(kind: str, data: bytes) -> dict[str, Any]:
    """The content of a file."""
    head: ObjectHead = read_header(data, KEYS[kind])
    names = read_names(data, head).items()
    return {
        "head": {**asdict(head), "nonce": head.nonce.hex()},
        "names": [[n, {**asdict(it), "topic_id": it.topic_id.hex()}] for n, it in names],
        "frames": [
            [frame.number, frame.log_position, frame.run, [each.hex() for each in frame.batches]]
            for frame in read_frames(memoryview(data), head)
        ],
    }


if __name__ == "__main__":
    files = build()
    content = {kind: says(kind, data) for kind, data in files.items()}
    for kind, data in files.items():
        (HERE / f"log-object-v1.{kind}").write_bytes(data)
    (HERE / "log-object-v1.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
