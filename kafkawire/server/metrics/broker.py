"""Metric families of a broker, connections, requests, errors and bytes, and of the cluster as this
broker knows it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client.core import InfoMetricFamily, Metric

from kafkawire.codec.errors import ErrorCode
from kafkawire.server.metrics.families import (
    counter,
    counters,
    gauge,
    gauges,
    histogram,
    histograms,
)

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.io.watchdog import Watchdog
    from kafkawire.metric_counters import Counts
    from kafkawire.server.monitored import MonitoredServer


PRODUCE, FETCH, HEARTBEAT = 0, 1, 12


def broker_families(server: MonitoredServer) -> Iterator[Metric]:
    """Yield the metric families of this module."""
    broker, host = server.broker, server.host
    counts = broker.counts
    facts = {
        "version": version("kafkawire"),
        "cluster_id": broker.cluster_id,
        "cluster_name": broker.config.cluster_name,
        "node_id": str(broker.node_id),
    }
    yield InfoMetricFamily("kafkawire", "This broker.", facts)
    yield gauge("topics", "Topics of the cluster.", len(broker.catalog.by_name))
    yield gauge("partitions", "Partitions of the cluster.", broker.catalog.partitions)
    yield gauge(
        "read_only",
        "1 while broker.read.only is true: clients cannot write.",
        broker.config.broker_read_only,
    )
    yield gauge("connections", "Open connections.", len(host.connections))
    yield counter(
        "connections_refused",
        "New connections closed because of max.connections, max.connections.per.ip or the file "
        "descriptor limit.",
        counts.connections_refused,
    )
    yield counters(
        "connections_closed",
        "Connections closed by the broker: idle, stalled in a request, slow_reader and slow_sender "
        "(others waited for memory that they held, or a file was sent to them for longer than "
        "connections.max.idle.ms), unused (others wanted to connect).",
        ["reason"],
        (([reason], number) for reason, number in sorted(counts.connections_closed.items())),
    )
    yield from _security(counts)
    asked = {**counts.requests, PRODUCE: counts.produces, FETCH: counts.fetches}
    asked[HEARTBEAT] = counts.heartbeats
    yield counters(
        "requests",
        "Requests by API.",
        ["api"],
        (([host.apis[key].name], number) for key, number in sorted(asked.items())),
    )
    yield histograms(
        "request_seconds",
        "Time from the receipt of a request to its response, by API, waits included. Of Produce, "
        "Fetch and Heartbeat a sample: one request of each connection per second.",
        "api",
        ((host.apis[key].name, found) for key, found in sorted(counts.latency.items())),
    )
    yield counters(
        "request_errors",
        "Errors answered by API and Kafka's name of the code; Produce and Fetch per partition.",
        ["api", "error"],
        (([api, error_name(code)], number) for (api, code), number in counts.errors.items()),
    )
    yield counter("received_bytes", "Bytes received from clients.", counts.received_bytes)
    yield from _fetches(counts)
    yield from _memory_families(server)
    fetch = host.apis[FETCH].hot
    parked = getattr(fetch, "parked", None)
    yield gauge("parked_fetches", "Fetch requests waiting for records.", len(parked or ()))
    yield histogram(
        "loop_lag_seconds", "Delay of the event loop, measured once a second.", counts.loop_lag
    )
    watchdog = broker.env.watchdog
    if watchdog is not None:
        yield from _stretches(watchdog)


def _fetches(counts: Counts) -> Iterator[Metric]:
    yield counter(
        "fetched_bytes", "Bytes of record batches answered to Fetches.", counts.fetched_bytes
    )
    yield counter(
        "fetch_replica_bytes",
        "Bytes of record batches answered to Fetches for partitions that another broker leads.",
        counts.replica_bytes,
    )
    yield counter(
        "fetch_redirects",
        "Partitions of Fetches for which a client was sent to a broker of its rack.",
        counts.redirects,
    )


def _security(counts: Counts) -> Iterator[Metric]:
    yield counters(
        "log_ins",
        "Log-ins by SASL mechanism and result: succeeded, failed, timed_out, refused (too many "
        "clients were not logged in). With the mechanism TLS: clients that TLS did not accept, by "
        "their handshake or certificate.",
        ["mechanism", "result"],
        (([*key], number) for key, number in sorted(counts.log_ins.items())),
    )
    yield counters(
        "denials",
        "Refusals of the authorizer by operation and type of resource; a request may have several.",
        ["operation", "resource"],
        (([*key], number) for key, number in sorted(counts.denials.items())),
    )


def _stretches(watchdog: Watchdog) -> Iterator[Metric]:
    yield histogram(
        "loop_long_stretch_seconds",
        "CPU time of the tasks that held the event loop for over 5 ms; the log names them.",
        watchdog.seconds,
    )


def _memory_families(server: MonitoredServer) -> Iterator[Metric]:
    host = server.host
    yield gauge(
        "receive_memory_bytes",
        "Memory held by requests being received or processed.",
        host.memory.taken_bytes,
    )
    yield gauge(
        "receive_memory_waiting",
        "Connections that are not read until receive memory is free.",
        host.memory.waiting,
    )
    yield gauge(
        "answer_memory_bytes",
        "Memory of responses that clients have not read yet; bounded by inflight.answer.bytes.",
        host.answers.held_bytes,
    )
    yield gauge(
        "answer_memory_waiting",
        "Fetches of older records waiting for response memory.",
        host.answers.waiting,
    )


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def metadata_families(server: MonitoredServer) -> Iterator[Metric]:
    """Yield the families of the metadata check; none for PostgreSQL."""
    check = server.metadata_check
    if check is not None:
        yield gauge(
            "metadata_damaged",
            "1 after a check of metadata.db found damage, until the next restart; else 0.",
            1 if check.damage else 0,
        )
        yield counter(
            "metadata_checks",
            "Complete checks of metadata.db that found no damage: one after the start, then daily.",
            check.completed,
        )


def backup_families(server: MonitoredServer) -> Iterator[Metric]:
    """Yield the families of scheduled backups; none if they are disabled."""
    if server.backups is not None:
        yield gauge(
            "backup_last_timestamp_seconds",
            "Unix time at which the newest complete backup began; 0: none exists, or it is not "
            "known yet.",
            server.backups.last_ms / 1000,
        )
        yield counter("backup_failures", "Backups that failed.", server.backups.failures)


def hook_families(broker: Broker) -> Iterator[Metric]:
    """Yield the families of hooks; none without plugin.hooks."""
    hooks = broker.env.hooks
    if hooks is None:
        return
    for name, about, found in (
        ("hook_calls", "Calls of hooks that returned.", hooks.calls),
        ("hook_failures", "Calls of hooks that raised.", hooks.failures),
        ("hook_dropped", "Events dropped because this hook was too slow.", hooks.dropped),
    ):
        yield counters(name, about, ["hook"], [([each], found[each]) for each in hooks.names])


def cluster_families(broker: Broker) -> Iterator[Metric | None]:
    """Yield the families; None while partitions are counted."""
    catalog = broker.catalog
    silent = len(catalog.silent & catalog.brokers.keys())
    yield gauges(
        "brokers",
        "Registered brokers, according to this one: alive, or silent (no heartbeat for lease.ms, "
        "or shut down).",
        ["state"],
        ((["alive"], len(catalog.brokers) - silent), (["silent"], silent)),
    )
    led = 0
    for group in catalog.groups():
        if group.leader == broker.node_id:
            for size in catalog.sizes_of_group(group.id):
                led += size
                yield None
    yield gauge("partitions_led", "Partitions that this broker leads.", led)
    yield gauge(
        "moving_partitions",
        "Partitions of the cluster that are to be moved to another broker.",
        len(catalog.moves),
    )
