"""Patterns of transactional ids: RE2's syntax, whole matches, and time that no pattern can waste.

Which patterns are valid is what RE2J 1.8, the library of Kafka 4.3, says of them; matches are
compared with those of Python's `re`, where that has the same syntax.

Covers: kafkawire.transactions.machine.pattern_syntax.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.list_transactions import ListTransactionsRequest
from kafkawire.transactions.machine.pattern import IdPattern, PatternError
from kafkawire.transactions.machine.wire import filter_of

TEXTS = [
    "", "a", "b", "ab", "aab", "abc", "aaa", "A", "Ab", "a.b", "a-b", "a b", "a\nb", "\n", "1",
    "a1", "my-app-1", "my-app-12", "my-app-x", "_", "ä", "xyxy", "xx", "a]b", "{2}", "a{,2}", "\\",
]  # fmt: skip

SAME_AS_PYTHON = [
    "", "a", "ab", "a|b", "a|b|", "a*", "a+b", "a?b", "(ab)*", "(?:a|b)+", "a{2}", "a{1,2}b",
    "a{2,}", "a{0}", ".", ".*", "a.b", "(?s)a.b", "(?s:.)*", "[ab]+", "[^ab]+", "[a-c]*", "[]a]+b?",
    "[a\\]]b", "\\d", "my-app-\\d+", "my-app-[0-9]{2}", "\\w+", "\\W", "\\s", "a\\sb", "a\\.b",
    "(?i)ab", "(?i:A)b", "^a$", "\\Aab", "a\\b-\\bb", "\\ba", "a\\B", "(x*y)*", "(a*)*", "(a|aa)+b",
    "(xy){2}", "a\\x2db", "[\\x61-\\x63]+", "[a-]+b", "\\\\", "a*?b??", "(?P<n>a)b", "[\\d_]",
    "(a|b)(a|b)?", "(|a)+", "a\\nb", "\\{2\\}", "[.]", "(?m)a$\nb|x", "((a)b)c?",
    "(?i)[A-C]+",
]  # fmt: skip


def matches(pattern: str, text: str) -> bool:
    steps: Generator[None, None, bool] = IdPattern(pattern).matches(text)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


@pytest.mark.parametrize("pattern", SAME_AS_PYTHON)
def test_whole_texts_match_as_in_python(pattern: str) -> None:
    python = re.compile(pattern, re.ASCII if "(?i" not in pattern else 0)
    for text in TEXTS:
        assert matches(pattern, text) == bool(python.fullmatch(text)), text


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("\\Qa.b\\E", "a.b", True),
        ("\\Qa.b\\E", "axb", False),
        ("\\Qab\\E+", "abbb", True),
        ("\\Qab", "ab", True),
        ("\\Q\\Ea", "a", True),
        ("[[:alpha:]]+", "abC", True),
        ("[[:^alpha:]-]+", "1-2", True),
        ("\\pL+", "aä", True),
        ("\\p{Lu}\\P{Lu}", "Ab", True),
        ("\\p{^L}", "a", False),
        ("a{,2}", "a{,2}", True),  # no count, so it stands for itself
        ("\\z", "", True),
        ("(?<n>a)", "a", True),
        ("\\x{41}\\07", "A\x07", True),
        ("\\/", "/", True),
        ("[a-z&&[def]]", "&]", True),  # no intersection: a class, and a bracket
        ("(?i-s)ä", "Ä", True),
        ("(?i)(?-i)a", "A", False),
        ("((?i)a)a", "AA", False),
        ("a{1000}", "a" * 1000, True),
        ("(?U)a+", "aa", True),
    ],
)
def test_what_python_has_not(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) == found


@pytest.mark.parametrize(
    "pattern",
    ["[", "[a", "[a-", "a{2,1}", "a{1001}", "(?=a)", "\\1", "a**", "*a", "a++", "(a", "a)", "{2}",
     "\\C", "\\Z", "[a-\\d]", "[z-a]", "\\", "x{2}{3}", "\\u0041", "\\e", "a|*", "\\8", "(?<>a)",
     "(?P<n", "\\x4", "\\x{110000}", "\\x{", "\\p{Nonsense}", "\\p{L", "\\pQ", "[[:nonsense:]]",
     "(?", "(?i", "a*??b+*", "(" * 101 + ")" * 101],
)  # fmt: skip
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError) as error:
        IdPattern(pattern)
    assert str(error.value).startswith("The pattern ")


@pytest.mark.parametrize(
    "pattern", ["(x{1000}){1000}", "(((){1000}){1000}){1000}", "(x{500}){4}y{500}"]
)
def test_large_patterns_are_refused_at_once(pattern: str) -> None:
    with pytest.raises(PatternError):
        IdPattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)(.*)(.*)b", "(a?){300}a*b"]
)
def test_no_pattern_takes_time_for_ever(pattern: str) -> None:
    """Python's `re` would not end; and each stretch of work is short."""
    compiled = IdPattern(pattern)
    steps = list(compiled.matches("a" * 2000))
    assert len(steps) >= 2000 // compiled._chars_at_once - 1
    assert not matches(pattern, "a" * 2000)


def test_filters_of_the_wire() -> None:
    for none in (None, ""):
        assert filter_of(ListTransactionsRequest(transactional_id_pattern=none)).matches is None
    request = ListTransactionsRequest(["Ongoing"], [7], 9, "a.*")
    found = filter_of(request)
    assert (set(found.states), set(found.producer_ids)) == ({"Ongoing"}, {7})
    assert found.duration_ms == 9
    assert found.matches is not None
    with pytest.raises(KafkaError) as error:
        filter_of(ListTransactionsRequest(transactional_id_pattern="["))
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
