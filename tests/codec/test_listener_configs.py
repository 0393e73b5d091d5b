"""Settings of single listeners: names, values, and which are equal."""

from __future__ import annotations

import pytest

from kafkawire.codec.configs.listeners import (
    LISTENER_SETTINGS,
    ListenerConfig,
    check_listeners,
    find_listener_row,
    listener_row,
)
from kafkawire.codec.configs.settings import BROKER_CONFIGS, BrokerConfig, ConfigError, validate

REAUTHENTICATION = "connections.max.reauth.ms"
ISSUER = "sasl.oauthbearer.expected.issuer"


def test_every_setting_of_a_listener_is_one_of_the_broker_that_needs_a_restart() -> None:
    assert BROKER_CONFIGS.keys() >= LISTENER_SETTINGS
    rows = [listener_row(f"listener.name.out.{name}") for name in LISTENER_SETTINGS]
    assert not [row for row in rows if row is None or row.dynamic]


def test_most_specific_setting_counts() -> None:
    texts = {
        f"listener.name.out.{REAUTHENTICATION}": "2",
        f"listener.name.out.plain.{REAUTHENTICATION}": "3",
        f"listener.name.out.oauthbearer.{ISSUER}": "me",
        "listener.name.outer.ssl.client.auth": "required",
    }
    broker = BrokerConfig({REAUTHENTICATION: "1", ISSUER: "other"})
    out = ListenerConfig.for_listener("OUT", broker, texts)
    assert out.config.connections_max_reauth_ms == 2
    assert out.of_mechanism("PLAIN").connections_max_reauth_ms == 3
    bearer = out.of_mechanism("OAUTHBEARER")
    assert (bearer.connections_max_reauth_ms, bearer.sasl_oauthbearer_expected_issuer) == (2, "me")
    assert out.config.sasl_oauthbearer_expected_issuer == "other"
    assert out.config.ssl_client_auth == "none"
    other = ListenerConfig.for_listener("IN", broker, texts)
    assert other.config is broker
    assert other.of_mechanism("PLAIN") is broker


def test_equal_listeners_share_certificates_and_log_ins() -> None:
    texts = {
        "listener.name.a.ssl.client.auth": "required", "listener.name.a.max.connections": "3",
        "listener.name.b.ssl.client.auth": "required",
        "listener.name.b.sasl.enabled.mechanisms": "PLAIN",
    }  # fmt: skip
    a, b, c = (ListenerConfig.for_listener(name, BrokerConfig(), texts) for name in "abc")
    assert a.tls_key == b.tls_key != c.tls_key
    assert a.login_key == c.login_key != b.login_key


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("listener.name.out.num.partitions", "of the whole broker, not of a listener"),
        ("listener.name.out.nonsense", "unknown setting of a listener"),
        ("listener.name.out", "unknown setting"),
        ("listener.name.max.connections.per.ip", "of the whole broker"),
    ],
)
def test_other_settings_have_no_prefix(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        find_listener_row(name)
    assert str(refused.value).startswith(f"{name}: ")


@pytest.mark.parametrize(
    "name",
    ["listener.name.other.max.connections", "listener.name.OUT.max.connections",
     "listener.name.out.plain.max.connections", "listener.name.max.connections",
     f"listener.name.out.plain.{ISSUER}"],
)  # fmt: skip
def test_listener_must_exist(name: str) -> None:
    with pytest.raises(ConfigError, match="no such listener; in lower case they are in, out"):
        check_listeners({name: "5"}, ["IN", "OUT"])
    check_listeners({"listener.name.out.max.connections": "5"}, ["IN", "OUT"])


def test_values_are_those_of_the_setting() -> None:
    row = find_listener_row("listener.name.my.own-name.ssl.client.auth")
    assert validate(row, "required") == "required"
    with pytest.raises(ConfigError, match=r"listener\.name\.my\.own-name\.ssl\.client\.auth=maybe"):
        validate(row, "maybe")
