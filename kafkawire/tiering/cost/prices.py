"""Prices of object storage: price tables, and the cost of requests and bytes. Pure.

Tables are list prices of 2025, without free quotas and discounts: `aws-s3-standard` and
`aws-s3-express-one-zone` in us-east-1, read from the same region; `gcs-standard` in us-central1;
`cloudflare-r2`; `free` for a self-hosted MinIO or a folder. A custom table is KIND=PRICE,...: PUT,
GET, LIST, HEAD and DELETE per thousand requests, GB_MONTH, IN_GB and OUT_GB per gigabyte (10^9
bytes), and CURRENCY=EUR. It may begin with the name of a table whose prices it overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

GIGABYTE = 1e9
MONTH_MS = 30 * 24 * 3600 * 1000
KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
_BYTES = ("GB_MONTH", "IN_GB", "OUT_GB")
_PRICE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_CURRENCY = re.compile(r"[A-Za-z]{1,8}|[$\u00a3\u20ac\u00a5]")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in `currency`: `requests` per thousand of each kind, the others per gigabyte."""

    name: str
    currency: str = "USD"
    put: float = 0.0
    get: float = 0.0
    list: float = 0.0
    head: float = 0.0
    delete: float = 0.0
    gb_month: float = 0.0
    in_gb: float = 0.0
    out_gb: float = 0.0

    def of_requests(self, counts: Mapping[str, float]) -> float:
        return sum(number * self.of_kind(kind) / 1000 for kind, number in counts.items())

    def of_kind(self, kind: str) -> float:
        price: float = getattr(self, kind.lower())
        return price

    def of_transfer(self, in_bytes: float, out_bytes: float) -> float:
        return (in_bytes * self.in_gb + out_bytes * self.out_gb) / GIGABYTE

    def of_storage(self, byte_ms: float) -> float:
        """Return the cost of storage from bytes times milliseconds; a month has 30 days."""
        return byte_ms / MONTH_MS / GIGABYTE * self.gb_month


TABLES = {
    table.name: table
    for table in (
        Prices("aws-s3-standard", "USD", 0.005, 0.0004, 0.005, 0.0004, 0, 0.023),
        Prices(
            "aws-s3-express-one-zone",
            "USD", 0.00113, 0.00003, 0.00113, 0.00003, 0, 0.11, 0.0032, 0.0006,
        ),
        Prices("gcs-standard", "USD", 0.005, 0.0004, 0.005, 0.0004, 0, 0.020),
        Prices("cloudflare-r2", "USD", 0.0045, 0.00036, 0.0045, 0.00036, 0, 0.015),
        Prices("free"),
    )
}  # fmt: skip


def parse_prices(text: str) -> Prices:
    """Parse `tier.prices`. Raises ValueError with one sentence."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise _wrong("an empty text")
    table = Prices("custom")
    if "=" not in words[0]:
        found = TABLES.get(words[0].lower())
        if found is None:
            raise _wrong(repr(words[0]))
        if len(words) == 1:
            return found
        table = replace(found, name=f"{found.name}, changed")
    return replace(table, **_changes(words if "=" in words[0] else words[1:]))


def _changes(words: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for word in words:
        kind, equals, value = (part.strip() for part in word.partition("="))
        name = kind.lower()
        if not equals or kind.upper() not in (*KINDS, *_BYTES, "CURRENCY") or name in changes:
            raise _wrong(repr(word))
        if name == "currency":
            if not _CURRENCY.fullmatch(value):
                raise ValueError(f"{word!r}: a currency is up to eight letters, as in CURRENCY=EUR")
            changes[name] = value
        elif _PRICE.fullmatch(value):
            changes[name] = float(value)
        else:
            raise ValueError(f"{word!r}: a price is a number like 0.005")
    return changes


def _wrong(what: str) -> ValueError:
    return ValueError(
        f"{what} is neither the name of a price table ({', '.join(TABLES)}) nor a price like "
        f"PUT=0.005 of {', '.join((*KINDS, *_BYTES))}, each once"
    )
