"""`kafkawire dump FILE`: a journal frame by frame, as text or as JSON with one line per frame.

Only reads the file, also while a broker writes to it. The format is described in
kafkawire.log.journal.format and kafkawire.log.journal.dump; segments are shown by
kafkawire.cli.dump.segment, files of a manifest by kafkawire.cli.dump.manifest.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kafkawire.cli.dump.records import records_of
from kafkawire.cli.dump.segment import batch_json, batch_text, dump_segment
from kafkawire.cli.shared.output import fail, print_json_line
from kafkawire.cli.shared.parameters import Json
from kafkawire.codec.segment.format import MAGIC
from kafkawire.log.journal.dump import BatchShown, FrameShown, GapShown, walk
from kafkawire.log.journal.format import (
    HEAD_BYTES,
    HEADER_BYTES,
    JournalFormatError,
    JournalHeader,
    read_header,
)
from kafkawire.manifest.format import MAGIC as MANIFEST_MAGIC

NOTHING_WE_KNOW = "not a journal, segment or manifest"


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Journal, segment or manifest file.")],
    records: Annotated[bool, typer.Option("--records", help="Show each record or entry.")] = False,
    as_json: Json = False,
) -> None:
    """Show the contents of a journal (frame by frame), a segment or a manifest file.

    Examples:
      kafkawire dump kafkawire-data/brokers/1/journals/0000000001.journal
      kafkawire dump FILE.segment --records --json
    """
    try:
        view = _map_file(file)
        if view[:8] == MAGIC:
            dump_segment(file, view, records, as_json)
            return
        if view[:8] == MANIFEST_MAGIC:
            from kafkawire.cli.dump.manifest import dump_manifest

            dump_manifest(file, view, records, as_json)
            return
        header = read_header(view, file)
        if header is None:
            fail(f"{file} is {NOTHING_WE_KNOW}: its header is missing or damaged")
        _dump(view, header, records, as_json)
    except BrokenPipeError:  # `| head` has closed the pipe
        sys.stderr.close()
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}", 2)
    except JournalFormatError as error:
        fail(error)


def _map_file(path: str) -> memoryview:
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEADER_BYTES:
            fail(
                f"{path} is {NOTHING_WE_KNOW}: it has {size} bytes, "
                f"less than a header of {HEADER_BYTES} bytes"
            )
        # Unmapped with the last view: closing it by hand fails while a traceback holds one.
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def _dump(view: memoryview, header: JournalHeader, records: bool, as_json: bool) -> None:
    names: dict[int, str] = {}
    topics: dict[int, str] = {}
    if as_json:
        print_json_line({"journal": header.journal, "run": header.run,
                         "previous_end": header.previous_end,
                         "created_ms": header.created_ms})  # fmt: skip
    else:
        print(f"journal {header.journal}, created by run {_run(header.run)}")
    for item in walk(view, header.journal):
        if isinstance(item, FrameShown) and "index" in item.says:
            topics[item.head.number] = item.says["topic"]
            names[item.head.number] = f"{item.says['topic']}-{item.says['index']}"
        if as_json:
            print_json_line(_as_json(item, names))
        else:
            _print(item, names)
        if records and isinstance(item, FrameShown) and item.batches:
            start = item.position + HEAD_BYTES
            topic = topics.get(item.head.number)
            _print_records(view[start : start + item.head.length], topic, as_json)


def _print_records(frame: memoryview, topic: str | None, as_json: bool) -> None:
    """Lines that describe the batches of a frame."""
    for line in records_of(frame, topic):
        if as_json:
            print_json_line(line)
        else:
            print("              " + " ".join(f"{name}={value}" for name, value in line.items()))


def _run(run: int) -> str:
    """Return a run number as text: the start of the broker and the failed writes since then."""
    return f"{run >> 32}.{run & 0xFFFFFFFF}"


def _log_position(log_position: int) -> str:
    return f"{log_position >> 32}:{log_position & 0xFFFFFFFF}"


def _print(item: FrameShown | GapShown, names: dict[int, str]) -> None:
    if isinstance(item, GapShown):
        what = (
            "no valid frame up to the end of the file" if item.last else "DAMAGED: no valid frame"
        )
        print(f"{item.start:>10}  {item.end - item.start} bytes: {what}")
        return
    head = item.head
    whose = names.get(head.number, f"partition {head.number}") if head.number else ""
    about = f"run {_run(head.run)} committed {_log_position(head.committed)} {head.length} bytes"
    print(f"{item.position:>10}  {item.kind:<13} {whose}  {about}")
    for shown in item.batches:
        print(f"            {_batch(shown)}")
    if item.says:
        print("            " + " ".join(f"{name}={value}" for name, value in item.says.items()))


def _batch(shown: BatchShown) -> str:
    return batch_text(shown.head) + ("" if shown.sound else ", CRC WRONG")


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
            {**batch_json(shown.head), "sound": shown.sound} for shown in item.batches
        ]
    return line | item.says
