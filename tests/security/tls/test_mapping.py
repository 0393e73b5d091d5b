"""ssl.principal.mapping.rules, with the examples of Kafka's documentation and tests."""

from __future__ import annotations

import pytest

from kafkawire.security.tls.mapping import PrincipalMapping, RuleError

SERVICE = r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT"
MAIL = r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,DEFAULT"


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("DEFAULT", "CN=Duke, OU=X", "CN=Duke, OU=X"),
        (SERVICE, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (SERVICE, "CN=Duke,OU=Others", "CN=Duke,OU=Others"),
        (MAIL, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
         "cn=duke,ou=JavaSoft,dc=Sun,dc=Com", "DUKE@JAVASOFT"),
        (r"RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "CN=ab", "ab"),
        (r"RULE:^CN=(.*)$/$1@$2/", "CN=a", "a@$2"),  # Kafka: an impossible group is literal
        (r"RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
        (r"RULE:^CN=(\w+)\/(\w+)$/$2\/$1/", "CN=a/b", "b/a"),
        (r"RULE:.*/x/", "CN=a", "xx"),  # Java's replaceAll also replaces the empty end
        (r"RULE:CN=(a)|CN=(b)/$2/", "CN=a", ""),
        (r" DEFAULT , ", "CN=a", "CN=a"),
        (r",DEFAULT", "CN=a", "CN=a"),
        (r"RULE:CN=[a-z]+(?<last>[0-9])/$1/", "CN=abc7", "7"),
        (r"RULE:^CN=(\p{L}+)$/$1/U", "CN=müller", "MÜLLER"),
    ],
)  # fmt: skip
def test_names(rules: str, subject: str, name: str) -> None:
    assert PrincipalMapping(rules).name_of(subject) == name


@pytest.mark.parametrize("rules", ["", "RULE:CN=b/x/", "RULE:N=a/x/", "RULE:CN=/x/"])
def test_a_subject_without_rule_has_no_name(rules: str) -> None:
    with pytest.raises(RuleError, match="no rule"):
        PrincipalMapping(rules).name_of("CN=a")


@pytest.mark.parametrize(
    "rules",
    ["default", "DEFAULT/L", "DEFAULT/", "RULE:a/$1", "RULE:a/b/L/U", "RULE:a/b/X", "RULE:a",
     "RULE:(/x/", "RULE:a/$1/", "RULE:(a)/$/", "RULE:(a)/$x/", "x" * 40_000],
)  # fmt: skip
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(RuleError):
        PrincipalMapping(rules)


def test_a_slow_pattern_is_given_up() -> None:
    mapping = PrincipalMapping(r"RULE:^CN=(a|aa)+b(c|d)$/$2/")
    assert mapping.name_of("CN=aaabc") == "c"
    with pytest.raises(RuleError, match="too long"):
        mapping.name_of("CN=" + "a" * 60 + "!")
