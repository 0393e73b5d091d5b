"""Plan of a replay, fixed before its first row is written and stored next to the table. Pure.

`_kafkawire/replays/<name>.json`, written once. An interrupted replay continues with it: the
target's end offset minus that at the beginning is the number of written rows. All rows have one
producer id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from kafkawire.codec.format_errors import FormatError
from kafkawire.manifest.sealed_json import seal, unseal
from kafkawire.reading.model.source import SourceError

SAME = "same"
_PAIR = re.compile(r"(\d{1,9}):(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound of the replayed rows: an offset of all partitions, of some, or a time. At most one
    is set."""

    offset: int | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)
    time_ms: int = -1

    def offset_in_partition(self, partition: int, default: int) -> int:
        """Return the offset in a partition, or `default`."""
        return self.offsets.get(partition, default if self.offset is None else self.offset)


def parse_bound(option: str, text: str) -> Bound:
    """Parse `""`, an offset, `PARTITION:OFFSET,...`, or an ISO 8601 time (UTC without a zone)."""
    text = text.strip()
    if not text:
        return Bound()
    if re.fullmatch(r"\d{1,18}", text):
        return Bound(offset=int(text))
    pairs = [_PAIR.fullmatch(one.strip()) for one in text.split(",")]
    if all(pairs):
        return Bound(offsets=_unique(option, text, [(int(p[1]), int(p[2])) for p in pairs if p]))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ReplayError(
            f"{option}={text}: it must be an offset, PARTITION:OFFSET[,...] or a time such as "
            "2026-01-31T12:00:00Z"
        ) from None
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    ms = int(when.timestamp() * 1000)
    if ms < 0:
        raise ReplayError(f"{option}={text}: it must be a time since 1970")
    return Bound(time_ms=ms)


def parse_partitions(text: str) -> Mapping[int, int] | None:
    """Parse `same` (None), or `FROM:TO[,...]`: only these partitions of the table, to those of the
    target. Raises ReplayError, also if two partitions go to one, because their order would be
    undefined."""
    if text.strip().lower() == SAME:
        return None
    pairs = [_PAIR.fullmatch(one.strip()) for one in text.split(",")]
    if not all(pairs):
        raise ReplayError(
            f"--partition-map={text}: it must be {SAME} or FROM:TO[,FROM:TO...], numbers of "
            "partitions of the table and of the target"
        )
    chosen = _unique("--partition-map", text, [(int(p[1]), int(p[2])) for p in pairs if p])
    if len(set(chosen.values())) != len(chosen):
        raise ReplayError(
            f"--partition-map={text}: two partitions cannot go to one, which would have no order"
        )
    return chosen


def _unique(option: str, text: str, pairs: list[tuple[int, int]]) -> dict[int, int]:
    chosen = dict(pairs)
    if len(chosen) != len(pairs):
        raise ReplayError(f"{option}={text}: a partition is named twice")
    return chosen


VERSION = 2
"""Files of version 1 have no checksum."""
SEQUENCES = 1 << 31
"""Sequence numbers wrap from 2^31 - 1 to 0."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class ReplayError(SourceError):
    """The replay is not possible; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class ReplayLane:
    """The rows of the table's `partition` with offsets in [base, end) are written to the target's
    `to_partition`, whose end was `begin` before the first of them."""

    partition: int
    base: int
    end: int
    to_partition: int
    begin: int


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay. `since_ms`, `until_ms`: only rows with timestamps in [since, until), -1: all;
    `cluster`: of the target, by its id; `topic_id`: hexadecimal, "" from brokers without any."""

    name: str
    source_topic: str
    topic: str
    topic_id: str
    cluster: str
    producer_id: int
    producer_epoch: int
    lanes: tuple[ReplayLane, ...]
    since_ms: int = -1
    until_ms: int = -1


def key_of(name: str) -> str:
    """Return the key of a replay's record. Raises ReplayError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise ReplayError(
            f"--name={name}: it must be letters, digits, dots, dashes and underscores, 200 at most"
        )
    return f"_kafkawire/replays/{name}.json"


def dump(replay: Replay) -> bytes:
    return seal(json.dumps({"version": VERSION, **asdict(replay)}, indent=1))


def load(data: bytes, key: str) -> Replay:
    """Raises ReplayError."""
    try:
        plain = unseal(data, key, VERSION, "version")
        if plain.pop("version") not in (1, VERSION):
            raise ReplayError(f"{key} was written by a newer kafkawire")
        plain["lanes"] = tuple(ReplayLane(**lane) for lane in plain["lanes"])
        return Replay(**plain)
    except FormatError as failure:
        raise ReplayError(str(failure)) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ReplayError(f"{key} is no record of a replay") from None


def same(asked: Replay, kept: Replay) -> None:
    """Raise ReplayError if a replay of this name was begun with other arguments. Values
    determined at its beginning (producer id, begins, the table's ends) may differ; the stored
    ones are used."""
    for name, words in (
        ("source_topic", "topic of the table"),
        ("topic", "target"),
        ("cluster", "cluster"),
        ("topic_id", "topic id of the target"),
        ("since_ms", "time it begins at"),
        ("until_ms", "time it ends at"),
    ):
        if getattr(asked, name) != getattr(kept, name):
            raise ReplayError(
                f"the replay {kept.name} was begun with another {words} "
                f"({getattr(kept, name)}, now {getattr(asked, name)}): give this one another --name"
            )
    wanted = {lane.partition: lane for lane in asked.lanes}
    for lane in kept.lanes:
        now = wanted.get(lane.partition)
        if now is None or (now.base, now.to_partition) != (lane.base, lane.to_partition):
            raise ReplayError(
                f"the replay {kept.name} was begun with other offsets or partitions: give this "
                "one another --name"
            )


def progress(lane: ReplayLane, end: int, rows: int) -> int:
    """Return how many of the lane's `rows` are in the target, whose end is `end`. ReplayError if
    that is impossible: another producer has written, or the topic was replaced."""
    there = end - lane.begin
    if not 0 <= there <= rows:
        what = f"{there} records were written since" if there > 0 else f"it ends at {end}"
        raise ReplayError(
            f"partition {lane.to_partition} of the target ended at {lane.begin} when the replay "
            f"began, and {what}, which {rows} rows cannot be: another producer wrote to it"
        )
    return there
