"""Metrics wanted from a client: matching, combining, and the id of the result."""

from __future__ import annotations

import pytest

from kafkawire.telemetry.subscriptions import (
    MAX_MATCHED_CHARS,
    ClientDetails,
    WantedMetrics,
    combine,
    parse_subscription,
)

CLIENT = ClientDetails("Q" * 22, "app-1", "apache-kafka-java", "4.3.1", "10.0.0.7", "40001")


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("", True),
        ("client_id=app-.*", True),
        ("client_id=app", False),  # the whole value
        ("client_id=app-.*, client_source_port=4000[0-9]", True),
        ("client_id=app-.*, client_source_port=5000[0-9]", False),
        ("client_id=b.*, client_id=app-1", True),  # the last one counts
        ("client_software_name = apache-kafka-java,client_software_version=4.*", True),
        (f"client_instance_id={'Q' * 22}, client_source_address=10\\.0\\..*", True),
    ],
)
def test_match(match: str, matches: bool) -> None:
    assert parse_subscription({"match": match}).matches(CLIENT) is matches


def test_attribute_that_is_missing_or_long_matches_nothing() -> None:
    subscription = parse_subscription({"match": "client_id=.*"})
    assert not subscription.matches(CLIENT._replace(client_id=None))
    assert not subscription.matches(CLIENT._replace(client_id="x" * (MAX_MATCHED_CHARS + 1)))
    assert subscription.matches(CLIENT._replace(client_id="x" * MAX_MATCHED_CHARS))


def test_subscriptions_of_a_client_are_combined() -> None:
    def wanted(*settings: dict[str, str]) -> WantedMetrics:
        return combine(map(parse_subscription, settings))

    assert wanted() == wanted({}) == WantedMetrics((), 300_000)
    first = {"metrics": "b,a", "interval.ms": "2000"}
    assert wanted(first, {"metrics": "a,c"}) == WantedMetrics(("a", "b", "c"), 2000)
    assert wanted(first, {"metrics": "c,*"}) == WantedMetrics(("*",), 2000)
    assert wanted({"interval.ms": "3600000"}).interval_ms == 300_000  # as in Kafka


def test_subscription_id_changes_with_what_is_wanted_and_with_the_client() -> None:
    one = WantedMetrics(("a",), 1000)
    ids = [
        one.id_for(bytes(16)),
        one.id_for(b"\x01" + bytes(15)),
        one._replace(interval_ms=1001).id_for(bytes(16)),
        one._replace(metrics=("b",)).id_for(bytes(16)),
        one._replace(metrics=("a", "b")).id_for(bytes(16)),
    ]
    assert len(set(ids)) == len(ids)
    assert all(-(2**31) <= number < 2**31 for number in ids)
    # Java: (int) Crc32C.compute("[a]1000") ^ new Uuid(1, 0x100000002L).hashCode()
    other = one.id_for((1).to_bytes(8, "big") + (0x100000002).to_bytes(8, "big"))
    assert other ^ ids[0] == (1 ^ 2) ^ 1
