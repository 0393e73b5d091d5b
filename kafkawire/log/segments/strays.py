"""Check whether segment files without a row contain topics that the metadata does not know.

Such files prove that the metadata is an older copy or belongs to another data folder, as journals
do (kafkawire.log.recovery.unknown_topics).
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from kafkawire.log.io.ports import Env
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.log.recovery.unknown_topics import sentence
from kafkawire.log.segments.file.open import read_entries
from kafkawire.metadata.pairing import known_topics
from kafkawire.metadata.store import SqlStore

if TYPE_CHECKING:
    from kafkawire.log.segments.manager import Segments


async def check_segments(env: Env, home: str, segments: Segments, metadata: SqlStore) -> None:
    """Raise IdentityError if segment files without a row contain topics that the metadata never
    had.

    For a folder whose identity is not known yet. Raises what the disk and the metadata raise."""
    topics: dict[bytes, str] = {}
    for name in segments.strays:
        path = os.path.join(segments.folder, name)
        for entry in await env.offload.submit("files", read_entries, env.fs, path):
            topics[entry.topic_id] = entry.topic
    if topics:
        known = await metadata.transact(lambda session: known_topics(session, topics))
        strange = {name for topic_id, name in topics.items() if topic_id not in known}
        if strange:
            raise IdentityError(sentence(metadata.name, home, sorted(strange)))
