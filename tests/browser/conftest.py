"""The console in Chromium, with a broker that has records in all places of the map, and names and
records that strangers wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, Request, ViewportSize, expect

from kafkawire.testing import BrokerProcess
from tests.browser.hostile import write_hostile_data
from tests.kit.console import running_chromium, running_console, sample_broker

HERE = Path(__file__).parent
TIMEOUT_MS = 180_000
"""Far longer than needed: no page takes a second on an idle machine."""
ALLOWED = re.compile(r"/(static/[\w./-]+|health|samples|events/overview)$")
"""Requests of the pages themselves."""
COLLECT_VIOLATIONS = """
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) => violations.push(
    `${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""

OpenPage = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = str(tmp_path_factory.mktemp("console"))
    with sample_broker(folder) as started, write_hostile_data(started.bootstrap):
        yield started


@pytest.fixture(scope="package")
def console(broker: BrokerProcess) -> Iterator[str]:
    """The URL of a console."""
    with running_console(broker.bootstrap) as url:
        yield url


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(chromium: Browser, console: str) -> Iterator[OpenPage]:
    """open_page(path, width=1280, **options of Playwright's new_context) -> the page. At the end
    there was no dialog, no report of the content security policy, no failure of a script, and no
    request but those of the console's own pages."""
    found: list[str] = []
    pages: list[Page] = []

    def dismiss(dialog: Dialog) -> None:
        found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def watch(page: Page) -> None:
        page.on("dialog", dismiss)
        page.on("pageerror", lambda error: found.append(f"script: {error}"))
        page.on("popup", lambda popup: found.append(f"popup: {popup.url}"))
        page.on("request", check_request)

    def check_request(request: Request) -> None:
        path = request.url.removeprefix(console).partition("?")[0]
        asked = request.is_navigation_request() or request.headers.get("hx-request")
        if not request.url.startswith(console) or not (asked or ALLOWED.match(path)):
            found.append(f"request: {request.url}")

    def open_one(path: str, width: int = 1280, strict: bool = True, **options: Any) -> Page:
        size = ViewportSize(width=width, height=844 if width < 700 else 800)
        context = chromium.new_context(viewport=size, **options)
        context.set_default_timeout(TIMEOUT_MS)
        context.add_init_script(COLLECT_VIOLATIONS)
        page = context.new_page()
        if strict:
            watch(page)
        page.goto(path if path.startswith("http") else console + path, wait_until="load")
        pages.append(page)
        return page

    expect.set_options(timeout=TIMEOUT_MS)
    yield open_one
    for page in pages:
        found += page.evaluate("window.violations || []")
        page.context.close()
    assert not found
