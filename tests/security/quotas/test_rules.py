"""Which limit counts for a client, and which quotas match a filter."""

from __future__ import annotations

import random

import pytest

from kafkawire.security.quotas.alterations import (
    Entity,
    QuotaChange,
    address_of,
    entity_of,
    entity_text,
)
from kafkawire.security.quotas.rules import Component, Limit, Rules

KEY = "producer_byte_rate"
PRECEDENCE: list[Entity] = [
    (("client-id", "c"), ("user", "u")),
    (("client-id", None), ("user", "u")),
    (("user", "u"),),
    (("client-id", "c"), ("user", None)),
    (("client-id", None), ("user", None)),
    (("user", None),),
    (("client-id", "c"),),
    (("client-id", None),),
]
SHARED = [
    ("u", "c"),
    ("u", "c"),
    ("u", ""),
    ("u", "c"),
    ("u", "c"),
    ("u", ""),
    ("", "c"),
    ("", "c"),
]


def test_the_most_specific_quota_wins() -> None:
    rules = Rules()
    order = list(enumerate(PRECEDENCE))
    random.Random(1).shuffle(order)
    rules.apply(QuotaChange(entity, KEY, 1.0 + at) for at, entity in order)
    for at, entity in enumerate(PRECEDENCE):
        assert rules.limit_of(KEY, "u", "c") == Limit(1.0 + at, *SHARED[at])
        rules.apply([QuotaChange(entity, KEY, None)])
    assert rules.limit_of(KEY, "u", "c") is None
    assert not rules.has(KEY)
    assert not rules.entities
    assert rules.count == 0


def test_each_kind_of_quota_has_its_own_precedence() -> None:
    rules = Rules()
    rules.apply(
        [
            QuotaChange((("user", "u"),), KEY, 1.0),
            QuotaChange((("client-id", "c"),), "consumer_byte_rate", 2.0),
        ]
    )
    assert rules.limit_of(KEY, "u", "c") == Limit(1.0, "u", "")
    assert rules.limit_of("consumer_byte_rate", "u", "c") == Limit(2.0, "", "c")
    assert rules.limit_of(KEY, "other", "c") is None


def test_an_address_has_one_form() -> None:
    rules = Rules()
    rules.apply(
        [
            QuotaChange((("ip", "0:0:0:0:0:0:0:1"),), "connection_creation_rate", 1.0),
            QuotaChange((("ip", "::ffff:10.0.0.1"),), "connection_creation_rate", 2.0),
        ]
    )
    assert rules.connection_limit_of("::1") == 1.0
    assert rules.connection_limit_of("10.0.0.1") == 2.0
    assert rules.connection_limit_of("10.0.0.2") is None
    rules.apply([QuotaChange((("ip", None),), "connection_creation_rate", 3.0)])
    assert rules.connection_limit_of("10.0.0.2") == 3.0


@pytest.mark.parametrize(
    ("text", "address"),
    [("::1", "::1"), ("fe80::1%eth0", "fe80::1"), ("local", None), ("", None), ("1.2.3", None)],
)
def test_addresses(text: str, address: str | None) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, {0, 1, 2, 3, 4, 5, 6, 7}),
        ([], True, set()),
        ([("user", True, "u")], False, {0, 1, 2}),
        ([("user", True, "u")], True, {2}),
        ([("user", True, None)], True, {5}),
        ([("user", False, None)], True, {2, 5}),
        ([("user", False, None), ("client-id", True, None)], False, {1, 4}),
        ([("ip", False, None)], False, set()),
    ],
    ids=str,
)
def test_filters(
    components: list[tuple[str, bool, str | None]], strict: bool, expected: set[int]
) -> None:
    rules = Rules()
    rules.apply(QuotaChange(entity, KEY, 1.0) for entity in PRECEDENCE)
    wanted = [Component(*each) for each in components]
    found = [each[0] for each in rules.matches(wanted, strict=strict) if each is not None]
    assert {PRECEDENCE.index(entity) for entity in found} == expected


def test_quotas_of_another_version_are_shown_and_have_no_effect() -> None:
    rules = Rules()
    rules.apply([QuotaChange((("user", "u"),), "new_quota", 1.0)])
    assert rules.entities == {(("user", "u"),): {"new_quota": 1.0}}
    rules.apply([QuotaChange((("user", "u"),), "new_quota", None)])
    assert not rules.entities


def test_entities_are_stored_as_text_of_any_name() -> None:
    for entity in (*PRECEDENCE, (("user", 'a"\0\n\ud7ff\U0001f600,='),)):
        text = entity_text(entity)
        assert entity_of(text) == entity
        assert text.isascii()
        assert "\0" not in text
