"""Check whether the journals contradict the metadata: records of topics that it does not know, or a
checkpoint after their end.

Called by kafkawire.log.manager after recovery.
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable, Iterator, Mapping

from kafkawire.codec.types import uuid_parse
from kafkawire.log.io.ports import Env, FileSystem
from kafkawire.log.journal.file import POSITION_BITS, POSITION_MASK
from kafkawire.log.journal.format import (
    HEAD_BYTES,
    HEADER_BYTES,
    KIND_BATCH,
    KIND_NAMING,
    KIND_ROLL,
    KIND_TOPIC_DELETED,
    Head,
    Naming,
    check,
    find_frame,
    pad_length,
    read_catalog,
    read_head,
    read_naming,
    topics_of,
)
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.identity import IdentityError, rebuild_command
from kafkawire.log.recovery.result import Recovered, RecoveredJournal
from kafkawire.metadata.store import Metadata

MAX_SHOWN = 5
"""Topics named in one message."""


async def check_known(
    env: Env,
    home: str,
    recovered: Recovered,
    unknown: Collection[int],
    partitions: Mapping[int, Partition],
    metadata: Metadata,
    every_frame: bool,
) -> None:
    """Raise IdentityError if journals contain records of topics that the metadata does not know, or
    end before the checkpoint.

    `unknown`: partition numbers in the journals that the catalog does not have; `partitions`: the
    others; `every_frame`: read all journals, also what their index files cover, for a folder whose
    identity is not known yet. Raises what the metadata raises."""
    # The journals end before the checkpoint: an older copy of them, or a damaged row.
    if recovered.contradicts(recovered.checkpoint):
        data = os.path.dirname(os.path.dirname(home))
        raise IdentityError(
            f"{contradiction(os.path.basename(home), recovered)}: put the newest copy of {data} "
            f"back, or rebuild the metadata with {rebuild_command(data)}"
        )
    namings: Iterable[tuple[int, Naming]] = recovered.namings.items()
    # An index file names no topics, so for a folder of unknown identity all frames are read.
    if every_frame:
        namings = _namings(env.fs, recovered.found)
    strange = {
        naming.topic
        for number, naming in namings
        # Topics are created in SQL before a journal names them: another topic under the number
        # proves that the metadata belongs to another folder, or is an older copy.
        if number in partitions and partitions[number].topic_id != naming.topic_id
    }
    if unknown:
        # SQL keeps the rows of deleted topics: a number that it never assigned is of later
        # metadata. Metadata that an older version rebuilt lacks them, so the journals are asked
        # too.
        lost = set(unknown) - await metadata.known_partitions(unknown)
        if lost:
            strange |= not_deleted(env.fs, recovered.found, lost)
    # Refused: such records must not be recycled, nor their offsets assigned again.
    if strange:
        raise IdentityError(sentence(metadata.name, home, sorted(strange)))


def contradiction(node: str, recovered: Recovered) -> str:
    """Return what is wrong with a checkpoint after the end of the log, for the operator."""
    stored, end = (
        f"byte {at & POSITION_MASK} of journal {at >> POSITION_BITS}"
        for at in (recovered.checkpoint, recovered.reached)
    )
    return (
        f"the row of broker {node} in table checkpoints says that the log reaches {stored}, but "
        f"journals and ledger end at {end}: the row is damaged, or the journals are an older copy"
    )


def sentence(metadata: str, home: str, topics: list[str]) -> str:
    """Return the error text for the operator. `home`: `<data>/brokers/<node id>`."""
    data = os.path.dirname(os.path.dirname(home))
    more = f" and {len(topics) - MAX_SHOWN} more" if len(topics) > MAX_SHOWN else ""
    return (
        f"{metadata} is older than {data} or belongs to another one: it does not know "
        f"{', '.join(topics[:MAX_SHOWN])}{more}, whose records are in the log: put the newest copy "
        f"back, or rebuild it with {rebuild_command(data)}"
    )


def _namings(fs: FileSystem, found: Iterable[RecoveredJournal]) -> Iterator[tuple[int, Naming]]:
    """Yield the naming frames of all journals, by partition number."""
    for each in found:
        journal = each.journal
        view = journal.warm(fs)
        for position, head, _ in frames(view, journal.number, journal.end):
            if head.kind == KIND_NAMING:
                yield head.number, read_naming(view[position + HEAD_BYTES :])
        # The view keeps the mapping alive.
        del view
        if journal.rolled:
            journal.cool()


def not_deleted(fs: FileSystem, found: Iterable[RecoveredJournal], numbers: set[int]) -> set[str]:
    """Return the topics of these partitions, without those that were deleted according to a
    journal."""
    topics: dict[int, tuple[bytes, str]] = {}
    # Of the whole log: a deletion may be in a later journal than the name.
    deleted: set[bytes] = set()
    for each in found:
        journal = each.journal
        view = journal.warm(fs)
        for position, head, _ in frames(view, journal.number, journal.end):
            if head.kind in (KIND_BATCH, KIND_ROLL):
                continue
            payload = view[position + HEAD_BYTES : position + HEAD_BYTES + head.length]
            if head.kind == KIND_NAMING:
                naming = read_naming(payload)
                topics[head.number] = naming.topic_id, naming.topic
            elif head.kind == KIND_TOPIC_DELETED:
                deleted.add(uuid_parse(read_catalog(payload)["id"]))
            else:
                for topic in topics_of(read_catalog(payload)):
                    for number, _ in topic["partitions"]:
                        topics[number] = uuid_parse(topic["id"]), topic["name"]
        del view
        if journal.rolled:
            journal.cool()
    lost = {number: topics.get(number, (b"", f"partition number {number}")) for number in numbers}
    return {name for topic_id, name in lost.values() if topic_id not in deleted}


def frames(view: memoryview, number: int, end: int) -> Iterator[tuple[int, Head, list[int]]]:
    """Yield (position, head, batch starts) of every intact frame of a journal, in order."""
    position, run = HEADER_BYTES, 0
    view = view[:end]
    while 0 <= position < end:
        head = read_head(view, position)
        starts = None
        # As in the scan: an older run after a newer one is what a failed write left.
        if head is not None and head.run >= run:
            starts = check(view, position, head, number)
        if head is None or starts is None:
            position = find_frame(view, (position + 8) & ~7, end, number)
            continue
        run = head.run
        yield position, head, starts
        position += pad_length(HEAD_BYTES + head.length)
