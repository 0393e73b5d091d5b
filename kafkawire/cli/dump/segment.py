"""`kafkawire dump FILE.segment`: header, sections, directory, and with --records every batch.

As text, or as JSON with one line per item. The format is described in
kafkawire.codec.segment.format. Damage is reported where it is found and results in exit code 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from kafkawire.cli.dump.records import records_of
from kafkawire.cli.shared.output import fail, print_json_line
from kafkawire.cli.shared.tables import print_table
from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, BatchHead, iter_batches
from kafkawire.codec.compression import name_codec
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    DIRECTORY,
    KEYS,
    LOST,
    ORIGIN,
    STATE,
    TAIL_BYTES,
    Header,
    PartitionEntry,
    PartitionState,
    SparseIndex,
    Trailer,
    check_directory,
    read_directory,
    read_header,
    read_lost,
    read_origin,
    read_state,
    read_trailer,
    section_body,
)
from kafkawire.codec.segment.keys import PartitionKeys, check_keys
from kafkawire.codec.segment.lost import REASON_NAMES, LostRange
from kafkawire.codec.segment.origin import Origin
from kafkawire.codec.types import uuid_text
from kafkawire.metadata.checkpoint import unpack_epochs, unpack_producers
from kafkawire.plural import count

T = TypeVar("T")

KINDS = (("transactional", TRANSACTIONAL), ("control", CONTROL))
"""Bits of the attributes of a batch, by name."""


def dump_segment(path: str, view: memoryview, with_records: bool, as_json: bool) -> None:
    """Show the segment; exit code 1 if it is damaged."""
    problems: list[str] = []
    try:
        header = read_header(view)
        trailer = read_trailer(view[-TAIL_BYTES:], len(view))
    except FormatError as failure:
        fail(f"{path} cannot be read: {failure}")
    _print_header(header, trailer, view, as_json, problems)
    try:
        directory = _section(view, trailer, DIRECTORY)
        entries = read_directory(directory)
        check_directory(entries, trailer)
    except FormatError as failure:
        fail(f"{path} cannot be read: {failure}")
    states: Mapping[int, PartitionState] = {}
    try:
        states = read_state(_section(view, trailer, STATE))
    except FormatError as failure:
        problems.append(str(failure))
    _print_directory(entries, states, as_json)
    lost = _optional(view, trailer, LOST, read_lost, problems)
    if lost is not None:
        _print_lost(lost, entries, as_json)
    origin = _optional(view, trailer, ORIGIN, read_origin, problems)
    if origin is not None:
        _print_origin(origin, entries, as_json)
    keys = _optional(view, trailer, KEYS, check_keys, problems)
    if keys is not None:
        _print_keys(keys, entries, as_json)
    if with_records:
        for entry in entries:
            _print_batches(view, entry, as_json, problems)
    if problems:
        fail(f"{path} is damaged: {'; '.join(problems)}")


def _section(view: memoryview, trailer: Trailer, kind: int) -> memoryview:
    section = trailer.section(kind)
    return section_body(section, view[section.start : section.stop])


def _print_header(
    header: Header, trailer: Trailer, view: memoryview, as_json: bool, problems: list[str]
) -> None:
    """Header, trailer and section table of the file, as dictionaries."""
    if header.uuid != trailer.uuid:
        problems.append("its header and its trailer belong to different segments")
    says = {
        "segment": header.uuid.hex(),
        "node": header.node_id,
        "created_ms": header.created_ms,
        "bytes": trailer.file_size,
        "partitions": trailer.partitions,
        "batches": trailer.batches,
        "records": trailer.records,
    }
    rows = []
    for section in trailer.sections:
        try:
            section_body(section, view[section.start : section.stop])
            sound = True
        except FormatError as failure:
            problems.append(str(failure))
            sound = False
        rows.append(
            {"section": section.name, "version": section.version, "flags": section.flags,
             "start": section.start, "length": section.length, "sound": sound}
        )  # fmt: skip
    if as_json:
        for line in (says, *rows):
            print_json_line(line)
        return
    print(
        f"segment {header.uuid.hex()}, written by node {header.node_id} at "
        f"{time_text(header.created_ms)}: {trailer.file_size} bytes, {trailer.partitions} "
        f"partitions, {trailer.batches} batches, {trailer.records} records"
    )
    print_table(rows, list(rows[0]) if rows else ["section"], "sections")


def _print_directory(
    entries: list[PartitionEntry], states: Mapping[int, PartitionState], as_json: bool
) -> None:
    rows = []
    for entry in entries:
        row: dict[str, Any] = {
            "partition": entry.number,
            "name": f"{entry.topic}-{entry.index}",
            "offsets": f"{entry.base_offset}-{entry.end_offset}",
            "start": entry.start,
            "length": entry.length,
            "batches": entry.batches,
            "records": entry.records,
            "newest": entry.max_timestamp if as_json else time_text(entry.max_timestamp),
        }
        state = states.get(entry.number)
        if as_json:
            row |= {
                "topic_id": uuid_text(entry.topic_id),
                "base_offset": entry.base_offset,
                "end_offset": entry.end_offset,
                "index_start": entry.index_start,
                "index_length": entry.index_length,
            }
            del row["offsets"]
        if state is not None:
            row["log_start"] = state.log_start
            row |= _state(state) if as_json else {}
        rows.append(row)
    if as_json:
        for row in rows:
            print_json_line(row)
    else:
        columns = ["partition", "name", "offsets", "log_start", "start", "length", "batches",
                   "records", "newest"]  # fmt: skip
        print_table(rows, columns, "partitions")


def _optional(
    view: memoryview,
    trailer: Trailer,
    kind: int,
    read: Callable[[memoryview], T],
    problems: list[str],
) -> T | None:
    """Return the section parsed by `read`; None if the file has no such section, or after a problem
    with it was added."""
    if trailer.optional(kind) is None:
        return None
    try:
        return read(_section(view, trailer, kind))
    except FormatError as failure:
        problems.append(str(failure))
        return None


def _print_lost(
    found: Mapping[int, Sequence[LostRange]], entries: list[PartitionEntry], as_json: bool
) -> None:
    """Show the lost offset ranges recorded in the file, with their reasons."""
    names = {entry.number: f"{entry.topic}-{entry.index}" for entry in entries}
    rows = [
        {
            "name": names.get(number, f"partition {number}"),
            "lost": f"{each.first}-{each.end}",
            "reason": REASON_NAMES.get(each.reason, str(each.reason)),
            "given_up": each.noticed_ms if as_json else time_text(each.noticed_ms),
        }
        for number, ranges in found.items()
        for each in ranges
    ]
    if as_json:
        for row in rows:
            print_json_line(row)
    else:
        print_table(rows, ["name", "lost", "reason", "given_up"], "lost ranges")


def _print_origin(origin: Origin, entries: list[PartitionEntry], as_json: bool) -> None:
    """Show cluster, generation and topics of the file."""
    names = {entry.topic_id: entry.topic for entry in entries}
    says = {
        "cluster": origin.cluster_id,
        "generation": origin.generation,
        "retention_class": origin.retention_class,
    }
    rows = [
        {
            "topic": names.get(topic.id, "?"),
            "topic_id": uuid_text(topic.id),
            "partitions": topic.partitions,
            "internal": topic.internal,
            "created": topic.created_ms if as_json else time_text(topic.created_ms),
            "configs": dict(topic.configs) if as_json else _settings(topic.configs),
        }
        for topic in origin.topics
    ]
    if as_json:
        for line in (says, *rows):
            print_json_line(line)
        return
    print(
        f"cluster {origin.cluster_id}, generation {origin.generation}, "
        f"retention class {origin.retention_class or '-'}"
    )
    print_table(
        rows, ["topic", "topic_id", "partitions", "internal", "created", "configs"], "topics"
    )


def _print_keys(
    indexed: Mapping[int, PartitionKeys], entries: list[PartitionEntry], as_json: bool
) -> None:
    """Show how many keys and blocks the key index has, and its bytes."""
    names = {entry.number: f"{entry.topic}-{entry.index}" for entry in entries}
    rows = [
        {
            "name": names.get(number, f"partition {number}"),
            "keys": each.keys,
            "key_blocks": each.shape.blocks,
            "filter_bytes": each.shape.stored_bytes,
        }
        for number, each in indexed.items()
    ]
    if as_json:
        for row in rows:
            print_json_line(row)
    else:
        print_table(rows, ["name", "keys", "key_blocks", "filter_bytes"], "key index")


def _settings(configs: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in configs.items())


def _state(state: PartitionState) -> dict[str, Any]:
    try:
        return {
            "leader_epochs": unpack_epochs(state.leader_epochs),
            "producers": [
                {
                    "producer_id": entry.producer_id,
                    "epoch": entry.epoch,
                    "coordinator_epoch": entry.coordinator_epoch,
                    "last_timestamp": entry.last_timestamp,
                    "open_offset": entry.open_offset,
                }
                for entry in unpack_producers(state.producers)
            ],
            "aborted": state.aborted,
        }
    except FormatError as failure:
        return {"state": str(failure)}


def _print_batches(
    view: memoryview, entry: PartitionEntry, as_json: bool, problems: list[str]
) -> None:
    """Show the batches of one partition, and their records."""
    data = view[entry.start : entry.start + entry.length]
    name = f"{entry.topic}-{entry.index}"
    index = view[entry.index_start : entry.index_start + entry.index_length]
    try:
        sparse = SparseIndex(
            index, entry.start, entry.length, entry.base_offset, entry.index_checksum
        )
        bad = sparse.find_damaged_block(entry.start, data)
        if bad is not None:
            problems.append(f"the batches of {name} at {bad}")
    except FormatError as failure:
        problems.append(f"of {name}, {failure}")
    try:
        for position, head in iter_batches(data):
            if as_json:
                print_json_line(_batch_json(name, entry.start + position, head))
            else:
                print(f"{entry.start + position:>10}  {name}  {batch_text(head)}")
            batch = data[position : position + head.size_bytes]
            for line in records_of(batch, entry.topic):
                if as_json:
                    print_json_line(line)
                else:
                    print("            " + " ".join(f"{k}={v}" for k, v in line.items()))
    except KafkaError as failure:
        problems.append(f"of {name}, {failure}")


def batch_text(batch: BatchHead) -> str:
    """Return the head of a batch as one line of text."""
    words = [
        f"offsets {batch.base_offset}-{batch.last_offset}",
        f"epoch {batch.leader_epoch}",
        count(batch.count, "record"),
        name_codec(batch.codec),
        f"newest {time_text(batch.max_timestamp)}",
    ]
    if batch.producer_id >= 0:
        words.append(
            f"producer {batch.producer_id} epoch {batch.producer_epoch} from {batch.base_sequence}"
        )
    words += [name for name, bit in KINDS if batch.attributes & bit]
    return ", ".join(words)


def batch_json(batch: BatchHead) -> dict[str, Any]:
    """Return the head of a batch as a dictionary for JSON."""
    return {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "leader_epoch": batch.leader_epoch,
        "records": batch.count,
        "codec": name_codec(batch.codec),
        "max_timestamp": batch.max_timestamp,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        **{name: bool(batch.attributes & bit) for name, bit in KINDS},
    }


def _batch_json(name: str, position: int, head: BatchHead) -> dict[str, Any]:
    return {"position": position, "name": name, **batch_json(head)}


def time_text(ms: int) -> str:
    """Return a timestamp as UTC text, or as a number if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)
