"""The options of `format("kafkawire")`: those of Spark's Kafka connector, and some additions. Pure.

Names are case-insensitive, as in Spark. Validation and defaults are those of the connector: a batch
reads from earliest to latest, a stream from latest; startingTimestamp takes precedence over
startingOffsetsByTimestamp, and that over startingOffsets. Options of the connector without a use
here are accepted (`SourceOptions.unused`); unknown ones are rejected with the nearest known name.
`.load(PATH)` is the same as the option `source`.

filterPushdown=true skips rows by a query's filters, if the setting
spark.sql.python.filterPushdown.enabled is also on. It is for frames that are used once: Spark 4.2
keeps the plan with the first filters for every later query of a loaded frame or view.

subscribePattern is a regular expression of Python's `re`, not of Java: for topic names they differ
only in classes like \\p{Alpha}. It must match the whole name; internal topics are left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kafkawire.reading.limits import (
    EARLIEST,
    LATEST,
    AtTime,
    EachAtTime,
    EachOffset,
    Limit,
    SourceOptionError,
    limit_of,
    offsets_of,
    partitions_of,
)
from kafkawire.reading.model.columns import DEFAULT, DEFAULT_HEADERS, NATIVE, Selection
from kafkawire.reading.model.source import MAX_REQUESTS, READ_COMMITTED, READ_UNCOMMITTED, Source
from kafkawire.reading.plan import TASK_BYTES

MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_ENDINGS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_KNOWN = (
    "source", "path", "kafka.bootstrap.servers", *_SUBSCRIPTIONS,
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", *_ENDINGS,
    "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "includeHeaders",
    "failOnDataLoss", "isolation.level", "kafka.isolation.level", "isolation", "columns",
    "taskBytes", "requestsAtOnce", "filterPushdown",
)  # fmt: skip
_UNUSED = (
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)  # fmt: skip
_REFUSED = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.key.deserializer": "keys are bytes: convert the column",
    "kafka.value.deserializer": "values are bytes: convert the column",
    "kafka.enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "kafka.interceptor.classes": "there is no Java consumer that would call them",
    # Options that Spark passes for a table of its catalog.
    "provider": "CREATE TABLE does not hand options on; CREATE TEMPORARY VIEW ... USING does",
}
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[\w.-]+):\d{1,5}")


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """The selected partitions: all of the topics in `names`, or of those `pattern` matches, or
    these."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated options. `max_*`, `min_*`: 0 if not given."""

    source: Source
    subscription: TopicSubscription
    selection: Selection
    starting: Limit
    ending: Limit
    no_match_latest: bool = False
    max_offsets: int = 0
    min_offsets: int = 0
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    min_partitions: int = 0
    max_records: int = 0
    task_bytes: int = TASK_BYTES
    push_filters: bool = False
    unused: tuple[str, ...] = ()


def parse_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse options. `streaming` None: not known yet whether it will be a batch or a stream.

    Raises SourceOptionError with a sentence that names the option, its value and what is allowed.
    """
    unused = _check_names(given)
    said = {name.lower(): value.strip() for name, value in given.items()}
    _refuse_what_contradicts(said, streaming)
    strategy = _one_of(said, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    options = SourceOptions(
        source=_source(said),
        subscription=_subscription(said),
        selection=_selection(said),
        starting=limit_of(said, "starting", default=LATEST if streaming else EARLIEST),
        ending=limit_of(said, "ending", default=LATEST),
        no_match_latest=strategy == "latest",
        max_offsets=_count(said, "maxOffsetsPerTrigger"),
        min_offsets=_count(said, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=_milliseconds(said, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        min_partitions=_count(said, "minPartitions"),
        max_records=_count(said, "maxRecordsPerPartition"),
        task_bytes=_count(said, "taskBytes", TASK_BYTES),
        push_filters=_boolean(said, "filterPushdown", False),
        unused=unused,
    )
    _check_limits(options, streaming)
    return options


def _check_names(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options without a use here. Raises SourceOptionError for an unknown one."""
    known = {name.lower(): name for name in _KNOWN}
    unused = []
    for name in given:
        lowered = name.lower()
        if lowered in known:
            continue
        if lowered in _REFUSED:
            raise SourceOptionError(f"the option {name} is not supported: {_REFUSED[lowered]}")
        if lowered.startswith("kafka.security.") and given[name].upper() != "PLAINTEXT":
            raise SourceOptionError(
                f"{name}={given[name]} is not supported: only PLAINTEXT is spoken"
            )
        if lowered.startswith("kafka.") or lowered in {other.lower() for other in _UNUSED}:
            unused.append(name)
            continue
        near = difflib.get_close_matches(lowered, known, n=1)
        hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(_KNOWN)}"
        raise SourceOptionError(f"there is no option {name!r}: {hint}")
    return tuple(sorted(unused))


def _refuse_what_contradicts(said: Mapping[str, str], streaming: bool | None) -> None:
    chosen = [name for name in _SUBSCRIPTIONS if name.lower() in said]
    if len(chosen) != 1:
        what = f"not {' and '.join(chosen)}" if chosen else "none is given"
        raise SourceOptionError(f"one of {', '.join(_SUBSCRIPTIONS)} says what to read; {what}")
    if streaming:
        for name in _ENDINGS:
            if name.lower() in said:
                raise SourceOptionError(f"a stream has no end: {name} is for spark.read")


def _check_limits(options: SourceOptions, streaming: bool | None) -> None:
    """Checks of options against each other, independent of the topics."""
    starting, ending = options.starting, options.ending
    if streaming is False and LATEST in offsets_of(starting):
        raise SourceOptionError(
            "startingOffsets must not be latest (-1) in a batch: it would be empty"
        )
    if EARLIEST in offsets_of(ending):
        raise SourceOptionError("endingOffsets must not be earliest (-2): nothing would be read")
    if options.min_offsets > options.max_offsets > 0:
        raise SourceOptionError(
            f"minOffsetsPerTrigger={options.min_offsets} is more than "
            f"maxOffsetsPerTrigger={options.max_offsets}"
        )
    for kind, what in ((EachOffset, "Offsets"), (EachAtTime, "OffsetsByTimestamp")):
        if not (isinstance(starting, kind) and isinstance(ending, kind)):
            continue
        first, last = starting.values(), ending.values()
        if first.keys() != last.keys():
            raise SourceOptionError(
                f"starting{what} and ending{what} must name the same partitions"
            )
        for (topic, partition), value in first.items():
            if 0 <= last[topic, partition] < value:
                raise SourceOptionError(
                    f"starting{what} of {topic}-{partition} is {value}, after ending{what}, "
                    f"which is {last[topic, partition]}"
                )
    if isinstance(starting, AtTime) and isinstance(ending, AtTime) and ending.ms < starting.ms:
        raise SourceOptionError(
            f"startingTimestamp={starting.ms} is after endingTimestamp={ending.ms}"
        )


def _source(said: Mapping[str, str]) -> Source:
    where, path = said.get("source", ""), said.get("path", "")
    if where and path and where != path:
        raise SourceOptionError(f"source={where} and path={path}, which load() takes too, differ")
    where = where or path
    bootstrap = said.get("kafka.bootstrap.servers", "")
    if where and _is_address(where):
        if bootstrap and bootstrap != where:
            raise SourceOptionError(
                f"source={where} and kafka.bootstrap.servers={bootstrap} are two brokers' "
                "addresses: give one, or a bucket or folder as the source"
            )
        where, bootstrap = "", where
    if bootstrap and not _is_address(bootstrap):
        raise SourceOptionError(
            f"kafka.bootstrap.servers={bootstrap!r} is not HOST:PORT[,HOST:PORT...]"
        )
    if where and not (where.startswith("/") or "://" in where):
        raise SourceOptionError(
            f"source={where!r} is none of s3://BUCKET/PREFIX, a folder by its whole path (tasks "
            "run in folders of their own), HOST:PORT"
        )
    if not (where or bootstrap):
        raise SourceOptionError(
            "give the option source (s3://BUCKET/PREFIX, a folder, or HOST:PORT) or "
            "kafka.bootstrap.servers"
        )
    isolation = _isolation(said)
    at_once = _count(said, "requestsAtOnce")
    if at_once > MAX_REQUESTS:
        raise SourceOptionError(f"requestsAtOnce={at_once} is more than {MAX_REQUESTS}")
    return Source(where, bootstrap, isolation, _boolean(said, "failOnDataLoss", True), at_once)


def _isolation(said: Mapping[str, str]) -> str:
    """Return the isolation level: by Kafka's name for it, with or without the prefix of consumer
    options, or by the older name `isolation`."""
    levels = (READ_COMMITTED, READ_UNCOMMITTED)
    given = {
        name: _one_of(said, name, levels, READ_COMMITTED)
        for name in ("isolation.level", "kafka.isolation.level", "isolation")
        if name in said
    }
    if len(set(given.values())) > 1:
        differing = " and ".join(f"{name}={level}" for name, level in given.items())
        raise SourceOptionError(f"{differing} differ")
    return next(iter(given.values()), READ_COMMITTED)


def _is_address(text: str) -> bool:
    return all(_ADDRESS.fullmatch(part.strip()) for part in text.split(","))


def _subscription(said: Mapping[str, str]) -> TopicSubscription:
    if "assign" in said:
        return TopicSubscription(partitions=partitions_of(said["assign"]))
    if "subscribe" in said:
        names = [name.strip() for name in said["subscribe"].split(",")]
        names = list(dict.fromkeys(name for name in names if name))
        if not names:
            raise SourceOptionError(f"subscribe={said['subscribe']!r} names no topic")
        return TopicSubscription(names=tuple(names))
    pattern = said["subscribepattern"]
    if not pattern:
        raise SourceOptionError("subscribePattern is empty")
    try:
        re.compile(pattern)
    except re.error as reason:
        raise SourceOptionError(
            f"subscribePattern={pattern!r} is no regular expression of Python's: {reason}"
        ) from None
    return TopicSubscription(pattern=pattern)


def _selection(said: Mapping[str, str]) -> Selection:
    asked = said.get("columns", "")
    if not asked:
        return DEFAULT_HEADERS if _boolean(said, "includeHeaders", False) else DEFAULT
    if asked.lower() == "native":
        without = () if _boolean(said, "includeHeaders", False) else ("_headers",)
        return Selection(tuple(name for name in NATIVE.names if name not in without))
    selection = Selection(tuple(name.strip() for name in asked.split(",")))
    selection.fields()  # names the unknown one
    return selection


def _boolean(said: Mapping[str, str], name: str, default: bool) -> bool:
    return _one_of(said, name, ("true", "false"), str(default).lower()) == "true"


def _one_of(said: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = said.get(name.lower(), default).lower()
    if value not in allowed:
        raise SourceOptionError(f"{name}={said[name.lower()]!r} is neither {' nor '.join(allowed)}")
    return value


def _count(said: Mapping[str, str], name: str, default: int = 0) -> int:
    text = said.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,18}", text) or int(text) == 0:
        raise SourceOptionError(f"{name}={text!r} is no whole number above 0")
    return int(text)


def _milliseconds(said: Mapping[str, str], name: str, default: int) -> int:
    """Parse a time as Spark writes it: 100ms, 30s, 15m, 2h, 1d; a bare number is milliseconds."""
    text = said.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.lower())
    if not found or found.group(2) not in _UNITS_MS:
        raise SourceOptionError(f"{name}={text!r} is no time like 500ms, 30s, 15m, 2h or 1d")
    return int(found.group(1)) * _UNITS_MS[found.group(2)]
