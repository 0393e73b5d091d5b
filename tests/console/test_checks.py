"""Which requests the console refuses, the headers of its answers, and what its files may contain.

Covers: kafkawire.console.web.security, kafkawire.console.web.live.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kafkawire.console.web import live
from kafkawire.console.web.live import Streams, event, repeat
from kafkawire.console.web.security import MAX_BODY_BYTES, POLICY, host_name

PACKAGE = Path(str(files("kafkawire.console")))
VENDORED = {  # of the npm packages htmx.org 4.0.1 and uplot 1.6.32
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
ORIGIN = "http://127.0.0.1:8080"
TEMPLATES = sorted((PACKAGE / "templates").glob("*.html"))


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "", "127.0.0.1@evil.example", "evil.example:8080",
     "127.0.0.1:x", "[::1", "127.0.0.1/x", "localhost#evil"],
)  # fmt: skip
def test_other_host_names_are_refused(pages: TestClient, host: str) -> None:
    for path in ("/", "/static/console.css", "/events/overview"):
        answer = pages.get(path, headers={"host": host})
        assert answer.status_code == 421
        assert answer.headers["content-security-policy"] == POLICY


def test_names_in_host_headers() -> None:
    assert host_name("LocalHost:8080") == "localhost"
    assert host_name("[::1]:8080") == "::1"
    assert host_name("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8081"}, 403),
        ({"origin": "https://127.0.0.1:8080"}, 403),
        ({"origin": "http://127.0.0.1:8080.evil.example"}, 403),
        ({"referer": "http://evil.example/127.0.0.1:8080"}, 403),
        ({"origin": ORIGIN, "sec-fetch-site": "cross-site"}, 403),
        ({"origin": ORIGIN, "sec-fetch-site": "same-site"}, 403),
        ({"origin": ORIGIN, "sec-fetch-site": "none"}, 403),
        ({"origin": ORIGIN, "content-length": "x"}, 413),
        ({"origin": ORIGIN, "content-length": str(MAX_BODY_BYTES + 1)}, 413),
        # These pass the checks; there is no page yet that changes anything.
        ({"origin": ORIGIN, "sec-fetch-site": "same-origin"}, 405),
        ({"referer": f"{ORIGIN}/topics"}, 405),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_changes_come_from_the_console_only(
    pages: TestClient, method: str, headers: dict[str, str], status: int
) -> None:
    assert pages.request(method, "/topics", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("cross-site", "navigate", 200),
        ("cross-site", "cors", 403),
        ("cross-site", "no-cors", 403),
        ("same-site", "cors", 403),
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
    ],
)
def test_scripts_of_other_sites_read_nothing(
    pages: TestClient, site: str, mode: str, status: int
) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
    assert pages.get("/topics", headers=headers).status_code == status


def test_every_answer_has_the_headers(pages: TestClient) -> None:
    for path in ("/", "/nothing", "/static/console.js", "/topics?page=x", "/samples"):
        headers = pages.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control")]
    assert "unsafe" not in POLICY


def test_long_urls_are_refused(pages: TestClient) -> None:
    assert pages.get("/topics?q=" + "x" * 9000).status_code == 414


def test_libraries_are_those_of_npm() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (PACKAGE / "static" / "vendor").iterdir()
    }
    assert found == VENDORED


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_have_nothing_that_the_policy_refuses(path: Path) -> None:
    text = path.read_text()
    for wrong in (r"\|\s*safe", r"autoescape", r"\sstyle=", r"\son\w+=", r"javascript:", r"hx-on",
                  r"\bjs:", r"hx-vals", r"hx-headers", r"<style", r"https?://",
                  r"<script(?![^>]*\ssrc=\"/static/)"):  # fmt: skip
        assert not re.search(wrong, text), wrong
    # A URL with data in it is made by `link`.
    for url in re.findall(r'(?:href|action|src|hx-get)="([^"]*\{\{[^"]*)"', text):
        assert re.match(r"\{\{ (link\(|href )", url), url


async def test_stream_sends_what_changed_and_is_counted() -> None:
    streams, texts = Streams(), ["one\ntwo", "one\ntwo", "three"]

    async def render() -> str:
        return texts.pop(0)

    stream = repeat(streams, "a", render, check_s=0)
    found = [await anext(stream) for _ in range(3)]
    assert found == ["data: one\ndata: two\n\n", ":\n\n", "data: three\n\n"]
    await stream.aclose()  # type: ignore[attr-defined]
    assert not streams.full("a")


async def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS_OF_CLIENT", 2)
    streams = Streams()

    async def render() -> str:
        return "text"

    opened = [repeat(streams, "a", render) for _ in range(2)]
    for stream in opened:
        await anext(stream)
    assert streams.full("a")
    assert not streams.full("b")
    assert [each async for each in repeat(streams, "a", render)] == []
    for stream in opened:
        await stream.aclose()  # type: ignore[attr-defined]
    assert not streams.full("a")
    await asyncio.sleep(0)


def test_events_cannot_be_forged_by_their_text() -> None:
    assert event("a\r\nb\rc\n\nevent: x") == (
        "data: a\ndata: b\ndata: c\ndata: \ndata: event: x\n\n"
    )
