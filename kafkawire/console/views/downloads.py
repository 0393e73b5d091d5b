"""Records as files: JSON lines, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from kafkawire.client.errors import ClientError
from kafkawire.codec.record_text import text_of
from kafkawire.console.views.records import MAX_RECORDS, FoundRecord, RecordPage, RecordQuery

FORMATS = ("jsonl", "csv")
MAX_FILE_BYTES = 32 << 20
"""Bytes of one file; `kafkawire export` writes larger ones."""
MAX_FILE_RECORDS = 50_000
MAX_PAGES = 200
"""Searches of one file, each with the bounds of a page."""
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of cells that spreadsheets run; a single quote before them prevents it."""


def write_records(
    read: Callable[[RecordQuery], RecordPage], query: RecordQuery, kind: str
) -> Iterator[str]:
    """Yield a file of one of FORMATS with the records that a query finds, in parts; its last line
    says so if it is cut. ClientError."""
    line = _json_line if kind == "jsonl" else _csv_line
    found = _find(read, query)
    first = next(found, None)
    if kind == "csv":
        yield _csv_row(COLUMNS)
    written = 0
    for each in found if first is None else chain([first], found):
        text = _cut(kind, each) if isinstance(each, str) else line(query.topic, each)
        written += len(text)
        if written > MAX_FILE_BYTES:
            yield _cut(kind, f"it has {MAX_FILE_BYTES >> 20} MiB, the bound of one file")
            return
        yield text


def _find(
    read: Callable[[RecordQuery], RecordPage], query: RecordQuery
) -> Iterator[FoundRecord | str]:
    """Yield the records, and sentences on what is left out. ClientError from the first search."""
    left, page = query.limit, read(replace(query, limit=min(query.limit, MAX_RECORDS)))
    for _ in range(MAX_PAGES):
        yield from page.records
        left -= len(page.records)
        for each in page.searched:
            if each.error:
                yield f"partition {each.partition}: {each.error}"
        if not page.more:
            return
        if left <= 0:
            if query.limit >= MAX_FILE_RECORDS:
                yield f"it has {query.limit:,} records, the bound of one file"
            return
        try:
            page = read(replace(query, positions=page.more, limit=min(left, MAX_RECORDS)))
        except ClientError as error:
            yield str(error)
            return
    yield f"{MAX_PAGES} searches were made, the bound of one file"


def _cut(kind: str, reason: str) -> str:
    sentence = f"The file is cut: {reason}."
    return json.dumps({"cut": sentence}) + "\n" if kind == "jsonl" else _csv_row([sentence])


def _json_line(topic: str, record: FoundRecord) -> str:
    # As `kafkawire consume --json`, which `kafkawire import` reads.
    row = {
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[text_of(name), text_of(value)] for name, value in record.headers],
    }
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def _csv_line(_: str, record: FoundRecord) -> str:
    headers = [[text_of(name), text_of(value)] for name, value in record.headers]
    cells = [_cell(record.key), _cell(record.value), json.dumps(headers) if headers else ""]
    return _csv_row([record.partition, record.offset, record.timestamp, *cells])


def _csv_row(cells: Any) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()


def _cell(data: bytes | None) -> str:
    found = text_of(data)
    if found is None:
        return ""
    text = found if isinstance(found, str) else "base64:" + found["base64"]
    return "'" + text if text.startswith(FORMULA) else text
