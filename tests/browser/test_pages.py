"""Every page in Chromium: barriers, narrow screens, no JavaScript, hostile data, keys, failures.

Covers: kafkawire.console.app, kafkawire.console.pages.*, kafkawire.console.web.*.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Page, expect

from kafkawire.testing import BrokerProcess, create_topic
from tests.browser.conftest import OpenPage
from tests.browser.hostile import GROUPS, HOSTILE, TOPICS
from tests.kit.console import (
    CUSTOMERS,
    LARGE,
    LARGE_VALUE,
    ORDERS,
    REBOUND,
    axe_source,
    running_console,
)

PAGES = (
    "/",
    "/topics",
    f"/topics/{ORDERS}",
    f"/topics/{CUSTOMERS}",
    f"/topics/{ORDERS}/records",
    "/groups",
    "/group?name=billing",
    "/topics/absent",
    f"/topics/{ORDERS}/settings",
    "/tier",
    "/transactions",
    "/schedules",
    "/cluster",
    "/brokers/1",
    "/security",
    "/pipeline",
    "/me",
    "/api",
)
"""Each page once: a new page is one line here."""
HOSTILE_PAGES = (
    *PAGES,
    *(f"/topics/{name}" for name in TOPICS),
    *(f"/topics/{TOPICS[0]}/records?where=oldest&decoder={how}" for how in ("auto", "text", "hex")),
    *(f"/topics?{urlencode({'q': text})}" for text in HOSTILE[:2]),
    *(f"/group?{urlencode({'name': name})}" for name in (*GROUPS, "<b>members</b>")),
)
WIDTHS = (1280, 390)
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
MOVING = re.compile(
    r"[Aa]s of \S+ (\w+ )?ago|[Aa]s of [\d-]+ \S+Z|[\d.]+ \w+ ago|[\d.]+ \w+ read in [\d.]+ s"
    r"|\b0\.0+\b|[\d.]+ [KM]?i?B, \d+ %"
)
"""Times and sizes, which differ between two views of a page, and costs of little, which grow."""


def open_details(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_page_has_no_barriers(open_page: OpenPage, path: str, theme: Any, width: int) -> None:
    page = open_page(path, width, color_scheme=theme)
    open_details(page)
    page.evaluate(axe_source())
    result = page.evaluate("(tags) => axe.run({ runOnly: tags })", RULES)
    assert [
        (each["id"], [node["html"] for node in each["nodes"]]) for each in result["violations"]
    ] == []
    assert len(result["passes"]) > 10, "axe has checked the page"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#main").bounding_box()
    assert box is not None
    assert box["width"] > width * 0.7


@pytest.mark.parametrize("path", PAGES)
def test_page_has_the_same_text_without_javascript(open_page: OpenPage, path: str) -> None:
    texts = []
    for enabled in (True, False):
        page = open_page(path, java_script_enabled=enabled)
        texts.append(MOVING.sub("", page.inner_text("#content")))
        assert page.locator("#theme").is_visible() == enabled
    assert texts[0] == texts[1]


@pytest.mark.parametrize("path", HOSTILE_PAGES)
def test_hostile_data_is_text(open_page: OpenPage, path: str) -> None:
    page = open_page(path)
    url = page.url
    open_details(page)
    page.mouse.move(600, 400)
    if path != "/":  # its stream of events stays open
        page.wait_for_load_state("networkidle")
    expect(page.locator("#main")).to_be_visible()
    expect(page.locator("nav a")).not_to_have_count(0)
    expect(page.locator("#search")).to_have_count(1)
    assert page.url == url
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_hostile_data_is_shown(open_page: OpenPage) -> None:
    listed = open_page("/groups?sort=name").inner_text("#list")
    for group in GROUPS[:10]:
        assert group in listed
    records = open_page(f"/topics/{TOPICS[0]}/records?where=oldest&decoder=text")
    open_details(records)
    shown = records.inner_text(".records")
    for text in HOSTILE[:12]:
        assert shown.count(text) >= 4, "as key, value and header"


def test_keys_reach_the_search(open_page: OpenPage) -> None:
    page = open_page("/groups")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type(f"{ORDERS}/")
    expect(page.locator("#search")).to_have_value(f"{ORDERS}/")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/topics/{ORDERS}")


def test_filter_changes_rows_and_url(open_page: OpenPage) -> None:
    page = open_page("/topics")
    rows = page.locator("tbody tr")
    expect(rows).not_to_have_count(1)
    page.evaluate("window.kept = true")
    page.locator("input[name=q]").nth(1).press_sequentially("paym")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("payments")
    page.wait_for_url("**/topics?q=paym&sort=name")
    assert page.evaluate("window.kept"), "the page was not loaded again"
    page.reload()
    expect(rows).to_have_count(1)


def test_theme_is_kept(open_page: OpenPage) -> None:
    page = open_page("/", color_scheme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.locator("#theme").click()
    dark = page.evaluate(back)
    assert dark != light
    page.goto(page.url + "topics")
    assert page.evaluate(back) == dark


def test_large_value_is_shown_in_part(open_page: OpenPage) -> None:
    page = open_page(f"/topics/{LARGE}/records")
    page.locator("summary", has_text="big").click()
    value = page.locator(".record pre").nth(1)
    expect(value).to_be_visible()
    shown = value.inner_text()
    assert shown == LARGE_VALUE.decode()[: len(shown)]
    assert 60_000 < len(shown) < 70_000
    expect(page.locator(".record")).to_contain_text(f"of {len(LARGE_VALUE):,} bytes")


def test_plots_are_drawn(open_page: OpenPage) -> None:
    page = open_page("/")
    expect(page.locator(".plot canvas")).to_have_count(4)


def test_broker_and_console_that_return_are_seen_without_reload(
    open_page: OpenPage, tmp_path: Path
) -> None:
    settings = {"disk.warn.percent": "100"}  # the disk is that of the machine
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        create_topic(broker.bootstrap, "known")
        with running_console(broker.bootstrap) as url:
            port = urlsplit(url).port or 0
            paths = ("/", "/topics", "/topics/known")
            pages = [open_page(url + path, strict=False) for path in paths]
            broker.stop()
            for page in pages:
                expect(page.locator("#gone")).to_contain_text("The broker does not answer")
                expect(page.locator("#state")).to_have_text("The broker does not answer")
                page.evaluate("window.kept = true")
            failed = open_page(f"{url}/topics/known", strict=False)
            expect(failed.get_by_role("alert")).to_be_visible()
            broker.start()
            create_topic(broker.bootstrap, "later")
            for page in pages:
                expect(page.locator("#gone")).to_be_hidden()
                expect(page.locator("#state")).to_have_text("All well")
                assert page.evaluate("window.kept"), "the page was not loaded again"
            expect(pages[0].locator(".health")).to_contain_text("All well. 2 topics")
            expect(pages[1].locator("#list")).to_contain_text("later")
            expect(failed.get_by_role("alert")).to_have_count(0)
            expect(failed.locator("h1")).to_have_text("known")
        for page in pages:
            expect(page.locator("#gone")).to_contain_text("The console does not answer")
        with running_console(broker.bootstrap, port):
            for page in pages:
                expect(page.locator("#gone")).to_be_hidden()


@pytest.fixture
def other_origin(console: str) -> Iterator[str]:
    """The URL of a page of another origin, with a form that is sent to each page of the console
    without a click, and a frame with it."""
    forms = "".join(
        f'<form method="post" target="f{at}" action="{console}{path}">'
        f'<input name="name" value="{ORDERS}"></form><iframe name="f{at}"></iframe>'
        for at, path in enumerate(PAGES)
    )
    script = "<script>for (const form of document.forms) form.submit()</script>"
    body = f'{forms}{script}<iframe src="{console}/"></iframe>'.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["/", "/topics"])
def test_form_of_another_origin_changes_nothing(
    open_page: OpenPage, console: str, other_origin: str, path: str
) -> None:
    before = open_page("/topics").locator("tbody th").all_inner_texts()
    answers: list[tuple[str, int]] = []
    page = open_page(path, strict=False)
    page.on(
        "response", lambda got: answers.append((got.request.method, got.status))
        if got.url.startswith(console) else None,
    )  # fmt: skip
    page.goto(other_origin)
    page.wait_for_load_state("networkidle")
    assert [status for method, status in answers if method == "POST"] == [403] * len(PAGES)
    for frame in page.frames[1:]:
        assert "kafkawire" not in frame.content(), "the console is not shown in a frame"
    assert open_page("/topics").locator("tbody th").all_inner_texts() == before


def test_other_host_name_is_refused(open_page: OpenPage, console: str) -> None:
    port = urlsplit(console).port
    page = open_page(f"http://{REBOUND}:{port}/topics", strict=False)
    assert page.inner_text("body").strip() == "The console is not served under this host name."
    status = page.evaluate("fetch('/topics').then((answer) => answer.status)")
    assert status == 421
