"""Names of clients with certificates: those of Java's X500Principal and Kafka's mapping rules."""

from __future__ import annotations

import warnings
from base64 import b64decode, b64encode
from collections.abc import Sequence
from random import Random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kafkawire.cli.certs import issue
from kafkawire.security.tls.mapping import PrincipalMapping, RuleError, SubjectError, subject_of
from tests.java.tools import ToolServer
from tests.kit.tls import empty_subjects

TEXTS = (
    "a,b", "a=b+c", '<>#;"\\', "#a", "a#", " a ", "  ", "\ra\r", "\ta\t", " a\n", "a\0b", "\0",
    "a/b\\/c", "zürich", "ß", "e\u0301", "日本", "\U0001f600", "\u200f", "\x7f", "\x01", "a  b",
    "*", "User:x", "a" * 300, "\u00a0a\u00a0", "\\ ", "\\", "=", "a\\,b",
)  # fmt: skip
KINDS = (
    _ASN1Type.UTF8String, _ASN1Type.PrintableString, _ASN1Type.T61String, _ASN1Type.IA5String,
    _ASN1Type.BMPString, _ASN1Type.UniversalString, _ASN1Type.NumericString,
    _ASN1Type.VisibleString,
)  # fmt: skip
TYPES = (
    NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.LOCALITY_NAME, NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS,
    NameOID.DOMAIN_COMPONENT, NameOID.USER_ID, NameOID.EMAIL_ADDRESS, NameOID.SERIAL_NUMBER,
    NameOID.SURNAME, NameOID.TITLE, NameOID.PSEUDONYM, x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"),
    x509.ObjectIdentifier("2.999.300"), x509.ObjectIdentifier("0.1.2"),
)  # fmt: skip
RULES = (
    "DEFAULT", r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT",
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    r"RULE:CN=([^,]+).*/$1/U,DEFAULT", r"RULE:.*/x/", r"RULE:(.*)/$2-\$1-$1/",
    r"RULE:^CN=(\w+)\/(\w+)$/$2\/$1/,RULE:^.*O=([^,]*).*$/$1$12/,DEFAULT",
)  # fmt: skip


def certificate(*parts: Sequence[x509.NameAttribute[str]]) -> bytes:
    """A certificate whose subject has these relative names."""
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    return issue("", None, 1, subject=name).certificate.public_bytes(Encoding.DER)


def attribute(
    oid: x509.ObjectIdentifier, text: str, kind: _ASN1Type | None = None
) -> x509.NameAttribute[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengths that are not allowed
        return x509.NameAttribute(oid, text, kind, _validate=False)


def subjects() -> list[bytes]:
    found = [certificate([attribute(NameOID.COMMON_NAME, text)]) for text in TEXTS]
    found += [certificate([attribute(oid, "a b", _ASN1Type.UTF8String)]) for oid in TYPES]
    found += [
        certificate([attribute(oid, text, kind)])
        for kind in KINDS
        for oid in (NameOID.COMMON_NAME, NameOID.EMAIL_ADDRESS)
        for text in ("abc", "12 3", " a,b ")
    ]
    found += [certificate([attribute(NameOID.COUNTRY_NAME, "US", _ASN1Type.PrintableString)])]
    damaged = (b"\xfc\xe4z\xff", b"\xe6\x97zz", b"\xf0\x9f\x98z", b"\xc0\x80zz", b"\xed\xa0\x80z")
    marked = certificate([attribute(NameOID.COMMON_NAME, "QQQQ")])
    found += [marked.replace(b"QQQQ", each) for each in damaged]
    random = Random(17)
    for _ in range(150):
        parts = [
            [
                attribute(oid, random.choice(TEXTS), _ASN1Type.UTF8String)
                for oid in random.sample(TYPES, count)
            ]
            for count in random.choices((1, 2, 3), (6, 2, 1), k=random.randint(1, 5))
        ]
        found.append(certificate(*parts))
    return found


def ours(mapping: PrincipalMapping, data: bytes) -> str | None:
    try:
        return mapping.name_of(subject_of(data))
    except (RuleError, SubjectError):
        return None


def theirs(tools: ToolServer, rules: str, data: list[bytes]) -> list[str | None]:
    words = [rules, *(b64encode(each).decode() for each in data)]
    done = tools.run("CertificateNames", words, "", 90)
    assert done.code == 0, done.stderr
    return [None if line == "!" else b64decode(line).decode() for line in done.stdout.splitlines()]


def test_names_match(tool_server: ToolServer) -> None:
    data = subjects()
    default = PrincipalMapping("DEFAULT")
    pairs = zip(theirs(tool_server, "DEFAULT", data), data, strict=True)
    wrong = [(java, ours(default, each)) for java, each in pairs if java != ours(default, each)]
    assert not wrong, f"(Java, ours): {wrong}"


def test_empty_subjects_match(tool_server: ToolServer) -> None:
    """Java reads a certificate without a subject only with critical alternative names."""
    data = list(empty_subjects().values())
    assert theirs(tool_server, "DEFAULT", data) == ["", None, None, None]
    for rules in ("DEFAULT", "RULE:^CN=(.*)$/$1/", "RULE:^$/nobody/,DEFAULT"):
        mapping = PrincipalMapping(rules)
        assert [ours(mapping, each) for each in data] == theirs(tool_server, rules, data)


@pytest.mark.parametrize("rules", RULES)
def test_rules_match(tool_server: ToolServer, rules: str) -> None:
    def parts(*pairs: tuple[x509.ObjectIdentifier, str]) -> bytes:
        return certificate(*([attribute(oid, text)] for oid, text in pairs))

    o, ou, cn = NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COMMON_NAME
    data = [
        parts((o, "Org"), (ou, "ServiceUsers"), (cn, "Duke")), parts((cn, "a/b")), parts((cn, "É")),
        parts((NameOID.COUNTRY_NAME, "US"), (NameOID.STATE_OR_PROVINCE_NAME, "MD"),
              (NameOID.LOCALITY_NAME, "Fulton"), (o, "mycp"), (ou, "SME"), (cn, "Duke")),
        parts((o, "x,y"), (cn, "a,b")), parts((cn, "İ")), parts((cn, "")), parts((cn, "$1\\")),
    ]  # fmt: skip
    mapping = PrincipalMapping(rules)
    assert [ours(mapping, each) for each in data] == theirs(tool_server, rules, data)
