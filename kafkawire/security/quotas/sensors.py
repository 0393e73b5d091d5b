"""Sensors: the use of quotas by clients, compared with the limits.

A sensor counts for all clients that share a limit: all client ids of a user, all users of a client
id, or one of both. It exists from its first use until it was not used for an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nsmallest
from typing import NamedTuple

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.security.quotas.alterations import (
    CONNECTIONS,
    CONSUMER_BYTES,
    MUTATIONS,
    PRODUCER_BYTES,
    REQUESTS,
)
from kafkawire.security.quotas.arithmetic import Rate, SampleWindow, TokenBucket
from kafkawire.security.quotas.rules import Limit, Rules

UNUSED_MS = 3_600_000
"""How long an unused sensor is kept, as in Kafka."""
MAX_SENSORS = 5_000
"""Maximum number of sensors, of 2 KB each: client ids are chosen by clients."""
EVICTED_AT_ONCE = MAX_SENSORS // 10
"""Sensors removed at once when there are too many, the least recently used: a millisecond, after
which every connection finds its sensors again."""
SWEEP_MS = 60_000
"""Interval of the search for unused sensors."""


class Label(NamedTuple):
    """The quantity and the clients of a sensor: `user` or `client_id` is empty if all share it. For
    connections `user` is empty and `client_id` the address."""

    key: str
    user: str
    client_id: str


class Sensor:
    """The use of one quota. `throttled`: how often clients were delayed, by `throttled_ms`."""

    __slots__ = ("bucket", "limit", "rate", "throttled", "throttled_ms", "used_ms")

    def __init__(
        self, limit: float, window: SampleWindow, now_ms: int, *, bucket: bool = False
    ) -> None:
        self.limit = limit
        self.rate = Rate(window)
        self.bucket = TokenBucket(window) if bucket else None
        self.used_ms = now_ms
        self.throttled = 0
        self.throttled_ms = 0

    def record(self, value: float, now_ms: int) -> None:
        """Add what was used; a negative value takes it back."""
        self.used_ms = now_ms
        self.rate.record(value, now_ms)

    def delay_ms(self, now_ms: int) -> int:
        """Return how long a client must wait; 0: it is within its limit."""
        return self.rate.delay_ms(self.limit, now_ms)

    def throttle(self, delay_ms: int) -> int:
        """Count a delay that is imposed on a client; return it."""
        self.throttled += 1
        self.throttled_ms += delay_ms
        return delay_ms


class ClientQuotas:
    """The sensors of one client; None: it has no such quota. Valid for one `generation`."""

    __slots__ = (
        "_now_ms", "_request_delay_max_ms", "fetch", "fetch_window_s", "generation", "mutations",
        "produce", "requests",
    )  # fmt: skip

    def __init__(
        self,
        generation: int,
        window: SampleWindow,
        now_ms: Callable[[], int],
        find: Callable[[str], Sensor | None],
    ) -> None:
        self.generation = generation
        self._now_ms = now_ms
        self._request_delay_max_ms = window.size_ms
        self.fetch_window_s = (window.samples - 1) * window.size_ms / 1000
        self.produce = find(PRODUCER_BYTES)
        self.fetch = find(CONSUMER_BYTES)
        self.requests = find(REQUESTS)
        self.mutations = find(MUTATIONS)

    def record_produce(self, size_bytes: int) -> int:
        """Record the bytes of a Produce; return how long its client is throttled, in ms."""
        return self._record_bytes(self.produce, size_bytes)

    def record_fetch(self, size_bytes: int) -> int:
        """Record the bytes of a response to Fetch; return how long its client is throttled. If it
        is, the bytes are taken back, because the response is empty."""
        delay_ms = self._record_bytes(self.fetch, size_bytes)
        if delay_ms and self.fetch is not None:
            self.fetch.record(-size_bytes, self._now_ms())
        return delay_ms

    def record_share_fetch(self, size_bytes: int) -> int:
        """Record the bytes of a response to ShareFetch as `record_fetch` does; the response is sent
        as it is, because its records are acquired."""
        return self._record_bytes(self.fetch, size_bytes)

    def _record_bytes(self, sensor: Sensor | None, size_bytes: int) -> int:
        if sensor is None:
            return self.throttle_request_time()
        now_ms = self._now_ms()
        sensor.record(size_bytes, now_ms)
        of_bytes_ms = sensor.delay_ms(now_ms)
        if of_bytes_ms > self._request_delay_ms(now_ms):
            return sensor.throttle(of_bytes_ms)
        return self.throttle_request_time()

    def take_back_produce(self, size_bytes: int) -> None:
        """Take back the bytes of a Produce that was not started."""
        if self.produce is not None:
            self.produce.record(-size_bytes, self._now_ms())

    def fetch_bytes_max(self, wanted: int) -> int:
        """Return how many bytes a Fetch may ask for: what the limit allows in a window."""
        sensor = self.fetch
        return wanted if sensor is None else min(wanted, int(sensor.limit * self.fetch_window_s))

    def record_loop_time(self, seconds: float) -> None:
        if self.requests is not None:
            self.requests.record(seconds * 100, self._now_ms())

    def throttle_request_time(self) -> int:
        """Return how long the client is throttled for the time its requests took, in ms."""
        delay_ms = self._request_delay_ms(self._now_ms())
        if delay_ms and self.requests is not None:
            self.requests.throttle(delay_ms)
        return delay_ms

    def _request_delay_ms(self, now_ms: int) -> int:
        sensor = self.requests
        return 0 if sensor is None else min(sensor.delay_ms(now_ms), self._request_delay_max_ms)

    def mutation_quota(self, *, strict: bool) -> MutationQuota | None:
        """Return the quota of one request that creates or deletes partitions; None: it has none.
        `strict`: its client knows the error THROTTLING_QUOTA_EXCEEDED."""
        if self.mutations is None:
            return None
        return MutationQuota(self.mutations, self._now_ms, strict=strict)


class MutationQuota:
    """Partitions that one request creates and deletes (Kafka: ControllerMutationQuota)."""

    def __init__(self, sensor: Sensor, now_ms: Callable[[], int], *, strict: bool) -> None:
        self._sensor = sensor
        self._now_ms = now_ms
        self._strict = strict
        self._until_ms = 0

    def count_partitions(self, partitions: int) -> None:
        """Count partitions of one topic. If the quota is strict and exceeded already, raise
        THROTTLING_QUOTA_EXCEEDED instead."""
        sensor, now_ms = self._sensor, self._now_ms()
        bucket = sensor.bucket
        assert bucket is not None, "mutations have one"
        sensor.used_ms = now_ms
        if not self._strict:
            bucket.take_tokens(partitions, sensor.limit, now_ms)
            sensor.rate.record(partitions, now_ms)
        delay_ms = bucket.delay_ms(sensor.limit, now_ms)
        if delay_ms:
            self._until_ms = now_ms + delay_ms
        if self._strict:
            if delay_ms:
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded."
                )
            bucket.take_tokens(partitions, sensor.limit, now_ms)
            sensor.rate.record(partitions, now_ms)

    def delay_ms(self) -> int:
        """Return how long the client is throttled, in ms."""
        delay_ms = max(0, self._until_ms - self._now_ms()) if self._until_ms else 0
        return self._sensor.throttle(delay_ms) if delay_ms else 0


class Sensors:
    """The sensors of this broker. `generation` changes when a client must find its sensors
    again."""

    def __init__(self, rules: Rules, window: SampleWindow, of_mutations: SampleWindow,
                 now_ms: Callable[[], int]) -> None:  # fmt: skip
        self._rules = rules
        self._window = window
        self._of_mutations = of_mutations
        self._now_ms = now_ms
        self._sensors: dict[Label, Sensor] = {}
        self._evictions = 0
        self._swept_ms = now_ms()

    @property
    def generation(self) -> int:
        """Increases with each change of a quota and each removal of sensors."""
        return self._rules.generation + self._evictions

    def of_client(self, user: str, client_id: str) -> ClientQuotas:
        """Return the quotas of a client."""

        def find(key: str) -> Sensor | None:
            limit = self._rules.limit_of(key, user, client_id)
            return None if limit is None else self._sensor(key, limit)

        self._sweep()
        found = ClientQuotas(self.generation, self._window, self._now_ms, find)
        found.generation = self.generation  # after evictions for its own sensors
        return found

    def record_connection(self, address: str) -> int:
        """Record a new connection of an address in its one form; return after how many ms it must
        be closed without having been served, 0 if it may be served."""
        value = self._rules.connection_limit_of(address)
        if value is None:
            return 0
        self._sweep()
        now_ms = self._now_ms()
        sensor = self._sensor(CONNECTIONS, Limit(value, "", address))
        sensor.record(1, now_ms)
        delay_ms = min(sensor.delay_ms(now_ms), self._window.size_ms)
        if delay_ms:
            sensor.record(-1, now_ms)
            sensor.throttle(delay_ms)
        return delay_ms

    def __len__(self) -> int:
        self._sweep()
        return len(self._sensors)

    def all(self) -> Iterator[tuple[Label, Sensor, float]]:
        """Yield the sensors that were used in the last hour, with the rate of each."""
        self._sweep()
        now_ms = self._now_ms()
        for label, sensor in self._sensors.items():
            yield label, sensor, sensor.rate.measure(now_ms)[0]

    def _sensor(self, key: str, limit: Limit) -> Sensor:
        label = Label(key, limit.user, limit.client_id)
        sensor = self._sensors.get(label)
        if sensor is None:
            if len(self._sensors) >= MAX_SENSORS:
                self._evict()
            window = self._of_mutations if key == MUTATIONS else self._window
            sensor = Sensor(limit.value, window, self._now_ms(), bucket=key == MUTATIONS)
            self._sensors[label] = sensor
        sensor.limit = limit.value
        return sensor

    def _evict(self) -> None:
        oldest = nsmallest(EVICTED_AT_ONCE, self._sensors.items(), key=lambda item: item[1].used_ms)
        self._remove([label for label, _ in oldest])

    def _sweep(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._remove(
                [
                    label
                    for label, sensor in self._sensors.items()
                    if now_ms - sensor.used_ms >= UNUSED_MS or not self._rules.has(label.key)
                ]
            )

    def _remove(self, labels: list[Label]) -> None:
        for label in labels:
            del self._sensors[label]
        self._evictions += bool(labels)
