"""`kafkawire dump FILE`: a journal frame by frame, for people or as JSON, a line a frame.

Reads the file as it lies there, also while a broker writes to it, and changes nothing. What the
bytes mean is in log.frame and log.dump. Called by kafkawire.cli.app.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafkawire.cli.tables import fail, print_json_line
from log.dump import BatchShown, FrameShown, GapShown, walk
from log.frame import HEADER_BYTES, FormatError, Header, read_header

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def run(path: str, as_json: bool) -> None:
    """The whole command; ends with code 1 for what is no journal."""
    try:
        with _mapped(path) as view:
            header = read_header(view, path)
            if header is None:
                fail(f"{path} is no journal: it has no header, or a damaged one")
            _dump(view, header, as_json)
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except FormatError as error:
        fail(error)


@contextmanager
def _mapped(path: str) -> Iterator[memoryview]:
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEADER_BYTES:
            fail(f"{path} is no journal: it has {size} bytes, a header alone has {HEADER_BYTES}")
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        with mapped, memoryview(mapped) as view:
            yield view


def _dump(view: memoryview, header: Header, as_json: bool) -> None:
    names: dict[int, str] = {}
    if as_json:
        print_json_line({"journal": header.journal, "run": header.run,
                         "previous_end": header.previous_end,
                         "created_ms": header.created_ms})  # fmt: skip
    else:
        print(f"journal {header.journal}, begun by run {_run(header.run)}")
    for item in walk(view, header.journal):
        if isinstance(item, FrameShown) and "index" in item.says:
            names[item.head.number] = f"{item.says['topic']}-{item.says['index']}"
        try:
            if as_json:
                print_json_line(_as_json(item, names))
            else:
                _print(item, names)
        except BrokenPipeError:  # `| head`: enough was seen
            sys.stderr.close()
            return


def _run(run: int) -> str:
    """Start and failed writes since, as log.manager counts them."""
    return f"{run >> 32}.{run & 0xFFFFFFFF}"


def _place(place: int) -> str:
    return f"{place >> 32}:{place & 0xFFFFFFFF}"


def _print(item: FrameShown | GapShown, names: dict[int, str]) -> None:
    if isinstance(item, GapShown):
        what = "no frame up to the end of the file" if item.last else "NO FRAME: DAMAGED"
        print(f"{item.start:>10}  {item.end - item.start} bytes: {what}")
        return
    head = item.head
    whose = names.get(head.number, f"partition {head.number}") if head.number else ""
    about = f"run {_run(head.run)} committed {_place(head.committed)} {head.length} bytes"
    print(f"{item.position:>10}  {item.kind:<13} {whose}  {about}")
    for shown in item.batches:
        print(f"            {_batch(shown)}")
    if item.says:
        print("            " + " ".join(f"{name}={value}" for name, value in item.says.items()))


def _batch(shown: BatchShown) -> str:
    batch = shown.head
    words = [
        f"offsets {batch.base_offset}-{batch.last_offset}",
        f"epoch {batch.leader_epoch}",
        f"{batch.count} records",
        _codec(batch.codec),
        f"newest {_time(batch.max_timestamp)}",
    ]
    if batch.producer_id >= 0:
        words.append(
            f"producer {batch.producer_id} epoch {batch.producer_epoch} from {batch.base_sequence}"
        )
    if not shown.sound:
        words.append("CRC WRONG")
    return ", ".join(words)


def _time(ms: int) -> str:
    """UTC; a number where a producer sent what no calendar has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def _codec(number: int) -> str:
    return CODECS[number] if number < len(CODECS) else f"codec {number}"


def _as_json(item: FrameShown | GapShown, names: dict[int, str]) -> dict[str, Any]:
    if isinstance(item, GapShown):
        return {"position": item.start, "kind": "gap", "bytes": item.end - item.start,
                "last": item.last}  # fmt: skip
    head = item.head
    line: dict[str, Any] = {
        "position": item.position,
        "kind": item.kind,
        "bytes": head.length,
        "run": head.run,
        "committed": head.committed,
    }
    if head.number:
        line |= {"partition": head.number, "name": names.get(head.number)}
    if item.batches:
        line["batches"] = [
            {
                "base_offset": shown.head.base_offset,
                "last_offset": shown.head.last_offset,
                "leader_epoch": shown.head.leader_epoch,
                "records": shown.head.count,
                "codec": _codec(shown.head.codec),
                "max_timestamp": shown.head.max_timestamp,
                "producer_id": shown.head.producer_id,
                "producer_epoch": shown.head.producer_epoch,
                "base_sequence": shown.head.base_sequence,
                "sound": shown.sound,
            }
            for shown in item.batches
        ]
    return line | item.says
