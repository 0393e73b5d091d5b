"""`kafkawire estimate`: estimate the disk, metadata and memory that a load will need.

The costs of a bucket: kafkawire.cli.tier.estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import INT32, Json
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.notation import OptionError, parse_rate, parse_size, split_setting
from kafkawire.plural import count
from kafkawire.units import size

_ROWS = (
    ("stored per day", "bytes_a_day", "bytes"),
    ("journals", "journal_bytes", "bytes"),
    ("segments, once retention deletes", "segment_bytes", "bytes"),
    ("metadata", "metadata_bytes", "bytes"),
    ("disk in use", "disk_bytes", "bytes"),
    ("disk to plan", "planned_bytes", "bytes"),
    ("written to the disk per day", "written_a_day", "bytes"),
    ("segments", "segments", "count"),
    ("metadata rows per partition", "rows_per_partition", "count"),
    ("metadata bytes per partition", "row_bytes_per_partition", "bytes"),
    ("memory", "memory_bytes", "bytes"),
    ("memory with full buffers", "most_memory_bytes", "bytes"),
)
_DISK = (
    "disk: an SSD whose fsync takes about a millisecond (kafkawire doctor measures it), not a "
    "network file system"
)


def estimate(
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES/s", help="Rate of all topics, as their producers compress it: 5MB/s."
        ),
    ] = None,
    record_rate: Annotated[
        int | None,
        typer.Option(min=1, max=INT32, help="Instead of --rate: records per second."),
    ] = None,
    record_size: Annotated[
        str, typer.Option(metavar="SIZE", help="With --record-rate: bytes of key and value.")
    ] = "1000",
    batch: Annotated[
        int, typer.Option(min=1, max=INT32, help="With --record-rate: records in a batch.")
    ] = 50,
    compression_ratio: Annotated[
        float,
        typer.Option(
            min=1, max=1000, metavar="RATIO", help="With --record-rate: how much batches shrink."
        ),
    ] = 1.0,
    partitions: Annotated[int, typer.Option(min=1, max=INT32, help="Number of partitions.")] = 1,
    tier: Annotated[
        str, typer.Option(metavar="URL", help="Remote tier: s3://BUCKET/PREFIX or a folder.")
    ] = "",
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="Setting to assume; may be repeated."),
    ] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Estimate the disk, metadata and memory that a load needs.

    The load is constant and in one topic. Nothing is read and no broker is needed. The costs of a
    bucket: kafkawire tier estimate.

    Examples:
      kafkawire estimate --rate 1MB/s --partitions 12
      kafkawire estimate --rate 1MB/s --tier s3://BUCKET/PREFIX --set local.retention.ms=1h
      kafkawire estimate --record-rate 2000 --record-size 500B --set retention.ms=3d
    """
    from kafkawire.objectstore.url import parse_tier
    from kafkawire.tiering.cost.sizes import sizes, stored_bytes
    from kafkawire.tiering.cost.traffic import SIZE_SETTINGS, typed_load

    try:
        changes = dict(split_setting("--set", text) for text in settings)
        if (rate is None) == (record_rate is None):
            given = "none" if rate is None else "both"
            raise OptionError("estimate", given, "exactly one of --rate and --record-rate")
        if rate is not None:
            bytes_per_s = parse_rate("--rate", rate)
        else:
            bytes_per_s = stored_bytes(
                record_rate or 0, _record_size(record_size), batch, compression_ratio
            )
        if not bytes_per_s:
            raise OptionError("--rate", rate, "more than 0")
        if tier:
            parse_tier(tier)
        load, machine, prices = typed_load(
            partitions, bytes_per_s, changes, tier=tier, more=SIZE_SETTINGS
        )
    except ValueError as error:
        fail(error, 2)
    found = asdict(sizes([load], machine, prices))
    if as_json:
        print_json({**found, "assumed": {"bytes_per_s": bytes_per_s, "partitions": partitions}})
        return
    print_table([{"": title, "estimate": _cell(found, key, kind)} for title, key, kind in _ROWS],
                ("", "estimate"), "estimate")  # fmt: skip
    print(f"assumed: constant {size(bytes_per_s)}/s in {count(partitions, 'partition')}")
    print(_DISK)


def _record_size(text: str) -> int:
    """Return the bytes of --record-size. OptionError."""
    found = parse_size("--record-size", text)
    if found > INT32:
        raise OptionError("--record-size", text, f"at most {size(INT32)}")
    return found


def _cell(found: Mapping[str, Any], key: str, kind: str) -> str:
    value = found[key]
    if kind == "count":
        return f"{value:,.0f}"
    return "grows without limit" if value < 0 else size(value)
