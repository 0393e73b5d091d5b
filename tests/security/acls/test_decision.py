"""Decisions, compared with a plain reading of Kafka's rules over generated ones.

Covers: kafkawire.security.acls.index, kafkawire.security.acls.model.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.security.acls.index import (
    DEFAULT_ALLOW,
    DEFAULT_DENY,
    NAME_REFUSED,
    SUPER_USER,
    AclDecision,
    AclIndex,
)
from kafkawire.security.acls.model import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
    network_of,
)

TOPIC, GROUP = ResourceKind.TOPIC, ResourceKind.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE

names = st.sampled_from(["a", "ab", "abc", "b", "*", "hardcode", "kafka-cluster", "é"])
principals = st.sampled_from(["User:a", "User:b", "User:*", "Group:a"])
NETWORKS = ["1.2.0.0/16", "1.2.3.9/16", "0.0.0.0/0", "9.9.9.9/32", "::/0", "0:0:0:0:0:0:0:1/64"]
hosts = st.sampled_from(["*", "1.2.3.4", "::1", *NETWORKS])
operations = st.sampled_from([each for each in Operation if each >= Operation.ALL])
acls = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    names,
    st.sampled_from([LITERAL, PREFIXED]),
    principals,
    hosts,
    operations,
    st.sampled_from([ALLOW, DENY]),
)


def implied(operation: int, by: int) -> bool:
    """The table of the documentation of Kafka's AclOperation."""
    if operation == DESCRIBE:
        return by in (READ, WRITE, Operation.DELETE, Operation.ALTER)
    return operation == Operation.DESCRIBE_CONFIGS and by == Operation.ALTER_CONFIGS


def for_any(index: AclIndex, *asked: Any) -> AclDecision:
    """`AclIndex.decide_for_any` in one step."""
    steps = index.decide_for_any(*asked)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("AclDecision", end.value)


def applies(rule_host: str, host: str) -> bool:
    network = network_of(rule_host)
    return rule_host in ("*", host) or (network is not None and ip_address(host) in network)


def matching(rules: Iterable[Acl], kind: int, name: str) -> list[Acl]:
    return [
        acl
        for acl in rules
        if acl.resource_type == kind
        and (
            name.startswith(acl.resource_name)
            if acl.pattern_type == PREFIXED
            else acl.resource_name in (name, "*")
        )
    ]


def plain(
    rules: Iterable[Acl], who: str, host: str, operation: int, kind: int, name: str, default: bool
) -> bool:
    """One rule after another, without an index."""
    about = matching(rules, kind, name)
    mine = [a for a in about if a.principal in (who, "User:*") and applies(a.host, host)]
    if any(a.permission == DENY and a.operation in (operation, Operation.ALL) for a in mine):
        return False
    if any(
        a.permission == ALLOW
        and (a.operation in (operation, Operation.ALL) or implied(operation, a.operation))
        for a in mine
    ):
        return True
    return default and not about


def plain_any(
    rules: Iterable[Acl], who: str, host: str, operation: int, kind: int, default: bool
) -> bool:
    """Authorizer.authorizeByResourceType, as it is written there."""
    rules = list(rules)
    if plain(rules, who, host, operation, kind, "hardcode", default):
        return True
    allowed: list[Acl] = []
    denied: list[Acl] = []
    for acl in rules:
        if (
            acl.resource_type != kind
            or acl.principal not in (who, "User:*")
            or not applies(acl.host, host)
            or acl.operation not in (operation, Operation.ALL)
        ):
            continue
        (allowed if acl.permission == ALLOW else denied).append(acl)
    if any(a.pattern_type == LITERAL and a.resource_name == "*" for a in denied):
        return False
    if any(a.pattern_type == LITERAL and a.resource_name == "*" for a in allowed):
        return True
    prefixes = [a.resource_name for a in denied if a.pattern_type == PREFIXED]
    literals = [a.resource_name for a in denied if a.pattern_type == LITERAL]
    for acl in allowed:
        if acl.pattern_type == LITERAL and acl.resource_name in literals:
            continue
        if not any(acl.resource_name.startswith(prefix) for prefix in prefixes):
            return True
    return False


@given(
    st.lists(acls, max_size=8),
    st.lists(acls, max_size=3),
    st.sampled_from(["User:a", "User:b", "Group:a"]),
    st.sampled_from(["1.2.3.4", "::1", "9.9.9.9"]),
    st.sampled_from([each for each in Operation if each > Operation.ALL]),
    names,
    st.booleans(),
)
@settings(max_examples=600)
def test_decisions_are_those_of_a_plain_reading(
    rules: list[Acl],
    removed: list[Acl],
    who: str,
    host: str,
    operation: int,
    name: str,
    default: bool,
) -> None:
    index = AclIndex([*rules, *removed], default_allow=default)
    for acl in removed:
        index.remove(acl)
        index.remove(acl)
    left = [acl for acl in rules if acl not in removed]
    assert set(index) == set(left)
    assert len(index) == len(set(left))
    for kind in (TOPIC, GROUP):
        made = index.decide(who, host, operation, kind, name)
        assert made.allowed is plain(left, who, host, operation, kind, name, default), made.rule
        any_made = for_any(index, who, host, operation, kind)
        assert any_made.allowed is plain_any(left, who, host, operation, kind, default)


def rule(
    name: str,
    operation: int = READ,
    who: str = "User:a",
    permission: int = ALLOW,
    pattern: int = LITERAL,
    host: str = "*",
) -> Acl:
    return Acl(TOPIC, name, pattern, who, host, operation, permission)


def test_the_deciding_rule_is_named() -> None:
    allow, deny = rule("t"), rule("t", Operation.ALL, "User:*", DENY, host="1.1.1.1")
    index = AclIndex([allow, deny], frozenset(("User:root",)))
    assert index.decide("User:a", "2.2.2.2", READ, TOPIC, "t") == (True, allow)
    assert index.decide("User:a", "1.1.1.1", READ, TOPIC, "t") == (False, deny)
    assert index.decide("User:b", "2.2.2.2", READ, TOPIC, "t") == (False, DEFAULT_DENY)
    assert index.decide("User:root", "1.1.1.1", READ, TOPIC, "t") == (True, SUPER_USER)
    assert index.decide("User:*", "2.2.2.2", READ, TOPIC, "t") == (False, NAME_REFUSED)
    assert for_any(index, "User:*", "2.2.2.2", READ, TOPIC).rule == NAME_REFUSED


def test_deny_implies_nothing_and_allow_implies_describe() -> None:
    index = AclIndex([rule("t"), rule("t", READ, permission=DENY), rule("u"), rule("u", DESCRIBE,
                     permission=DENY)])  # fmt: skip
    assert not index.decide("User:a", "h", READ, TOPIC, "t").allowed
    assert index.decide("User:a", "h", DESCRIBE, TOPIC, "t").allowed
    assert index.decide("User:a", "h", READ, TOPIC, "u").allowed
    assert not index.decide("User:a", "h", DESCRIBE, TOPIC, "u").allowed


def test_one_unrelated_rule_ends_the_default() -> None:
    index = AclIndex(default_allow=True)
    assert index.decide("User:a", "h", READ, TOPIC, "t") == (True, DEFAULT_ALLOW)
    index.add(rule("t", Operation.ALTER, "User:z", DENY, host="9.9.9.9"))
    assert index.decide("User:a", "h", READ, TOPIC, "t") == (False, DEFAULT_DENY)
    assert index.decide("User:a", "h", READ, TOPIC, "t2") == (True, DEFAULT_ALLOW)


def test_networks_are_read_as_kafka_does() -> None:
    for text in (
        "10.0.0.0/33",
        "10.0.0.0/255.0.0.0",
        "10.0.0/8",
        "::/129",
        "h/8",
        "/8",
        "10.0.0.0/",
    ):
        assert network_of(text) is None, text
    assert str(network_of("10.1.2.3/8")) == "10.0.0.0/8"


def test_client_without_an_address_has_no_network() -> None:
    index = AclIndex([rule("t", host="0.0.0.0/0"), rule("u", host="/tmp/socket")])
    assert not index.decide("User:a", "/tmp/socket", READ, TOPIC, "t").allowed
    assert index.decide("User:a", "/tmp/socket", READ, TOPIC, "u").allowed


def test_networks_of_removed_rules_are_forgotten() -> None:
    rules = [rule(name, host=host) for name in "ab" for host in NETWORKS]
    index = AclIndex(rules)
    for each in rules:
        index.remove(each)
    assert not index._networks._by_length


def test_filter_by_match_finds_all_that_affect_a_name() -> None:
    rules = [rule("foo"), rule("fo", pattern=PREFIXED), rule("*"), rule("bar"), rule("fo")]
    found = AclFilter(TOPIC, "foo", PatternType.MATCH)
    assert [acl for acl in rules if found.matches(acl)] == rules[:3]
    assert [a for a in rules if AclFilter(TOPIC, "fo").matches(a)] == [rules[1], rules[4]]
    assert [a for a in rules if AclFilter(TOPIC, "fo", LITERAL).matches(a)] == rules[4:]
    assert not any(AclFilter(GROUP).matches(acl) for acl in rules)
    assert not any(AclFilter(operation=Operation.ALL).matches(acl) for acl in rules)
    assert not any(AclFilter(principal="User:*").matches(acl) for acl in rules)
    assert all(AclFilter(host="*").matches(acl) for acl in rules)


def test_cost_of_a_decision_does_not_grow_with_the_rules() -> None:
    """Counted in rules that are read, not in time."""
    read = 0

    class Counted(dict[Acl, None]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal read
            read += len(self)
            return super().__iter__()

    index = AclIndex(rule(f"topic-{n}", who=f"User:u{n}") for n in range(10_000))
    for named in index._types.values():
        for of_name in named.literal.values():
            for who in of_name:
                of_name[who] = Counted(of_name[who])
    assert index.decide("User:u7", "h", READ, TOPIC, "topic-7").allowed
    assert not index.decide("User:u7", "h", READ, TOPIC, "topic-8").allowed
    assert read == 1


def test_many_rules_under_denied_prefixes_are_not_enough() -> None:
    """Denied in each way; then one that is not."""
    index = AclIndex()
    count = 150
    for number in range(count):
        for name in (f"literal-{number}", f"own-{number}-x", f"all-{number}"):
            index.add(Acl(TOPIC, name, LITERAL, "User:a", "*", WRITE, ALLOW))
        index.add(Acl(TOPIC, f"literal-{number}", LITERAL, "User:a", "*", WRITE, DENY))
        index.add(Acl(TOPIC, f"own-{number}-", PREFIXED, "User:*", "*", Operation.ALL, DENY))
    index.add(Acl(TOPIC, "all-", PREFIXED, "User:a", "1.2.3.4", WRITE, DENY))
    asked = ("User:a", "1.2.3.4", WRITE, TOPIC)
    assert not for_any(index, *asked).allowed
    allowing = Acl(TOPIC, "own-1-", LITERAL, "User:a", "*", WRITE, ALLOW)
    index.add(allowing)
    assert not for_any(index, *asked).allowed
    allowing = allowing._replace(resource_name="own-1")
    index.add(allowing)
    assert for_any(index, *asked) == (True, allowing)
    index.remove(allowing)
    assert not for_any(index, *asked).allowed
    assert for_any(index, "User:a", "1.2.3.5", WRITE, TOPIC).allowed
