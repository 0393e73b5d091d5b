"""Alibaba Cloud OSS through its S3-compatible API, as its documentation describes it: requests by
virtual host only, and 501 for If-None-Match and If-Match of a PUT.

Covers: kafkawire.objectstore.s3.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import Refused
from kafkawire.objectstore.open import make_provider
from kafkawire.objectstore.url import parse_tier
from tests.kit.s3_stub import Reply, error, serving

HOST = "oss-eu-central-1.test"


def answer(method: str, path: str, headers: dict[str, str]) -> Reply:
    if not headers["host"].startswith("bucket."):
        return error(403, "SecondLevelDomainForbidden")
    if "if-none-match" in headers or "if-match" in headers:
        return error(501, "NotImplemented")
    return Reply(headers={"ETag": '"e"'})


@pytest.mark.parametrize(
    ("options", "code"), [("&path_style=false", ""), ("", "SecondLevelDomainForbidden")]
)
def test_settings_that_oss_needs(monkeypatch: pytest.MonkeyPatch, options: str, code: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    resolve = socket.getaddrinfo

    def resolve_here(host: str, *more: Any, **others: Any) -> Any:
        return resolve("127.0.0.1" if host.endswith(HOST) else host, *more, **others)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    with serving(answer) as stub:
        endpoint = f"http://{HOST}:{urlsplit(stub.endpoint).port}"
        url = f"s3://bucket/p?region=eu-central-1&endpoint={endpoint}{options}"
        store = make_provider(parse_tier(url), 5 << 20, 1, 1, seen=True)
        if code:
            with pytest.raises(Refused) as caught:
                store.put("k", b"data", None, False, Call())
            assert caught.value.code == code
            return
        assert store.put("k", b"data", None, False, Call()).etag == "e"
        for if_match, if_absent in (("e", False), (None, True)):
            with pytest.raises(Refused, match="NotImplemented"):
                store.put("k", b"data", if_match, if_absent, Call())
