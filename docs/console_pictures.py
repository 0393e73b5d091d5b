"""Write the pictures of docs/console.md: pages of a console in both themes, in Debian's Chromium.

python docs/console_pictures.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from playwright.sync_api import ViewportSize, expect

from tests.kit.console import (
    ORDERS,
    order,
    produce_rows,
    running_chromium,
    running_console,
    sample_broker,
)

PAGES = {
    "overview": "/",
    "topics": "/topics?sort=lag",
    "topic": f"/topics/{ORDERS}",
    "records": f"/topics/{ORDERS}/records?limit=12",
    "group": "/group?name=billing",
}
THEMES = ("light", "dark")
SIZE = ViewportSize(width=1100, height=720)
MAX_BYTES = 150_000
TRAFFIC_S = 30
"""How long the plots show records before the first picture."""


def take(folder: Path) -> None:
    """Write a picture of each page in each theme. ValueError for one with more than MAX_BYTES."""
    with (
        tempfile.TemporaryDirectory(prefix="kafkawire-") as data,
        sample_broker(data) as broker,
        running_console(broker.bootstrap) as url,
        running_chromium() as browser,
        _traffic(broker.bootstrap),
    ):
        watching = browser.new_page()
        watching.goto(url)  # the console takes samples for plots while a page is open
        watching.wait_for_timeout(TRAFFIC_S * 1000)
        for theme in THEMES:
            context = browser.new_context(
                viewport=SIZE, color_scheme="dark" if theme == "dark" else "light"
            )
            page = context.new_page()
            for name, path in PAGES.items():
                page.goto(url + path)
                if name == "overview":
                    expect(page.locator(".plot canvas")).to_have_count(4)
                if name == "records":
                    page.locator(".record summary").first.click()
                file = folder / f"console-{name}-{theme}.png"
                page.screenshot(path=file)
                if file.stat().st_size > MAX_BYTES:
                    raise ValueError(f"{file} has more than {MAX_BYTES} bytes")


@contextmanager
def _traffic(bootstrap: str) -> Iterator[None]:
    """Append records all the time until the context ends."""
    ended = threading.Event()

    def run() -> None:
        for rows in cycle(range(20, 60, 5)):
            if ended.wait(0.3):
                return
            produce_rows(bootstrap, ORDERS, rows, order)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "pictures"
    target.mkdir(exist_ok=True)
    take(target)
