"""Forms sent by Chromium, which sends an Origin that depends on the page's referrer policy.

Covers: kafkawire.console.web.security.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import leaders
from kafkawire.console.app import application
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.testing import InProcessBroker
from tests.console.conftest import USERS

api = pytest.importorskip("playwright.sync_api")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no Chromium"),
]


@pytest.fixture
def url(secured: InProcessBroker) -> Iterator[str]:
    """A console with log-in on a port of its own."""
    accepting = socket.create_server(("127.0.0.1", 0))
    options = ConsoleOptions(
        secured.addresses["SECURED"], ("127.0.0.1",), allow_changes=True, login=True
    )
    server = uvicorn.Server(uvicorn.Config(application(options), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [accepting]})
    thread.start()
    yield f"http://127.0.0.1:{accepting.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("scripts", [True, False])
def test_user_logs_in_and_makes_a_change(secured: InProcessBroker, url: str, scripts: bool) -> None:
    topic = f"ann-orders-{scripts}"
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(java_script_enabled=scripts).new_page()
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text))
        page.goto(f"{url}/change/create-topic?topic={topic}")
        page.fill("input[name=user]", "ann")
        page.fill("input[name=password]", USERS["ann"])
        page.click("main button")
        assert page.input_value("input[name=topic]") == topic
        page.click("main button")
        page.click("main button")
        assert f"Topic {topic} was created." in page.inner_text("main")
        page.click("text=Log out")
        page.goto(f"{url}/topics")
        assert page.url.startswith(f"{url}/login")
        browser.close()
    assert errors == []
    with Cluster(secured.bootstrap) as cluster:
        assert len(leaders(cluster, [topic])) == 1
