"""The settings of client metrics subscriptions (KIP-714, Kafka: ClientMetricsConfigs); data
only."""

from __future__ import annotations

from kafkawire.codec.configs.row import HOUR_MS, LIST, MINUTE_MS, Config, I

METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
MIN_INTERVAL_MS, MAX_INTERVAL_MS, DEFAULT_INTERVAL_MS = 100, HOUR_MS, 5 * MINUTE_MS

# fmt: off
CLIENT_METRICS_CONFIGS: dict[str, Config] = {row.name: row for row in (
    Config(METRICS, LIST, [],
           "Prefixes of the names of the metrics that clients are to push; * means all.",
           dynamic=True),
    Config(INTERVAL, I, DEFAULT_INTERVAL_MS, "How often clients are to push them.",
           dynamic=True),
    Config(MATCH, LIST, [],
           "Which clients: ATTRIBUTE=PATTERN, all of which must match. Attributes: "
           "client_instance_id, client_id, client_software_name, client_software_version, "
           "client_source_address, client_source_port. Empty means all clients.", dynamic=True),
)}
# fmt: on
"""By name. The interval has no bounds here, because Kafka refuses one out of them with another
error than other wrong values: kafkawire.telemetry.subscriptions."""
