"""The Parquet files of tables of other writers that have partition and offset columns."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.audit.scanning import ScanFile
from kafkawire_spark.pipeline.jobs.job import DELTA, ICEBERG

UNREADABLE_FEATURES = {"deletionVectors", "columnMapping"}
"""Delta features with which the files' rows or columns differ from the table's."""


def files_of(place: Place, kind: str) -> list[ScanFile]:
    """Return the files of the table's newest version. Raises SourceError."""
    if kind == DELTA:
        return [ScanFile(0, path, size) for path, size in _delta(place)]
    if kind == ICEBERG:
        return [ScanFile(0, path, size) for path, size in _iceberg(place)]
    return [ScanFile(0, key, place.size(key)) for key in place.list() if _is_data(key)]


def _is_data(key: str) -> bool:
    """Return True for a data file by Spark's rule: names that begin with _ or . are hidden, except
    for `_x=...`."""
    hidden = any(part.startswith("_") and "=" not in part for part in key.split("/"))
    return key.endswith(".parquet") and not hidden


def _delta(place: Place) -> list[tuple[str, int]]:
    import pyarrow as pa
    from deltalake import DeltaTable

    from kafkawire_spark.pipeline.tables.locations import delta_location

    url, options = delta_location(place)
    table = DeltaTable(url, storage_options=options)
    features = set(table.protocol().reader_features or ())
    if features & UNREADABLE_FEATURES:
        names = ", ".join(sorted(features & UNREADABLE_FEATURES))
        raise SourceError(f"{place.url} is a Delta table with {names}, which cannot be audited")
    rows: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [(unquote(row["path"]), int(row["size_bytes"])) for row in rows]


def _iceberg(place: Place) -> list[tuple[str, int]]:
    from pyiceberg.table import StaticTable

    from kafkawire_spark.pipeline.tables.locations import iceberg_properties

    newest = max(key for key in place.list("metadata/") if key.endswith(".metadata.json"))
    table = StaticTable.from_metadata(place.where(newest), iceberg_properties(place))
    found = []
    for task in table.scan().plan_files():
        if task.delete_files:
            raise SourceError(f"{place.url} is an Iceberg table with delete files, which cannot "
                              "be audited")  # fmt: skip
        found.append((_relative(place, task.file.file_path), task.file.file_size_in_bytes))
    return found


def _relative(place: Place, path: str) -> str:
    """Return a file's key from the full path in an Iceberg manifest."""
    root = urlsplit(place.where("")).path.rstrip("/") + "/"
    whole = urlsplit(path).path
    if not whole.startswith(root):
        raise SourceError(f"the file {path} is not under {place.url}: it cannot be audited")
    return whole[len(root) :]
