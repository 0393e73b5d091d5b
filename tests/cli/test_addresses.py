"""Parsing of addresses on the command line: listeners, advertised addresses, KEY=VALUE."""

from __future__ import annotations

import socket

import pytest

from kafkawire.broker.options import Listener, SecurityProtocol
from kafkawire.cli.shared.options import parse_address, parse_advertised, parse_listeners
from kafkawire.client.notation import OptionError, split_pair


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9092", (None, "127.0.0.1", 9092)),
        ("INSIDE://broker-1:29092", ("INSIDE", "broker-1", 29092)),
        ("[::1]:0", (None, "::1", 0)),
        ("A.b_c-1://[fe80::1%eth0]:1", ("A.b_c-1", "fe80::1%eth0", 1)),
        (":9092", (None, "", 9092)),
    ],
)
def test_valid_addresses_are_parsed(text: str, parsed: tuple[str | None, str, int]) -> None:
    assert parse_address("listen", text) == parsed


@pytest.mark.parametrize(
    "text", ["", "9092", "host", "host:", "host:port", "host:65536", "a:b:1", "::1:9092", "x y:1"]
)
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="listen") as caught:
        parse_address("listen", text)
    assert f"={text}:" in str(caught.value)
    assert "HOST:PORT" in str(caught.value)


def test_listeners_need_distinct_names_and_addresses() -> None:
    assert parse_listeners(["a:1", "OTHER://b:1"]) == [
        Listener("PLAINTEXT", "a", 1),
        Listener("OTHER", "b", 1),
    ]
    assert len(parse_listeners(["A://h:0", "B://h:0"])) == 2  # two free ports differ
    for texts in (["a:1", "b:2"], ["A://h:1", "B://h:1"], ["A://0.0.0.0:1", "B://h:1"]):
        with pytest.raises(OptionError, match="different"):
            parse_listeners(texts)


@pytest.mark.parametrize(
    ("text", "name", "protocol"),
    [
        ("h:1", "PLAINTEXT", "PLAINTEXT"),
        ("PLAINTEXT://h:1", "PLAINTEXT", "PLAINTEXT"),
        ("INSIDE://h:1", "INSIDE", "PLAINTEXT"),
        ("TLS://h:1", "TLS", "TLS"),
        ("tls://h:1", "TLS", "TLS"),  # a mistyped protocol must not become a plaintext listener
        ("SSL://h:1", "SSL", "TLS"),
        ("SASL_SSL://h:1", "SASL_SSL", "SASL_TLS"),
        ("SASL_PLAINTEXT://h:1", "SASL_PLAINTEXT", "SASL_PLAINTEXT"),
        ("OUTSIDE=SASL_TLS://h:1", "OUTSIDE", "SASL_TLS"),
        ("a.b_c-1=ssl://h:1", "a.b_c-1", "TLS"),
    ],
)
def test_listeners_have_a_name_and_a_protocol(text: str, name: str, protocol: str) -> None:
    (found,) = parse_listeners([text])
    assert found == Listener(name, "h", 1, SecurityProtocol(protocol))
    assert (found.tls, found.sasl) == ("TLS" in protocol, "SASL" in protocol)


@pytest.mark.parametrize("text", ["A=h:1", "A=B://h:1", "=TLS://h:1", "A B=TLS://h:1", "TLS://h"])
def test_listeners_without_name_or_protocol_are_refused(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_listeners([text])
    assert str(caught.value).startswith(f"listen={text}: it must be [[NAME=]PROTOCOL://]HOST:PORT")
    assert "SASL_SSL" in str(caught.value)


def test_advertised_address_of_listener() -> None:
    inside, host = Listener("IN", "0.0.0.0", 1), Listener("HOST", "127.0.0.1", 0)
    given = parse_advertised(["IN://broker:19"], [inside, host])
    assert given == {"IN": ("broker", 19), "HOST": ("127.0.0.1", 0)}
    assert parse_advertised([], [inside]) == {"IN": (socket.gethostname(), 1)}
    assert parse_advertised(["x:5"], [inside]) == {"IN": ("x", 5)}


@pytest.mark.parametrize("text", ["NONE://x:1", "x:1", "IN://0.0.0.0:1", "IN://:1"])
def test_invalid_advertised_addresses_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="advertise"):
        parse_advertised([text], [Listener("IN", "a", 1), Listener("HOST", "b", 2)])


def test_each_listener_advertises_one_address() -> None:
    with pytest.raises(OptionError, match="one address"):
        parse_advertised(["A://x:1", "A://y:1"], [Listener("A", "a", 1)])


def test_key_value_pairs_are_parsed() -> None:
    assert split_pair("--set", "a.b = c=d") == ("a.b", "c=d")
    for text in ("a", "=b", " =b"):
        with pytest.raises(OptionError, match="NAME=VALUE"):
            split_pair("--set", text)
