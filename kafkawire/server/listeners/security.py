"""Certificates and log-ins of the listeners of a broker: one for each distinct configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkawire.codec.configs.listeners import ListenerConfig

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.options import Listener
    from kafkawire.security.sasl.service import LoginService
    from kafkawire.server.listeners.logins import ListenerLogins, Logins
    from kafkawire.server.tls.listeners import Tls, TlsShared

_Key = frozenset[tuple[str, str]]


class ListenerError(ValueError):
    """Settings of a listener, or their files, that cannot be used: one sentence."""


class ListenerSecurity:
    """Opens what listeners need and closes it. `texts`: settings of single listeners."""

    def __init__(self, broker: Broker, texts: Mapping[str, str]) -> None:
        self._broker = broker
        self._texts = texts
        self._tls: dict[_Key, Tls] = {}
        self._tls_shared: TlsShared | None = None
        self._services: dict[_Key, LoginService] = {}
        self.logins: Logins | None = None

    def config_of(self, listener: str) -> ListenerConfig:
        """Return the settings of a listener."""
        return ListenerConfig.for_listener(listener, self._broker.config, self._texts)

    async def tls(self, listener: Listener) -> Tls:
        """Return the certificates of a listener. Raises ListenerError if they cannot be loaded."""
        own = self.config_of(listener.name)
        return await self._open_tls(own, listener.name if own.own else "")

    def asks_clients(self, listener: Listener) -> bool:
        """Return whether clients are asked for certificates, if `ssl.client.auth` says so. Those
        that log in: only if it says so for the listener, as in Kafka."""
        return not listener.sasl or "ssl.client.auth" in self.config_of(listener.name).own

    async def tls_of_broker(self) -> Tls:
        """Return the certificates of the broker. Raises ListenerError if they cannot be loaded."""
        return await self._open_tls(ListenerConfig(self._broker.config), "")

    async def _open_tls(self, own: ListenerConfig, name: str) -> Tls:
        # most brokers do without
        from kafkawire.server.tls.listeners import RuleError, Tls, TlsError, TlsShared

        opened = self._tls.get(own.tls_key)
        if opened is not None:
            return opened
        if self._tls_shared is None:
            self._tls_shared = TlsShared(self._broker.env)
        try:
            opened = await Tls.open(self._broker.env, own.config, self._tls_shared)
        except (TlsError, RuleError) as wrong:
            raise ListenerError(_of(name, wrong)) from None
        self._tls[own.tls_key] = opened
        return opened

    async def logins_of(self, listener: Listener) -> ListenerLogins:
        """Return the log-ins of a listener. Raises ListenerError if its settings allow none."""
        from kafkawire.security.sasl.service import LoginService, LoginSettingsError
        from kafkawire.server.listeners.logins import ListenerLogins, Logins

        broker = self._broker
        if self.logins is None:
            self.logins = Logins(broker)
        own = self.config_of(listener.name)
        service = self._services.get(own.login_key)
        if service is None:
            try:
                users = await broker.load_users()
                service = await LoginService.open(broker.env, own, users, broker.security.tokens)
            except LoginSettingsError as wrong:
                raise ListenerError(_of(listener.name if own.own else "", wrong)) from None
            self._services[own.login_key] = service
        return ListenerLogins(self.logins, service)

    def close(self) -> None:
        """Stop watching the files of certificates."""
        for each in self._tls.values():
            each.close()


def _of(listener: str, wrong: Exception) -> str:
    """Name the listener in a sentence about a setting, if it has settings of its own."""
    return f"listener {listener}: {wrong}" if listener else str(wrong)
