"""Subjects of certificates as Java writes them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.cli.certs import issue
from kafkawire.security.tls.mapping import SubjectError, subject_of
from tests.kit.tls import empty_subjects


def subject(*parts: x509.RelativeDistinguishedName | x509.NameAttribute[Any]) -> str:
    rdns = [
        part if isinstance(part, x509.RelativeDistinguishedName)
        else x509.RelativeDistinguishedName([part])
        for part in parts
    ]  # fmt: skip
    return subject_of(der(x509.Name(rdns)))


def der(name: x509.Name) -> bytes:
    return issue("", None, 1, subject=name).certificate.public_bytes(Encoding.DER)


def attribute(
    oid: x509.ObjectIdentifier, value: str, kind: _ASN1Type | None = None
) -> x509.NameAttribute[Any]:
    return x509.NameAttribute(oid, value, kind)


def common(value: str) -> x509.NameAttribute[Any]:
    return attribute(NameOID.COMMON_NAME, value)


def test_the_last_part_is_first() -> None:
    found = subject(
        attribute(NameOID.COUNTRY_NAME, "US"), attribute(NameOID.STATE_OR_PROVINCE_NAME, "MD"),
        attribute(NameOID.LOCALITY_NAME, "Fulton"), attribute(NameOID.ORGANIZATION_NAME, "mycp"),
        attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "SME"), common("Duke"),
    )  # fmt: skip
    assert found == "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"


def test_other_types_are_numbers_and_bytes() -> None:
    mail = attribute(NameOID.EMAIL_ADDRESS, "a@b.c", _ASN1Type.IA5String)
    assert subject(mail, common("x")) == "CN=x,1.2.840.113549.1.9.1=#1605614062 2e63".replace(
        " ", ""
    )
    assert subject(attribute(NameOID.USER_ID, "u"), attribute(NameOID.DOMAIN_COMPONENT, "d")) == (
        "DC=d,UID=u"
    )
    assert subject(attribute(NameOID.SERIAL_NUMBER, "1")) == "2.5.4.5=#130131"


def test_several_attributes_of_one_part() -> None:
    both = x509.RelativeDistinguishedName([common("x"), attribute(NameOID.USER_ID, "u")])
    assert subject(both) in ("CN=x+UID=u", "UID=u+CN=x")  # as they are in the certificate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a,b", r"a\,b"), ("a=b+c", r"a\=b\+c"), ('<>#;"\\', r'\<\>\#\;\"\\'),
        (" a ", r"\ a\ "), ("  ", r"\ \ "), ("a\0b", r"a\00b"), ("a b", "a b"),
        ("zürich", "zürich"), ("a\nb", "a\nb"), ("/x", "/x"),
    ],
)  # fmt: skip
def test_special_characters(value: str, text: str) -> None:
    assert subject(common(value)) == f"CN={text}"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (_ASN1Type.BMPString, r"\00a\00b\00c"), (_ASN1Type.T61String, "abc"),
        (_ASN1Type.UTF8String, "abc"),
    ],
)  # fmt: skip
def test_kinds_of_text(kind: _ASN1Type, text: str) -> None:
    assert subject(attribute(NameOID.COMMON_NAME, "abc", kind)) == f"CN={text}"


def test_empty_subject_needs_critical_alternative_names() -> None:
    """tests/java/test_same_names.py compares with Java."""
    found = empty_subjects()
    assert subject_of(found.pop("critical")) == ""
    for data in (*found.values(), der(x509.Name([]))):
        with pytest.raises(SubjectError, match="no critical alternative names"):
            subject_of(data)


WHOLE = (der(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])),
         empty_subjects()["critical"])  # fmt: skip


@given(st.sampled_from(WHOLE), st.integers(0, 1000), st.integers(0, 255), st.booleans())
def test_damaged_certificates_raise_one_error(whole: bytes, at: int, byte: int, cut: bool) -> None:
    at %= len(whole)
    data = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
    with contextlib.suppress(SubjectError):
        subject_of(data)
