"""Settings of one listener: `listener.name.NAME.SETTING`, with its name in lower case, as in Kafka.

A setting of log-ins can be that of one mechanism, too: `listener.name.NAME.MECHANISM.SETTING`. The
most specific one counts. Pure: which names exist, and the typed settings of each listener.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafkawire.codec.configs.parse import ConfigError
from kafkawire.codec.configs.row import Config
from kafkawire.codec.configs.security_rows import MECHANISMS, SASL_ROWS, TLS_BROKER_ROWS
from kafkawire.codec.configs.settings import BROKER_CONFIGS, BrokerConfig

PREFIX = "listener.name."
_REAUTHENTICATION = "connections.max.reauth.ms"
_TOKENS = frozenset(r.name for r in SASL_ROWS if r.name.startswith("sasl.oauthbearer."))

TLS_SETTINGS = frozenset(row.name for row in TLS_BROKER_ROWS if row.name.startswith("ssl."))
LOGIN_SETTINGS = _TOKENS | {
    _REAUTHENTICATION,
    "sasl.enabled.mechanisms",
    "sasl.plain.users.file",
    "sasl.server.max.receive.size",
}
MAX_CONNECTIONS, MAX_CREATION_RATE = "max.connections", "max.connection.creation.rate"
LISTENER_SETTINGS = TLS_SETTINGS | LOGIN_SETTINGS | {MAX_CONNECTIONS, MAX_CREATION_RATE}
"""Settings that one listener may have of its own."""
MECHANISM_SETTINGS = {f"{each.lower()}.{_REAUTHENTICATION}" for each in MECHANISMS} | {
    f"oauthbearer.{each}" for each in _TOKENS
}
"""Those of one mechanism of a listener."""
_OWN = LISTENER_SETTINGS | MECHANISM_SETTINGS


def _base(name: str) -> str | None:
    """Return the setting in a name with a prefix; None if no listener can have it."""
    return next((each for each in LISTENER_SETTINGS if name.endswith(f".{each}")), None)


def is_prefixed(name: str) -> bool:
    """Return whether a name has the prefix of settings of single listeners."""
    return name.startswith(PREFIX)


def is_of_listener(name: str) -> bool:
    """Return whether a name is that of a setting that one listener has of its own."""
    return is_prefixed(name) and _base(name) is not None


def listener_row(name: str) -> Config | None:
    """Return the row of a setting with the prefix of a listener, under its whole name."""
    base = _base(name) if is_prefixed(name) else None
    return None if base is None else replace(BROKER_CONFIGS[base], name=name, dynamic=False)


def default_name(name: str) -> str:
    """Return the name of the setting of the whole broker that counts if this one is not set."""
    return (_base(name) or name) if is_prefixed(name) else name


def find_listener_row(name: str) -> Config:
    """Return the row of a name with a prefix. ConfigError if it is no setting of a listener."""
    row = listener_row(name)
    if row is not None:
        return row
    if any(name.endswith(f".{each}") for each in BROKER_CONFIGS):
        raise ConfigError(name, None, "it is a setting of the whole broker, not of a listener")
    raise ConfigError(name, None, "unknown setting of a listener (docs/security.md lists them)")


def split_listeners(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the whole broker, and those of single listeners."""
    own = {name: text for name, text in texts.items() if is_prefixed(name)}
    return {name: text for name, text in texts.items() if name not in own}, own


def check_listeners(texts: Mapping[str, str], listeners: Iterable[str]) -> None:
    """Raise ConfigError for the first setting of a listener, by its whole name, whose listener does
    not exist."""
    names = [each.lower() for each in listeners]
    for name in texts:
        if not any(_setting_of(each, name) for each in names):
            raise ConfigError(
                name, None, f"no such listener; in lower case they are {', '.join(names)}"
            )


def _setting_of(listener: str, name: str) -> str:
    """Return a name without the prefix of this listener; empty if it has another one."""
    prefix = f"{PREFIX}{listener}."
    rest = name.removeprefix(prefix) if name.startswith(prefix) else ""
    return rest if rest in _OWN else ""


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """The settings of a broker as they are for one listener. `own`: texts of those that it has of
    its own, without their prefix; `by_mechanism`: the settings of mechanisms that have others."""

    config: BrokerConfig
    own: Mapping[str, str] = field(default_factory=dict)
    by_mechanism: Mapping[str, BrokerConfig] = field(default_factory=dict)

    @classmethod
    def for_listener(
        cls, name: str, broker: BrokerConfig, texts: Mapping[str, str]
    ) -> ListenerConfig:
        """Return those of a listener; `texts`: settings of all listeners, by their whole names. Own
        settings are fixed, the others follow `broker` only if there are none."""
        found = {_setting_of(name.lower(), key): text for key, text in texts.items()}
        own = {key: text for key, text in found.items() if key}
        if not own:
            return cls(broker)
        base = {key: text for key, text in own.items() if key in LISTENER_SETTINGS}
        by_mechanism = {}
        for mechanism in MECHANISMS:
            before = f"{mechanism.lower()}."
            more = {key.removeprefix(before): own[key] for key in own if key.startswith(before)}
            if more:
                by_mechanism[mechanism] = BrokerConfig({**broker.texts, **base, **more})
        return cls(BrokerConfig({**broker.texts, **base}), own, by_mechanism)

    def of_mechanism(self, mechanism: str) -> BrokerConfig:
        """Return the settings for log-ins with a mechanism."""
        return self.by_mechanism.get(mechanism, self.config)

    @property
    def tls_key(self) -> frozenset[tuple[str, str]]:
        """Equal for listeners with the same certificates and rules."""
        return frozenset(item for item in self.own.items() if item[0] in TLS_SETTINGS)

    @property
    def login_key(self) -> frozenset[tuple[str, str]]:
        """Equal for listeners with the same log-ins."""
        others = TLS_SETTINGS | {MAX_CONNECTIONS, MAX_CREATION_RATE}
        return frozenset(item for item in self.own.items() if item[0] not in others)
