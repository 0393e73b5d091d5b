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
from collections.abc import Iterator
from typing import Any

# The subject of a certificate as text, exactly as Java's X500Principal.getName() writes it.
#
# That is RFC 2253: the last part first, commas without spaces, and only the nine attribute types of
# the RFC by name; all others as their number and the hexadecimal bytes of their value. Access rules
# compare these texts exactly, so a library's other rendering of the same name would not do. Reads
# the DER bytes of a certificate whose signature was verified, and checks every length.


_KEYWORDS = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET",
    "2.5.4.10": "O", "2.5.4.11": "OU", "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}  # fmt: skip
_TEXTS = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E))
"""Types that Java writes as text: UTF8, Printable, T61, IA5, General and BMP strings. It reads all
of them as UTF-8, BMP strings too, whose letters then have a U+0000 between them."""
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Not allowed in UTF-8; Java reads it as one replacement character, Python as three."""
_SPECIAL = frozenset(',=+<>#;"\\')
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_BOOLEAN, _EXTENSIONS = 0x01, 0xA3
_ALTERNATIVE_NAMES = bytes.fromhex("551d11")
"""The number of the extension subjectAltName, 2.5.29.17."""

MAX_SUBJECT_BYTES = 8 << 10
"""Maximum subject; real ones have a few hundred bytes."""


class SubjectError(ValueError):
    """The subject of a certificate cannot be read."""


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate: empty if it has only alternative names, which then
    must be critical (RFC 5280), as Java demands. Raises SubjectError."""
    _, whole, _ = _element(certificate, 0, _SEQUENCE)
    _, signed, _ = _element(whole, 0, _SEQUENCE)
    at = 0
    tag, _, stop = _element(signed, at)
    if tag == _VERSION:
        at = stop
    for _ in ("serial number", "signature algorithm", "issuer", "validity"):
        _, _, at = _element(signed, at)
    _, subject, at = _element(signed, at, _SEQUENCE)
    if not subject:
        _check_alternative(signed[at:])
    if len(subject) > MAX_SUBJECT_BYTES:
        raise SubjectError(f"a subject of {len(subject)} bytes")
    parts = [
        "+".join(_attribute(content) for _, content in _elements(part))
        for _, part in _elements(subject)
    ]
    return ",".join(reversed(parts))


def _check_alternative(rest: bytes) -> None:
    """Raise SubjectError unless what follows an empty subject has alternative names that are
    critical."""
    for tag, content in _elements(rest):
        if tag == _EXTENSIONS:
            _, extensions, _ = _element(content, 0, _SEQUENCE)
            for _, extension in _elements(extensions):
                _, oid, at = _element(extension, 0, _OID)
                tag, critical, at = _element(extension, at)
                if oid == _ALTERNATIVE_NAMES and tag == _BOOLEAN and any(critical):
                    _, value, _ = _element(extension, at)
                    if _element(value, 0, _SEQUENCE)[1]:
                        return
    raise SubjectError("its subject is empty, and it has no critical alternative names")


def _element(data: bytes, at: int, wanted: int | None = None) -> tuple[int, bytes, int]:
    """Return (tag, content, end) of the DER element at `at`."""
    if at + 2 > len(data):
        raise SubjectError("the certificate is truncated")
    tag, size = data[at], data[at + 1]
    at += 2
    if size >= 0x80:
        count = size & 0x7F
        if not 0 < count <= 4 or at + count > len(data):
            raise SubjectError("the certificate has an invalid length")
        size = int.from_bytes(data[at : at + count])
        at += count
    if size > len(data) - at:
        raise SubjectError("the certificate is truncated")
    if wanted is not None and tag != wanted:
        raise SubjectError(f"the certificate has element {tag:#x} instead of {wanted:#x}")
    return tag, data[at : at + size], at + size


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, content, at = _element(data, at)
        yield tag, content


def _attribute(content: bytes) -> str:
    """Return one attribute as TYPE=VALUE."""
    _, oid, at = _element(content, 0, _OID)
    tag, value, end = _element(content, at)
    name = _format_oid(oid)
    keyword = _KEYWORDS.get(name)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or name}=#{content[at:end].hex()}"
    text = _SURROGATE.sub("\ufffd".encode(), value).decode(errors="replace")
    return f"{keyword}={_escape(text)}"


def _format_oid(oid: bytes) -> str:
    numbers: list[int] = []
    value = 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    if not numbers:
        raise SubjectError("the certificate has an empty attribute type")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escape(text: str) -> str:
    """Escape as Java's AVA.toRFC2253String: special characters, and spaces at both ends."""
    escaped = "".join(
        f"\\{char}" if char in _SPECIAL else "\\00" if char == "\0" else char for char in text
    )
    lead = len(escaped) - len(escaped.lstrip(" \r"))
    rest = escaped[lead:].rstrip(" \r")
    trail = escaped[lead + len(rest) :]
    return (
        "".join(f"\\{char}" for char in escaped[:lead])
        + rest
        + "".join(f"\\{char}" for char in trail)
    )


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

    def map_name(self, subject: str) -> str | None:
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

    def map_name(self, subject: str) -> str | None:
        """Return the name, or None if the rule is not about this subject."""
        try:
            if self._pattern.fullmatch(subject, timeout=MATCH_TIMEOUT_S) is None:
                return None
            name = str(
                self._pattern.sub(self._expand_replacement, subject, timeout=MATCH_TIMEOUT_S)
            )
        except TimeoutError:
            raise RuleError(f"matching {self._text} takes too long") from None
        if self._case:
            name = name.lower() if self._case == "L" else name.upper()
        return name

    def _expand_replacement(self, match: Any) -> str:
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
            if (rule := _parse_rule(found[1])) is not None
        ]

    def name_of(self, subject: str) -> str:
        """Return the name for a subject. Raises RuleError if no rule is about it."""
        for rule in self._rules:
            name = rule.map_name(subject)
            if name is not None:
                return name
        raise RuleError("no rule of ssl.principal.mapping.rules matches it")


def _parse_rule(text: str) -> _Default | _Rule | None:
    """Return one rule; None if it is empty."""
    found = _PARSER.match(text)
    if found is None or found.end() != len(text):
        raise RuleError(f"{text} must be DEFAULT or RULE:pattern/replacement/[LU]")
    if found[1] is not None:
        return _Default()
    if found[2] is not None:
        return _Rule(text, found[2], found[4], found[6])
    return None
