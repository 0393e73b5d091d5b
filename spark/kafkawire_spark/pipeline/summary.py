"""Summary of a run, as text and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from kafkawire.plural import count
from kafkawire_spark.pipeline.engine import RunOutcome
from kafkawire_spark.pipeline.jobs.runs import RunRecord

PARTITION_COLUMNS = ("topic", "partition", "from", "to", "rows", "dead letters", "no row", "lag")
ROWS_SHOWN = 50
"""Partitions in the text table, as a cluster may have thousands; JSON has all."""


def partitions(record: RunRecord, lags: dict[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Return summary rows by partition: range read [from, to), rows in the table, dead letters,
    offsets without a row by reason, and the lag: existing offsets that are not in the table yet."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for share in record.shares:
        topic, partition, base, end = share.range
        row = found.setdefault(
            (topic, partition),
            {
                "topic": topic,
                "partition": partition,
                "from": base,
                "to": end,
                "rows": 0,
                "dead_letters": 0,
                "no_row": {},
                "lag": lags.get((topic, partition)),
            },
        )
        row["from"], row["to"] = min(row["from"], base), max(row["to"], end)
        row["rows"] += share.rows
        row["dead_letters"] += share.dead
        for reason, offsets in share.counts.items():
            row["no_row"][reason] = row["no_row"].get(reason, 0) + offsets
    return [found[key] for key in sorted(found)]


def totals(outcome: RunOutcome) -> dict[str, Any]:
    """Return the whole run, as JSON."""
    record = outcome.record
    lag = sum(outcome.lags.values())
    if record is None:
        return {"run": None, "lag": lag}
    shares = record.shares
    return {
        "run": record.run,
        "resumed": outcome.resumed,
        "rows": record.rows,
        "dead_letters": sum(share.dead for share in shares),
        "offsets": sum(share.range.end - share.range.base for share in shares),
        "files": len(record.files),
        "bytes": record.size_bytes,
        "lag": lag,
        "seconds": record.seconds,
        "partitions": partitions(record, outcome.lags),
    }


def sentence(outcome: RunOutcome) -> str:
    """Return the run in one line."""
    record = outcome.record
    lag = sum(outcome.lags.values())
    if record is None:
        return f"nothing new, lag {lag}"
    dead = sum(share.dead for share in record.shares)
    letters = f", {count(dead, 'dead letter')}" if dead else ""
    rate = f" ({record.rows / record.seconds:,.0f} rows/s)" if record.seconds else ""
    again = ", begun before" if outcome.resumed else ""
    rows, files = count(record.rows, "row"), count(len(record.files), "file")
    return (
        f"run {record.run}{again}: {rows} in {files}, "
        f"{_size(record.size_bytes)}{letters}, {record.seconds:.1f} s{rate}, lag {lag}"
    )


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `partitions` as text, by PARTITION_COLUMNS."""
    gone = row["no_row"]
    reasons = ", ".join(f"{offsets} {reason}" for reason, offsets in sorted(gone.items())) or None
    text = {name.replace("_", " "): value for name, value in row.items()}
    return {**text, "no row": reasons}


def _size(count: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.0f} {units[0]}" if units[0] == "B" else f"{count:.1f} {units[0]}"
