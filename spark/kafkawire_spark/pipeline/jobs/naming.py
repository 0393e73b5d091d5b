"""Names of the files of a table: by partition columns, offsets and run. Pure.

    date=2026-11-21/orders-p00003-o00000000000000001000-00000000000000002000-r7.parquet

A name has the range of offsets in the file and the run (r) or compaction (c) that wrote it, so that
a retry writes the same names and files cannot be confused. If a file must not be overwritten, an id
of the attempt follows: -r7-3f9c.parquet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kafkawire.reading.model.source import PartitionRange

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The folder of nulls and of empty strings, as in Hive and Spark."""
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}
_NAME = re.compile(
    r"(?:.*/)?~?(?P<topic>[^/]+)-p(?P<partition>\d{5,})-o(?P<base>\d{20})-(?P<end>\d{20})"
    r"-(?P<kind>[rc])(?P<number>\d+)(?:-[0-9a-f]+)?\.parquet"
)

Values = tuple[tuple[str, str | None], ...]
"""Names of the partition columns with their values as text, None for null."""


def file_path(part: PartitionRange, values: Values, number: int, *, kind: str, attempt: str) -> str:
    """Return the path of a file from the table's root. `kind`: "r" for a run, "c" for a
    compaction."""
    topic, partition, base, end = part
    shown = topic if topic[:1] not in ("_", ".") else f"~{topic}"  # Spark ignores hidden files
    suffix = f"-{attempt}" if attempt else ""
    name = f"{shown}-p{partition:05}-o{base:020}-{end:020}-{kind}{number}{suffix}.parquet"
    return f"{folder(values)}{name}"


def folder(values: Values) -> str:
    """Return `name=value/` for each partition column, as in Hive's tables; "" without any."""
    return "".join(f"{escape(name)}={escape(value or NULL)}/" for name, value in values)


def escape(text: str) -> str:
    """Escape a value for a path as Spark does (its ExternalCatalogUtils.escapePathName), and also
    unprintable ones of the first 256 characters, which Spark can read."""
    return "".join(f"%{ord(char):02X}" if _is_escaped(char) else char for char in text)


def _is_escaped(char: str) -> bool:
    return char in _ESCAPED or (ord(char) < 256 and not char.isprintable())


def written_by(path: str) -> tuple[str, int] | None:
    """Return ("r", run) or ("c", compaction) of one of our files, None for any other."""
    match = _NAME.fullmatch(path)
    return (match["kind"], int(match["number"])) if match else None


def described(path: str) -> tuple[PartitionRange, str, int] | None:
    """Return the offsets that may be in one of our files, "r" or "c", and its number; None for
    others."""
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    base, end = int(match["base"]), int(match["end"])
    part = PartitionRange(match["topic"].removeprefix("~"), int(match["partition"]), base, end)
    return part, match["kind"], int(match["number"])


def covering(parts: Sequence[PartitionRange]) -> PartitionRange:
    """Return the range from the first offset of adjacent parts of one partition to the last."""
    first = parts[0]
    return PartitionRange(
        first.topic,
        first.partition,
        min(part.base for part in parts),
        max(part.end for part in parts),
    )
