"""The subject of a certificate as text, exactly as Java's X500Principal.getName() writes it.

That is RFC 2253: the last part first, commas without spaces, and only the nine attribute types of
the RFC by name; all others as their number and the hexadecimal bytes of their value. Access rules
compare these texts exactly, so a library's other rendering of the same name would not do. Reads the
DER bytes of a certificate whose signature was verified, and checks every length. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
    name = _dotted(oid)
    keyword = _KEYWORDS.get(name)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or name}=#{content[at:end].hex()}"
    text = _SURROGATE.sub("\ufffd".encode(), value).decode(errors="replace")
    return f"{keyword}={_escaped(text)}"


def _dotted(oid: bytes) -> str:
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


def _escaped(text: str) -> str:
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
