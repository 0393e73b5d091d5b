"""Checks of requested changes: codes and texts of Kafka's controller."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.security.quotas import alterations
from kafkawire.security.quotas.alterations import Alteration, Entity, Planner, QuotaChange, Values

USER: Entity = (("user", "a"),)
BOTH: Entity = (("client-id", None), ("user", "a"))
ADDRESS: Entity = (("ip", "10.0.0.1"),)


def planned(
    entity: Entity, *ops: tuple[str, float | None], stored: dict[Entity, Values] | None = None
) -> tuple[list[QuotaChange], str | None]:
    """The changes of one entry, and the text of its error."""
    known = stored or {}
    planner = Planner(known, sum(map(len, known.values())))
    planner.add(Alteration(entity, ops))
    error = planner.outcomes[entity]
    if error is not None:
        assert error.code is ErrorCode.INVALID_REQUEST
    return planner.changes, None if error is None else error.message


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (USER, "producer_byte_rate", 1.0),
        (USER, "request_percentage", 0.5),
        (BOTH, "consumer_byte_rate", 2.0**63),
        (BOTH, "controller_mutation_rate", 0.1),
        (ADDRESS, "connection_creation_rate", 2.0**31 - 1),
        ((("ip", "::1"),), "connection_creation_rate", 5.0),
        ((("ip", None),), "connection_creation_rate", 5.0),
    ],
)
def test_quotas_that_are_set(entity: Entity, key: str, value: float) -> None:
    assert planned(entity, (key, value)) == ([QuotaChange(entity, key, value)], None)


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        ((), "producer_byte_rate", 1.0, "Invalid empty client quota entity"),
        ((("tenant", "a"),), "producer_byte_rate", 1.0,
         "Unhandled client quota entity type: tenant"),
        ((("user", ""),), "producer_byte_rate", 1.0, "Empty user not supported"),
        ((("ip", "1.2.3.4"), ("user", "a")), "producer_byte_rate", 1.0,
         "Invalid quota entity combination, IP entity shouldnot be combined with User or "
         "ClientId"),
        ((("ip", "1.2.3.400"),), "connection_creation_rate", 1.0,
         "1.2.3.400 is not a valid IP or resolvable host."),
        ((("user", "a" * 2_000),), "producer_byte_rate", 1.0,
         "The names of a quota have over 2000 bytes"),
        (USER, "x", 1.0, "Invalid configuration key x"),
        (USER, "connection_creation_rate", 1.0,
         "Invalid configuration key connection_creation_rate"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (USER, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (USER, "request_percentage", float("nan"),
         "Quota request_percentage must be greater than 0"),
        (USER, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        (USER, "producer_byte_rate", float("inf"),
         "Proposed value for producer_byte_rate is too large for a LONG."),
        (ADDRESS, "connection_creation_rate", 2.0**31,
         "Proposed value for connection_creation_rate is too large for an INT."),
    ],
)  # fmt: skip
def test_quotas_that_are_refused(entity: Entity, key: str, value: float, text: str) -> None:
    assert planned(entity, (key, value)) == ([], text)


def test_one_invalid_quota_refuses_the_whole_entry() -> None:
    changes, text = planned(USER, ("producer_byte_rate", 1.0), ("x", 1.0))
    assert (changes, text) == ([], "Invalid configuration key x")


def test_unchanged_and_absent_quotas_are_no_changes() -> None:
    stored = {USER: {"producer_byte_rate": 1.0}}
    same = planned(USER, ("producer_byte_rate", 1.0), ("x", None), stored=stored)
    assert same == ([], None)
    gone = planned(USER, ("producer_byte_rate", None), stored=stored)
    assert gone == ([QuotaChange(USER, "producer_byte_rate", None)], None)


def test_an_entity_named_twice_is_changed_once_and_refused() -> None:
    planner = Planner({}, 0)
    planner.add(Alteration(USER, [("producer_byte_rate", 1.0)]))
    planner.add(Alteration(USER, [("producer_byte_rate", 2.0)]))
    assert planner.changes == [QuotaChange(USER, "producer_byte_rate", 1.0)]
    error = planner.outcomes[USER]
    assert error is not None
    assert (error.code, error.message) == (
        ErrorCode.INVALID_REQUEST,
        "Ignoring duplicate entity ClientQuotaEntity(entries={user=a})",
    )


def test_a_key_named_twice_is_refused() -> None:
    changes, text = planned(USER, ("producer_byte_rate", 1.0), ("producer_byte_rate", None))
    assert not changes
    assert text is not None


def test_the_number_of_quotas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alterations, "MAX_QUOTAS", 2)
    planner = Planner({USER: {"producer_byte_rate": 1.0}}, 1)
    planner.add(Alteration(BOTH, [("producer_byte_rate", 1.0), ("consumer_byte_rate", 1.0)]))
    planner.add(Alteration(USER, [("producer_byte_rate", 3.0), ("consumer_byte_rate", 3.0)]))
    planner.add(Alteration(ADDRESS, [("connection_creation_rate", 3.0)]))
    codes = [error and error.code for error in planner.outcomes.values()]
    assert codes == [ErrorCode.POLICY_VIOLATION, None, ErrorCode.POLICY_VIOLATION]
