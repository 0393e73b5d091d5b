"""Client metrics of one broker: which are wanted from clients, and what they pushed last.

An instance is a client with an id of its own, which this broker knows until its connection is
closed or it sends nothing for three push intervals. Nothing is stored: another broker that a client
then pushes to computes the same subscription id. Not done, unlike in Kafka's plugins: passing what
clients push to other systems.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.codec.compression import decompress
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID, uuid_text
from kafkawire.log_lines import shorten_for_log
from kafkawire.telemetry.instances import (
    NEW,
    Expected,
    InstanceProgress,
    TelemetryPush,
    decide_get,
    decide_push,
)
from kafkawire.telemetry.otlp import Latency, MalformedMetrics, read_latencies
from kafkawire.telemetry.subscriptions import (
    ClientDetails,
    MetricsSubscription,
    WantedMetrics,
    combine,
    parse_subscription,
)

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog

logger = logging.getLogger(__name__)

MAX_INSTANCES = 4_096
"""Client instances known at a time, of about 4 KB. The one that was silent for longest is
forgotten; its next request is answered as that of a new client."""
FORGET_AFTER_S = 60.0
"""How long an instance is known at least after its last request, as in Kafka."""
RESERVED = frozenset({ZERO_UUID, bytes(15) + b"\x01"})
"""Ids that no client can have (Kafka: Uuid.RESERVED)."""


class Pusher(NamedTuple):
    """The client of a request. `details`: without its instance id; `is_gone`: returns whether its
    connection is closed."""

    details: ClientDetails
    is_gone: Callable[[], bool]


class Granted(NamedTuple):
    """The answer to a client that asks which metrics are wanted; only `error` if there is one."""

    error: ErrorCode
    instance_id: bytes
    subscription_id: int = 0
    wanted: WantedMetrics = WantedMetrics()


@dataclass(slots=True)
class _Instance:
    pusher: Pusher  # with the connection of its first request
    version: int  # of the subscriptions that `wanted` was computed from
    wanted: WantedMetrics
    subscription_id: int
    progress: InstanceProgress = NEW
    heard_at: float = 0.0
    latencies: Mapping[Latency, float] = field(default_factory=dict)

    def is_over(self, now: float) -> bool:
        """Return whether it is to be forgotten."""
        limit = max(FORGET_AFTER_S, 3 * self.wanted.interval_ms / 1000)
        return now - self.heard_at > limit or self.pusher.is_gone()


class TelemetryService:
    """The instances and subscriptions of this broker. `max_bytes`: of a push."""

    def __init__(self, env: Env, catalog: Catalog, max_bytes: int) -> None:
        self._env = env
        self._catalog = catalog
        self._max_bytes = max_bytes
        self._instances: OrderedDict[bytes, _Instance] = OrderedDict()  # the last heard at the end
        self._subscriptions: list[MetricsSubscription] = []
        self._version = -1

    async def grant(self, pusher: Pusher, instance_id: bytes) -> Granted:
        """Answer a GetTelemetrySubscriptions; a client without an id gets one."""
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        found = await self._find(pusher, instance_id)
        now, interval_s = self._env.clock.monotonic(), found.wanted.interval_ms / 1000
        found.progress, error = decide_get(found.progress, interval_s, now)
        if error:
            return Granted(error, instance_id)
        return Granted(error, instance_id, found.subscription_id, found.wanted)

    async def accept(self, pusher: Pusher, push: TelemetryPush) -> ErrorCode:
        """Check a push, and keep its latencies. Return an error for the client."""
        if push.instance_id in RESERVED:
            return ErrorCode.INVALID_REQUEST
        found = await self._find(pusher, push.instance_id)
        expected = Expected(found.subscription_id, found.wanted.interval_ms / 1000, self._max_bytes)
        now = self._env.clock.monotonic()
        found.progress, error = decide_push(found.progress, push, expected, now)
        if error or not push.metrics:
            return error
        try:
            found.latencies = await self._env.offload.submit(
                "files", _unpack_and_read, push, self._max_bytes
            )
        except (KafkaError, MalformedMetrics) as failure:
            # No warning: a client decides how many there are, and request_errors counts them.
            client = shorten_for_log(pusher.details.client_id or "")
            logger.debug("metrics of client %s cannot be read: %s", client, failure)
            # KAFKA-21076: after INVALID_RECORD clients never push again.
            large = isinstance(failure, KafkaError) and failure.code is ErrorCode.MESSAGE_TOO_LARGE
            error = ErrorCode.TELEMETRY_TOO_LARGE if large else ErrorCode.INVALID_RECORD
            found.progress = found.progress._replace(error=error)
        return error

    async def _find(self, pusher: Pusher, instance_id: bytes) -> _Instance:
        """Return a known instance, or a new one if what is wanted from it may have changed."""
        if self._version != self._catalog.client_metrics_version:
            await self._read_subscriptions()
        now = self._env.clock.monotonic()
        found = self._instances.get(instance_id)
        if found is None or found.version != self._version or found.is_over(now):
            found = await self._make(pusher, instance_id)
            self._instances[instance_id] = found
        found.heard_at = now
        self._instances.move_to_end(instance_id)
        while len(self._instances) > MAX_INSTANCES:
            self._instances.popitem(last=False)
        return found

    async def _make(self, pusher: Pusher, instance_id: bytes) -> _Instance:
        client = pusher.details._replace(client_instance_id=uuid_text(instance_id))
        version, matching = self._version, []
        for each in self._subscriptions:
            if each.matches(client):
                matching.append(each)
            await self._env.slices.give_way()
        wanted = combine(matching)
        return _Instance(
            Pusher(client, pusher.is_gone), version, wanted, wanted.id_for(instance_id)
        )

    async def _read_subscriptions(self) -> None:
        """Parse the subscriptions, in a thread: each pattern takes up to 5 ms."""
        version = self._catalog.client_metrics_version
        stored = {name: dict(own) for name, own in self._catalog.client_metrics.items()}
        self._subscriptions = await self._env.offload.submit("files", _parse_all, stored)
        self._version = version

    def _new_id(self) -> bytes:
        """Return an unused id, whose text has no dash, like Kafka's."""
        while True:
            made = self._env.random.randbytes(16)
            if made not in RESERVED and made not in self._instances and "-" not in uuid_text(made):
                return made

    def instances(self) -> Iterator[tuple[str, Mapping[Latency, float]]]:
        """Yield the client id of each known instance, and the latencies that it pushed last."""
        now = self._env.clock.monotonic()
        for found in list(self._instances.values()):
            if not found.is_over(now):
                yield found.pusher.details.client_id or "", found.latencies


def _unpack_and_read(push: TelemetryPush, max_bytes: int) -> dict[Latency, float]:
    return read_latencies(bytes(decompress(push.compression, push.metrics, max_bytes)))


def _parse_all(stored: Mapping[str, Mapping[str, str]]) -> list[MetricsSubscription]:
    """Parse all subscriptions; leave out one that another version of kafkawire has stored and this
    one does not accept."""
    parsed = []
    for name, settings in stored.items():
        try:
            parsed.append(parse_subscription(settings))
        except KafkaError as error:
            shown = shorten_for_log(name)
            logger.warning("client metrics subscription %s has no effect: %s", shown, error.message)
    return parsed
