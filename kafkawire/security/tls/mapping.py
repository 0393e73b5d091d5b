"""`ssl.principal.mapping.rules`: from the subject of a certificate to the name of a principal.

The rules and what they do are Kafka's (SslPrincipalMapper): comma-separated `DEFAULT` or
`RULE:pattern/replacement/[LU]`, of which the first whose pattern matches the whole subject is used.
Then Java's replaceAll: each match of the pattern is replaced, so `.*` replaces twice (the empty end
matches, too). What Kafka finds only when a client connects, a replacement that names no group of
the pattern, is refused at the start.

A subject may be chosen so that a careless pattern takes very long; so the time is bounded. Python's
own expressions have no such bound, the package `regex` has. It is imported when there are rules.
"""

from __future__ import annotations

import re
from typing import Any

RULE = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({RULE})\s*(,\s*|$)")
_PARSER = re.compile(RULE)
_REFERENCE = re.compile(r"\\(.)|\$([0-9]+)|(\$|\\$)", re.DOTALL)

MAX_RULES_CHARACTERS = 32 << 10
"""Maximum length of the setting, as of any setting that a client may change."""
MATCH_TIMEOUT_S = 0.002
"""Time for one match or replacement, on the event loop; usual ones take a few microseconds."""


class RuleError(ValueError):
    """A rule is invalid, or none maps a subject; the text is one sentence."""


class _Default:
    """`DEFAULT`: the whole subject."""

    def apply(self, subject: str) -> str | None:
        return subject


class _Rule:
    """`RULE:pattern/replacement/[LU]`."""

    def __init__(self, text: str, pattern: str, replacement: str, case: str) -> None:
        import regex  # most brokers do without

        self._text = text
        try:
            self._pattern: Any = regex.compile(pattern)
        except regex.error as error:
            raise RuleError(f"the pattern of {text} is invalid: {error}") from None
        self._parts = _replacement(text, replacement, self._pattern.groups)
        self._case = case

    def apply(self, subject: str) -> str | None:
        """Return the name, or None if the rule is not about this subject."""
        try:
            if self._pattern.fullmatch(subject, timeout=MATCH_TIMEOUT_S) is None:
                return None
            name = str(self._pattern.sub(self._replaced, subject, timeout=MATCH_TIMEOUT_S))
        except TimeoutError:
            raise RuleError(f"matching {self._text} takes too long") from None
        if self._case:
            name = name.lower() if self._case == "L" else name.upper()
        return name

    def _replaced(self, match: Any) -> str:
        return "".join(
            part if isinstance(part, str) else match.group(part) or "" for part in self._parts
        )


def _replacement(rule: str, text: str, groups: int) -> list[str | int]:
    """Return literal texts and group numbers. As in Java a backslash makes the next character
    literal, and of `$12` as many digits count as there is a group for; as in Kafka a `$n` without
    a group is literal where the pattern has groups at all."""
    parts: list[str | int] = []
    at = 0
    for found in _REFERENCE.finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
        escaped, digits, lone = found.groups()
        if escaped is not None:
            parts.append(escaped)
        elif lone is not None:
            raise RuleError(f"the replacement of {rule} has {lone!r} without a number")
        else:
            parts += _reference(rule, digits, groups)
    return [*parts, text[at:]]


def _reference(rule: str, digits: str, groups: int) -> list[str | int]:
    used = len(digits)
    while used > 1 and int(digits[:used]) > groups:
        used -= 1
    number = int(digits[:used])
    if number <= groups:
        return [number, digits[used:]]
    if not groups:
        raise RuleError(f"the replacement of {rule} has ${digits}, and its pattern no group")
    return [f"${digits}"]


class PrincipalMapping:
    """The rules of one broker."""

    def __init__(self, text: str) -> None:
        """Parse the setting. Raises RuleError."""
        if len(text) > MAX_RULES_CHARACTERS:
            raise RuleError(f"the rules have more than {MAX_RULES_CHARACTERS} characters")
        self._rules = [
            rule
            for found in _SPLITTER.finditer(text.strip())
            if (rule := _parsed(found[1])) is not None
        ]

    def name_of(self, subject: str) -> str:
        """Return the name for a subject. Raises RuleError if no rule is about it."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise RuleError("no rule of ssl.principal.mapping.rules matches it")


def _parsed(text: str) -> _Default | _Rule | None:
    """Return one rule; None if it is empty."""
    found = _PARSER.match(text)
    if found is None or found.end() != len(text):
        raise RuleError(f"{text} must be DEFAULT or RULE:pattern/replacement/[LU]")
    if found[1] is not None:
        return _Default()
    if found[2] is not None:
        return _Rule(text, found[2], found[4], found[6])
    return None
