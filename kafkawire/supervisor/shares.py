"""Settings that limit what a machine gives: each worker gets an equal share. Pure.

Each worker applies this to its own settings, so those of a reloaded file are divided as those of
the start are. What is set with `kafkawire configs set` is for each broker and is not divided.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.codec.configs.parse import validate
from kafkawire.codec.configs.row import DOUBLE_MAX, INT64_MAX, ConfigType
from kafkawire.codec.configs.table import BROKER_CONFIGS

DIVIDED: Mapping[str, str] = {
    "hot.bytes": "memory: journals that are mapped; the newest journal of each worker always is",
    "inflight.answer.bytes": "memory of answers",
    "inflight.bytes": "memory of requests",
    "log.cleaner.dedupe.buffer.size": "memory of the cleaner, of which each worker has one",
    "log.cleaner.io.max.bytes.per.second": "rate of one disk",
    "parked.fetches.max": "memory of Fetches that wait",
    "partitions.loaded.max": "memory of partitions, of which each worker leads a part",
    "recycle.bytes": "disk space; a share below journal.bytes keeps no old journal",
    "remote.log.manager.copy.max.bytes.per.second": "rate of one network",
    "remote.log.manager.fetch.max.bytes.per.second": "rate of one network",
    "tier.cache.bytes": "memory of blocks of the remote tier",
    "tier.upload.buffer.bytes": "memory and disk reads of uploads under way",
    "uncommitted.max.bytes": "memory of records that are not committed",
    "worker.bytes.per.second": "rate of one disk",
}
"""Settings with what it is of the machine that they limit. Not divided, among others: limits of a
connection, a request, a topic or a partition; `max.connections` and quotas, which Kafka has for
each broker; `disk.*.percent`, which are of the disk that all workers share; `metadata.cache.bytes`,
because each worker prepares the same answers; numbers of threads, which wait most of the time."""
UNLIMITED = (-1, INT64_MAX, DOUBLE_MAX)
FITTED = ("connection.inflight.bytes", "inflight.bytes")
"""The first must not be above the second."""


def divide_settings(settings: Mapping[str, str], workers: int) -> dict[str, str]:
    """Return the settings of one of several workers, from those of all."""
    shares = {name: _share(name, settings.get(name), workers) for name in DIVIDED}
    found = {**settings, **{name: text for name, text in shares.items() if text is not None}}
    part, whole = (_number(name, found.get(name)) for name in FITTED)
    if part > whole:
        found[FITTED[0]] = found[FITTED[1]]
    return found


def _number(name: str, text: str | None) -> float:
    row = BROKER_CONFIGS[name]
    value = row.default if text is None else validate(row, text)
    return value if isinstance(value, int | float) else 0


def _share(name: str, text: str | None, workers: int) -> str | None:
    """Return a share; None if there is no limit to share. It is never below what is allowed."""
    row, value = BROKER_CONFIGS[name], _number(name, text)
    if value in UNLIMITED:
        return None
    least = row.at_least or 0
    if row.type is ConfigType.DOUBLE:
        return repr(max(value / workers, least))
    return str(max(int(value) // workers, int(least), 1 if value else 0))
