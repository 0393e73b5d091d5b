"""Subscriptions of client metrics: which metrics are wanted from which clients, and how often.

Kafka: ClientMetricsConfigs and ClientMetricsInstanceMetadata. Patterns are of RE2's syntax, not
Java's. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kafkawire.codec.configs.client_metrics_rows import (
    CLIENT_METRICS_CONFIGS,
    DEFAULT_INTERVAL_MS,
    INTERVAL,
    MATCH,
    MAX_INTERVAL_MS,
    METRICS,
    MIN_INTERVAL_MS,
)
from kafkawire.codec.configs.parse import ConfigError, validate, whole_number
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.patterns import compile_pattern
from kafkawire.crc32c import crc32c

ALL_METRICS = "*"
MAX_PATTERNS = 20
"""Maximum number of patterns of a subscription: clients have six attributes to match."""
MAX_MATCHED_CHARS = 1_000
"""Longer attributes match no pattern: the time for one grows with its length, to 15 ms at 32 KB."""


class ClientDetails(NamedTuple):
    """Attributes of a client that `match` of a subscription can name, under their names there."""

    client_instance_id: str
    client_id: str | None
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


class MetricsSubscription(NamedTuple):
    """A parsed subscription. `patterns`: pairs of an attribute of ClientDetails and a test of its
    value, all of which must succeed."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: tuple[tuple[str, Callable[[str], bool]], ...]

    def matches(self, client: ClientDetails) -> bool:
        """Return whether the subscription is for this client."""
        return all(_matches(test, getattr(client, name)) for name, test in self.patterns)


def _matches(test: Callable[[str], bool], value: str | None) -> bool:
    return value is not None and len(value) <= MAX_MATCHED_CHARS and test(value)


class WantedMetrics(NamedTuple):
    """Metrics wanted from a client: prefixes of their names in order, or only ALL_METRICS."""

    metrics: tuple[str, ...] = ()
    interval_ms: int = DEFAULT_INTERVAL_MS

    def id_for(self, instance_id: bytes) -> int:
        """Return the id of the subscription of one client, which changes with what is wanted: the
        CRC-32C of it, combined with the client's instance id."""
        checksum = crc32c(f"[{', '.join(self.metrics)}]{self.interval_ms}".encode())
        mixed = int.from_bytes(instance_id[:8], "big") ^ int.from_bytes(instance_id[8:], "big")
        number = checksum ^ (mixed >> 32) ^ (mixed & 0xFFFFFFFF)  # Java's Uuid.hashCode
        return number - (1 << 32) if number >> 31 else number


def combine(matching: Iterable[MetricsSubscription]) -> WantedMetrics:
    """Return what all subscriptions of a client want together: the metrics of all, as often as the
    shortest interval says, which is never longer than the default."""
    metrics: set[str] = set()
    interval_ms = DEFAULT_INTERVAL_MS
    for each in matching:
        metrics.update(each.metrics)
        interval_ms = min(interval_ms, each.interval_ms)
    if ALL_METRICS in metrics:
        return WantedMetrics((ALL_METRICS,), interval_ms)
    return WantedMetrics(tuple(sorted(metrics)), interval_ms)


def parse_subscription(settings: Mapping[str, str]) -> MetricsSubscription:
    """Parse the settings of a subscription, whose names are known; takes up to 5 ms for each
    pattern. Raises INVALID_CONFIG, or INVALID_REQUEST for an interval out of its bounds, as Kafka
    does."""
    try:
        metrics = _list_items(METRICS, settings)
        interval = CLIENT_METRICS_CONFIGS[INTERVAL]
        text = settings.get(INTERVAL, str(DEFAULT_INTERVAL_MS))
        interval_ms = whole_number(validate(interval, text))
        match = _list_items(MATCH, settings)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for {INTERVAL}, interval must be between "
            f"{MIN_INTERVAL_MS} and {MAX_INTERVAL_MS} (1 hour)",
        )
    if len(match) > MAX_PATTERNS:
        text = f"A subscription can have at most {MAX_PATTERNS} patterns."
        raise KafkaError(ErrorCode.INVALID_CONFIG, text)
    # As in Kafka the last pattern of an attribute counts.
    patterns = dict(map(_parse_pattern, match))
    return MetricsSubscription(tuple(metrics), interval_ms, tuple(patterns.items()))


def _list_items(name: str, settings: Mapping[str, str]) -> list[str]:
    """Return the items of a list. Raises ConfigError if one is empty or there twice."""
    text = settings.get(name, "").strip()
    items = [item.strip() for item in text.split(",")] if text else []
    if not all(items) or len(set(items)) != len(items):
        raise ConfigError(name, text, "its items must not be empty, and each can be there once")
    return items


def _parse_pattern(text: str) -> tuple[str, Callable[[str], bool]]:
    name, _, pattern = (part.strip() for part in text.partition("="))
    if name in ClientDetails._fields and pattern and "=" not in pattern:
        try:
            return name, compile_pattern(pattern)
        except KafkaError:
            pass
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {text}")
