"""Patterns of transactional ids: RE2's syntax, whole matches, and time that no pattern can waste.

Which patterns are valid is what RE2J 1.8, the library of Kafka 4.3, says of them.

Covers: kafkawire.handlers.list_transactions.
"""

from __future__ import annotations

import re

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.patterns import compile_pattern
from kafkawire.handlers.list_transactions import filter_of
from kafkawire.messages.list_transactions import ListTransactionsRequest


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("my-app-[0-9]{2}", "my-app-12", True),
        ("my-app-[0-9]{2}", "my-app-123", False),
        ("app", "my-app", False),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("\\Qa.b\\E", "axb", False),
        ("[[:alpha:]]+", "abC", True),
        ("\\pL+", "aä", True),
        ("(?i)ä", "Ä", True),
        ("a{,2}", "a{,2}", True),  # no count, so it stands for itself
        ("(?<n>a)", "a", True),
        ("a{1000}", "a" * 1000, True),
    ],
)
def test_the_whole_id_matches(pattern: str, text: str, found: bool) -> None:
    assert compile_pattern(pattern)(text) == found


@pytest.mark.parametrize(
    "pattern",
    ["[", "a{2,1}", "a{1001}", "(?=a)", "\\1", "a**", "*a", "a++", "(a", "a)", "\\Z", "\\u0041",
     "(?P<n", "\\x{110000}", "\\p{Nonsense}", "(x{1000}){1000}", "(x{500}){4}y{500}", "\\pL{900}"],
)  # fmt: skip
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(
        KafkaError, match=f"pattern {re.escape(repr(pattern))} is not valid: "
    ) as error:
        compile_pattern(pattern)
    assert error.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)(.*)(.*)b", "(a?){300}a*b"]
)
def test_no_pattern_takes_time_for_ever(pattern: str) -> None:
    """Python's `re` would not end."""
    assert not compile_pattern(pattern)("a" * 32_767)


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
