"""The quotas of one connection's client: which ones it has, and the pause after it exceeded one.

While it is throttled no request of it starts and its socket is not read (KIP-219). Requests that
start when a connection is resumed are measured here, all others by `server.connection` and
`server.quotas.metering`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kafkawire.codec.types import Buffer
from kafkawire.security.principals import ANONYMOUS
from kafkawire.server.ports import ReceivingHost, Wire
from kafkawire.server.quotas.metering import meter_work
from kafkawire.server.receiving import THROTTLED, Receiver

if TYPE_CHECKING:
    from kafkawire.log.io.ports import Timer
    from kafkawire.security.quotas.sensors import ClientQuotas
    from kafkawire.security.quotas.service import Quotas


class ThrottledHost(ReceivingHost, Protocol):
    """The shared state. `now`: the monotonic clock in seconds."""

    quotas: Quotas
    now: Callable[[], float]

    def call_later(self, delay_s: float, fn: Callable[[], None], /) -> Timer: ...


HostT = TypeVar("HostT", bound=ThrottledHost)


class Throttled(Receiver[HostT]):
    """A connection whose client may have quotas. `throttle_ms`: of the request that is being
    started."""

    __slots__ = (
        "_raw_client_id", "client_id", "muted", "muted_until", "principal", "quotas", "throttle_ms",
    )  # fmt: skip

    def __init__(self, host: HostT, wire: Wire) -> None:
        super().__init__(host, wire)
        self.principal = ANONYMOUS
        self.client_id: str | None = None
        self._raw_client_id = b""
        self.quotas: ClientQuotas | None = None  # see `client_quotas`
        self.throttle_ms = 0
        self.muted: Timer | None = None  # the end of THROTTLED
        self.muted_until = 0.0

    def identify(self, raw: Buffer) -> None:
        """Set the client id of a request: that of the first one, and while some client has a quota
        of each, as in Kafka."""
        if raw != self._raw_client_id:
            self._raw_client_id = bytes(raw)
            self.client_id = str(raw, "utf-8", "replace")
            self.quotas = None  # those of another client id, or of none

    def client_quotas(self) -> ClientQuotas:
        """Return the quotas of this client. Called only while some client has one."""
        found = self.host.quotas.of_client(self.quotas, self.principal.name, self.client_id or "")
        self.quotas = found
        return found

    def meter_work(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Return `work`, which serves a request; its time counts for a quota."""
        if not self.host.quotas.of_requests:
            return work
        return meter_work(work, self.client_quotas(), self.host.now)

    def start_throttled(self, delay_ms: int) -> None:
        """Set the delay for the exchange of the request that is being started; 0: none is."""
        self.throttle_ms = delay_ms

    def throttle(self, delay_ms: int) -> None:
        """Start no request and read nothing for so long; at least until a delay before is over."""
        until = self.host.now() + delay_ms / 1000
        if self.closed or (self.muted is not None and until <= self.muted_until):
            return
        if self.muted is not None:
            self.muted.cancel()
        self.waits |= THROTTLED
        self._read(False)
        self.muted_until = until
        self.muted = self.host.call_later(delay_ms / 1000, self._unmute)

    def _unmute(self) -> None:
        self.muted = None
        self.waits &= ~THROTTLED
        if not self.wants_memory:
            self._read(True)
        self._go_on()

    def _go_on(self) -> None:
        """Start kept requests; as with received ones, their time counts for a quota."""
        if self.receiving or not self.host.quotas.of_requests:
            super()._go_on()
            return
        begun = self.host.now()
        super()._go_on()
        if not self.closed:
            self.client_quotas().record_loop_time(self.host.now() - begun)
