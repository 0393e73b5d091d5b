"""Every page of the console against a broker, with what strangers may write into it.

Covers: kafkawire.console.app, kafkawire.console.pages.groups, kafkawire.console.pages.overview,
kafkawire.console.pages.records, kafkawire.console.pages.topics, kafkawire.console.web.frame,
kafkawire.console.web.rendering, kafkawire.console.web.viewer, kafkawire.console.views.pool,
kafkawire.console.views.groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from confluent_kafka import Consumer
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.console.app import application
from kafkawire.console.views import snapshot
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.rendering import link, number, percent, utc
from kafkawire.testing import InProcessBroker, TopicProducer, broker, create_topic
from tests.console.conftest import ORDERS, PARTITIONS, RECORDS

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<div hx-get=/topics hx-trigger=load>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "\x1b]0;owned\x07",
    "' onmouseover='alert(1)",
    "</pre></details></main>",
)
GROUPS = (*HOSTILE, "..", "a/b?c#d", "%2e%2e", " ")
TOPIC = "hostile"


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def check_page(text: str) -> None:
    """Check that a page has only elements and attributes of the templates."""
    for tag, attributes in Elements(text).found:
        assert tag not in ("img", "iframe", "object", "style", "base"), tag
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        if tag == "script":
            assert (attributes["src"] or "").startswith("/static/")
        if tag == "div":
            assert "hx-get" not in attributes
        for name in ("href", "action", "hx-get"):
            assert (attributes.get(name) or "/").startswith(("/", "#")), attributes
    # What the reader typed stays as it is in its field.
    assert not set(re.sub(r'value="[^"]*"', "", text)) & {"\u202e", "\x1b", "\x07"}


@pytest.fixture(scope="module")
def hostile(running: InProcessBroker) -> InProcessBroker:
    create_topic(running.bootstrap, TOPIC)
    producer = TopicProducer(running.bootstrap)
    for text in HOSTILE:
        data = text.encode()
        producer.send(TOPIC, data, key=data, headers=[(text, data)])
        producer.send(TOPIC, b'{"' + b"x" + b'": "' + data.replace(b'"', b"") + b'"}')
    with Cluster(running.bootstrap) as cluster:
        for group in GROUPS:
            codes = call_coordinator(
                lambda name=group: commit(cluster, name, {(TOPIC, 0): 1})  # type: ignore[misc]
            )
            assert set(codes.values()) == {0}
    return running


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/topics",
        f"/topics/{TOPIC}",
        f"/topics/{TOPIC}/records",
        *(f"/topics/{TOPIC}/records?where=oldest&decoder={how}" for how in ("text", "json", "hex")),
        "/groups",
    ],
)
def test_hostile_names_and_records_are_text(
    hostile: InProcessBroker, pages: TestClient, path: str
) -> None:
    answer = pages.get(path)
    assert answer.status_code == 200
    check_page(answer.text)


def test_groups_of_any_name_have_a_page(hostile: InProcessBroker, pages: TestClient) -> None:
    listed = pages.get("/groups?sort=name").text
    for group in GROUPS:
        url = link("group", name=group)
        assert f'href="{url}"'.replace("&", "&amp;") in listed, group
        answer = pages.get(url)
        assert answer.status_code == 200, group
        check_page(answer.text)
    assert "no members" in pages.get("/").text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_parameters_are_text(pages: TestClient, text: str) -> None:
    for path in (
        link("topics", q=text),
        link("topics", sort=text),
        link("topics", text),
        link("topics", ORDERS, "records", text=text, key=text),
        link("topics", ORDERS, "records", where=text),
        link("topics", ORDERS, "records", after=text),
        link("topics", ORDERS, "records", filter=text),
        link("topics", ORDERS, "records", pattern=text),
        link("search", q=text),
        link("groups", q=text),
        link("group", name=text + "?"),
        link("nothing", text),
    ):
        answer = pages.get(path)
        assert answer.status_code in (200, 400, 404), path
        check_page(answer.text)


def test_list_of_topics_is_filtered_and_sorted(pages: TestClient) -> None:
    assert ORDERS in pages.get("/topics?q=ORD").text
    assert "No topic matches." in pages.get("/topics?q=absent").text
    assert "__consumer_offsets" not in pages.get("/topics").text
    part = pages.get("/topics?q=ord", headers={"HX-Request-Type": "partial"}).text
    assert ORDERS in part
    assert "<html" not in part


def test_topic_shows_each_partition_and_its_groups(
    running: InProcessBroker, pages: TestClient
) -> None:
    with Cluster(running.bootstrap) as cluster:
        call_coordinator(lambda: commit(cluster, "billing", {(ORDERS, 1): 10}))
    text = pages.get(f"/topics/{ORDERS}").text
    for index in range(PARTITIONS):
        assert f"Map of partition {index}" in text
    assert f"{RECORDS} records" in text
    known = pages.get("/group?name=billing").text
    assert "lag 20 over 1 partition." in known


@pytest.mark.real
def test_members_of_a_real_consumer_are_shown(running: InProcessBroker, pages: TestClient) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "group.id": "real",
            "client.id": "<b>client</b>",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([ORDERS])
        (record,) = consumer.consume(1, timeout=60)
        consumer.commit(record, asynchronous=False)
        text = pages.get("/group?name=real").text
    finally:
        consumer.close()
    check_page(text)
    assert "&lt;b&gt;client&lt;/b&gt;" in text
    assert f"1 member, lag {RECORDS - 1} over {PARTITIONS} partitions" in text
    assert "Nothing stops the group" in text
    with Cluster(running.bootstrap) as cluster:
        left = snapshot.take_snapshot(cluster, OwnBroker()).groups["real"]
    assert (left.members, left.lag) == (0, RECORDS - 1), "partitions without a commit count, too"


def test_records_are_read_from_an_offset_on(pages: TestClient) -> None:
    url = f"/topics/{ORDERS}/records?where=offset&partition=1&at=29"
    text = pages.get(url).text
    assert "Searched offsets 29 to 30 of 0 to 30 in partition 1: 1 match" in text
    assert "key-88" in text
    assert "Continue" not in text
    assert "Continue" in pages.get(f"/topics/{ORDERS}/records?where=oldest&limit=1").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/absent", 404),
        ("/topics/absent/records", 404),
        ("/group?name=absent", 404),
        ("/group", 400),
        ("/topics?page=0", 400),
        ("/topics?page=x", 400),
        (f"/topics/{ORDERS}?first=-1", 400),
        (f"/topics/{ORDERS}/records?limit=501", 400),
        (f"/topics/{ORDERS}/records?where=offset&at=1", 400),
        (f"/topics/{ORDERS}/records?where=time&at=yesterday", 400),
        (f"/topics/{ORDERS}/records?partition=1e9", 400),
        (f"/topics/{ORDERS}/records?partition=99", 502),
        (f"/topics/{ORDERS}/records?decoder=pickle", 400),
        ("/topics?q=" + "x" * 2000, 400),
        ("/static/../app.py", 404),
        ("/static/%2e%2e/app.py", 404),
    ],
)
def test_wrong_requests_get_a_sentence(pages: TestClient, path: str, status: int) -> None:
    answer = pages.get(path)
    assert answer.status_code == status
    assert "Traceback" not in answer.text


def test_page_after_the_last_is_the_last(pages: TestClient) -> None:
    assert ORDERS in pages.get("/topics?page=1000000").text


def test_broker_that_goes_away_and_returns_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "FRESH_S", 0.0)
    monkeypatch.setattr(snapshot, "REST", 0)
    with broker() as first:
        create_topic(first.bootstrap, "known")
        port, address = first.port, first.bootstrap
        app = application(ConsoleOptions(address, ("127.0.0.1",)))
        with TestClient(app, base_url="http://127.0.0.1") as pages:
            assert "known" in pages.get("/topics").text
            first_page = pages.get("/").text
            assert "The broker does not answer" not in first_page
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        assert pages.get("/health").json() == {
            "state": "broken",
            "brief": "The broker does not answer",
            "failure": pages.get("/health").json()["failure"],
        }
        gone = pages.get("/topics").text
        assert "The broker does not answer" in gone
        assert "known" in gone, "what was known is shown with its age"
        assert pages.get("/topics/known").status_code == 502
        with broker(port=port) as second:
            create_topic(second.bootstrap, "later")
            back = pages.get("/topics").text
            assert pages.get("/health").json() == {
                "state": "well", "brief": "All well", "failure": "",
            }  # fmt: skip
            assert "The broker does not answer" not in back
            assert "later" in back


def test_numbers_and_times_for_people() -> None:
    assert (number(None), number(1234567)) == ("–", "1,234,567")  # noqa: RUF001
    assert [percent(share) for share in (None, 0, 0.0001, 0.5, 0.9999, 1)] == [
        "–", "0 %", "1 %", "50 %", "99 %", "100 %",  # noqa: RUF001
    ]  # fmt: skip
    assert utc(1_700_000_000_123) == "2023-11-14 22:13:20.123Z"
    assert utc(-1) == "no time"
    assert utc(2**62) == f"@{2**62}"
    assert link("topics", "a/b", q="x&y", page=None) == "/topics/a%2Fb?q=x%26y"
