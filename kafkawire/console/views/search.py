"""The page that a text in the search box leads to. Pure."""

from __future__ import annotations

import re
from typing import Any

from kafkawire.console.views.records import MAX_PARTITIONS
from kafkawire.console.views.snapshot import Known

_KEY = re.compile(r"(\S+)\s+key=(.*)")
_OFFSET = re.compile(r"([^@:\s]+)(?::([0-9]{1,9}))?@([0-9]{1,18})")

Target = tuple[tuple[str, ...], dict[str, Any]]
"""The parts of a path, and the query."""


def find_target(known: Known, text: str) -> Target:
    """Return the page that a text names: `TOPIC key=KEY`, `TOPIC@OFFSET`, `TOPIC:PARTITION@OFFSET`,
    the name of a topic or group; of anything else, the list of topics that contain it."""
    text = text.strip()
    topics = {} if known.snapshot is None else known.snapshot.topics
    if found := _KEY.fullmatch(text):
        return ("topics", found[1], "records"), {"key": found[2]}
    if found := _OFFSET.fullmatch(text):
        name, index, offset = found[1], found[2], int(found[3])
        if index is not None:
            return ("topics", name, "records"), {
                "where": "offset", "partition": int(index), "at": offset,
            }  # fmt: skip
        count = len(topics[name].partitions) if name in topics else 1
        after = ",".join(f"{each}:{offset}" for each in range(min(count, MAX_PARTITIONS)))
        return ("topics", name, "records"), {"after": after}
    if text in topics:
        return ("topics", text), {}
    if known.snapshot is not None and text in known.snapshot.groups:
        return ("group",), {"name": text}
    return ("topics",), {"q": text}
