"""The Records page: filters, Kafka's internal topics, live records, files, and the search box.

Covers: kafkawire.console.pages.records, kafkawire.console.views.record_filter,
kafkawire.console.views.internal_records, kafkawire.console.views.live_records,
kafkawire.console.views.downloads, kafkawire.console.views.search, kafkawire.console.views.copy_as,
kafkawire.codec.record_text.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.codec.batches import Record
from kafkawire.console.app import application
from kafkawire.console.pages import records
from kafkawire.console.views import downloads, live_records
from kafkawire.console.views.copy_as import copy_as
from kafkawire.console.views.internal_records import decode_pair
from kafkawire.console.views.live_records import TopicFollower
from kafkawire.console.views.record_filter import FilterRefused, compile_test
from kafkawire.console.views.records import RecordOrder, RecordQuery, read_records
from kafkawire.console.views.search import find_target
from kafkawire.console.views.snapshot import Known
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.rendering import link
from kafkawire.testing import InProcessBroker, TopicProducer, create_topic
from tests.console.conftest import ORDERS, RECORDS

SALES = "sales"
BIG = b"x" * 100_000


@pytest.fixture(scope="module")
def sales(running: InProcessBroker) -> str:
    """A topic with a record of each kind of content."""
    create_topic(running.bootstrap, SALES)
    producer = TopicProducer(running.bootstrap)
    producer.send(
        SALES, b'{"total": 7, "buyer": {"name": "Ann"}}', key=b"a", headers=[("type", b"new")]
    )
    producer.send(SALES, b'{"total": 3}', key=b"b", headers=[("type", b"old")])
    producer.send(SALES, b"=1+1", key=b"\xff\x00")
    producer.send(SALES, BIG, key=b"big")
    producer.send(SALES, None, key=b"a")
    return SALES


@pytest.fixture
def cluster(running: InProcessBroker) -> Iterator[Cluster]:
    with Cluster(running.bootstrap) as opened:
        yield opened


@pytest.mark.parametrize(
    ("asked", "offsets"),
    [
        ({"filter": "value.total > 5"}, [0]),
        ({"filter": "value.buyer.name == 'Ann' and key == 'a'"}, [0]),
        ({"filter": "header('type') in ('new', 'old') and not value.total >= 7"}, [1]),
        ({"filter": "timestamp > '2020-01-01'", "key": "a"}, [0, 4]),
        ({"pattern": "^x{99}"}, [3]),
        ({"pattern": r'"total":\s*\d}'}, [1]),
        ({"pattern": "^n[a-z]w$"}, [0]),  # the value of a header
        ({"pattern": "^typ"}, [0, 1]),
        ({"text": "Ann", "pattern": "total"}, [0]),
        ({"key": "big", "filter": "value.total == 1"}, []),
    ],
)
def test_filters_keep_what_they_say(
    cluster: Cluster, sales: str, asked: dict[str, str], offsets: list[int]
) -> None:
    found = read_records(cluster, RecordQuery(sales, RecordOrder.FORWARD, **asked))  # type: ignore[arg-type]
    assert [each.offset for each in found.records] == offsets
    assert found.sentence.startswith("Searched offsets 0 to 5 of 0 to 5 in partition 0: ")
    assert found.sentence.endswith("stopped because the end of the log was reached.")


def test_filters_that_explode_elsewhere_are_harmless() -> None:
    """A backtracking engine would need the age of the universe."""
    record = Record(0, 0, b"a" * 5_000 + b"!", b"{" * 5_000)
    assert not compile_test(None, "", "", "(a|a)*(aa?)*(a*)*b$")(record)
    assert not compile_test(None, "", "value.a == 1", "")(record)
    for filter_text, pattern in (
        ("value.a ==", ""),
        ("", "("),
        ("", "((a{100}){100}){100}"),
        ("", "(?<=a)b"),
    ):
        with pytest.raises(FilterRefused):
            compile_test(None, "", filter_text, pattern)


@pytest.mark.parametrize("query", ["filter=value.a+%3D%3D", "pattern=%28", "filter=import+os"])
def test_wrong_filters_get_a_sentence(pages: TestClient, sales: str, query: str) -> None:
    answer = pages.get(f"/topics/{sales}/records?{query}")
    assert answer.status_code == 400
    assert "it must be a valid" in answer.text


def test_search_for_a_key_is_one_step(pages: TestClient, sales: str) -> None:
    text = pages.get(link("search", q=f"{sales} key=b")).text
    assert ": 1 match" in text
    assert "&#34;total&#34;: 3" in text


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (f"{ORDERS}@5", f"/topics/{ORDERS}/records?after=0%3A5%2C1%3A5%2C2%3A5"),
        (f"{ORDERS}:2@5", f"/topics/{ORDERS}/records?where=offset&partition=2&at=5"),
        (ORDERS, f"/topics/{ORDERS}"),
        (f"  {ORDERS}  key=a b@1 ", f"/topics/{ORDERS}/records?key=a+b%401"),
        ("found", "/group?name=found"),
        ("ord", "/topics?q=ord"),
        ("a b", "/topics?q=a+b"),
        ("//evil.example", "/topics?q=%2F%2Fevil.example"),
        ("", "/topics"),
    ],
)
def test_search_box_leads_straight_there(
    cluster: Cluster, pages: TestClient, text: str, path: str
) -> None:
    call_coordinator(lambda: commit(cluster, "found", {(ORDERS, 0): 1}))
    answer = pages.get(link("search", q=text), follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert find_target(Known(), "t@7") == (("topics", "t", "records"), {"after": "0:7"})


def test_records_of_internal_topics_are_decoded(cluster: Cluster, pages: TestClient) -> None:
    call_coordinator(lambda: commit(cluster, "decoded", {(ORDERS, 1): 17}))
    text = pages.get("/topics/__consumer_offsets/records?text=decoded").text
    assert "&#34;group&#34;: &#34;decoded&#34;" in text
    assert "&#34;offset&#34;: 17" in text


def test_wrong_decoder_shows_bytes_and_the_reason() -> None:
    for topic, key in (
        ("t", b"k"),
        ("__consumer_offsets", b"\0\x09ab"),
        ("__transaction_state", b"k"),
    ):
        for found in decode_pair(topic, key, b"value", "internal"):
            assert found.kind == "hex"
            assert found.note.startswith("not ")
    shown = decode_pair("__share_group_state", b"\0\0\0", b"v")[0]
    assert shown.note.startswith("not Kafka's format: ")
    assert decode_pair("t", b"k", None) == decode_pair("__consumer_offsets", b"k", None, "text")


@pytest.mark.real
def test_transactions_have_their_outcome(running: InProcessBroker, pages: TestClient) -> None:
    create_topic(running.bootstrap, "moved")
    producer = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": "mover"})
    producer.init_transactions(60)
    for outcome in (producer.commit_transaction, producer.abort_transaction, producer.flush):
        producer.begin_transaction()
        producer.produce("moved", outcome.__name__)
        producer.flush(60)
        outcome(60)
    text = pages.get("/topics/moved/records?where=oldest&limit=9").text
    states = re.findall(r"epoch \d+, (\w+) transaction", text)
    producer.abort_transaction(60)
    assert states == ["committed", "aborted", "open"]
    decoded = pages.get("/topics/__transaction_state/records?text=mover").text
    assert "&#34;transactional_id&#34;: &#34;mover&#34;" in decoded


def test_file_of_json_lines_has_all_and_says_when_it_is_cut(
    pages: TestClient, sales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"/topics/{ORDERS}/records/file?where=oldest&limit=50000"
    answer = pages.get(url)
    assert answer.headers["content-disposition"] == 'attachment; filename="records.jsonl"'
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows) == RECORDS
    assert rows[0]["topic"] == ORDERS
    bytes_row = json.loads(
        pages.get(f"/topics/{sales}/records/file?where=offset&partition=0&at=2&limit=1").text
    )
    assert bytes_row["key"] == {"base64": "/wA="}
    monkeypatch.setattr(downloads, "MAX_FILE_BYTES", 500)
    last = json.loads(pages.get(url).text.splitlines()[-1])
    assert last["cut"].startswith("The file is cut: it has ")
    monkeypatch.undo()
    monkeypatch.setattr(downloads, "MAX_PAGES", 1)
    monkeypatch.setattr(downloads, "MAX_RECORDS", 10)
    last = json.loads(pages.get(url).text.splitlines()[-1])
    assert last == {"cut": "The file is cut: 1 searches were made, the bound of one file."}
    assert pages.get("/topics/absent/records/file").status_code == 404
    assert pages.get(url + "&format=xml").status_code == 400


def test_cells_of_csv_are_no_formulas(pages: TestClient, sales: str) -> None:
    answer = pages.get(f"/topics/{sales}/records/file?where=oldest&format=csv&limit=50000")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[2]["value"] == "'=1+1"
    assert rows[2]["key"] == "base64:/wA="
    assert rows[0]["headers"] == '[["type", "new"]]'


def test_large_values_are_cut_and_can_be_downloaded(pages: TestClient, sales: str) -> None:
    text = pages.get(f"/topics/{sales}/records?key=big").text
    assert "the first 65,536 of 100,000 bytes" in text
    assert len(text) < 90_000
    url = f"/topics/{sales}/records/bytes?partition=0&offset=3"
    assert url.replace("&", "&amp;") in text
    answer = pages.get(url)
    assert answer.content == BIG
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "attachment" in answer.headers["content-disposition"]
    assert pages.get(url + "&part=key").content == b"big"
    assert pages.get(f"/topics/{sales}/records/bytes?partition=0&offset=99").status_code == 410


def test_commands_to_copy_are_quoted() -> None:
    curl, kcat, python = copy_as("http://h/?a=1&b='", "h:1", "o'x", 2, 3)
    assert shlex.split(curl.text) == ["curl", "http://h/?a=1&b='"]
    assert shlex.split(kcat.text) == [
        "kcat",
        "-b",
        "h:1",
        "-C",
        "-t",
        "o'x",
        "-p",
        "2",
        "-o",
        "3",
        "-c",
        "1",
    ]
    compile(python.text, "copied", "exec")


def test_live_records_begin_at_the_end_and_skip_what_is_too_much(
    running: InProcessBroker, cluster: Cluster
) -> None:
    create_topic(running.bootstrap, "busy", partitions=20)
    producer = TopicProducer(running.bootstrap)
    producer.send("busy", b"before", partition=0)
    live, filtered = (
        TopicFollower(RecordQuery("busy")),
        TopicFollower(RecordQuery("busy", text="odd")),
    )
    assert live.read_new(cluster, 1) == ([], 0, "")
    filtered.read_new(cluster, 1)
    for number in range(5):
        producer.send("busy", b"odd" if number % 2 else b"even", partition=number)
    found = live.read_new(cluster, 1)
    assert sorted((each.partition, each.offset) for each in found.records) == [
        (0, 1), (1, 0), (2, 0), (3, 0), (4, 0),
    ]  # fmt: skip
    assert found.skipped == 0
    assert {each.partition for each in filtered.read_new(cluster, 1).records} == {1, 3}
    assert live.read_new(cluster, 1).records == []
    for number in range(live_records.AT_MOST_BEHIND + 50):
        producer.send("busy", b"%d" % number, partition=0)
    found = live.read_new(cluster, 1)
    assert len(found.records) == live_records.MAX_ROWS
    assert found.records[0].value == b"%d" % (live_records.AT_MOST_BEHIND + 49)
    assert found.skipped == live_records.AT_MOST_BEHIND + 50 - live_records.MAX_ROWS
    assert live.read_new(cluster, 1) == ([], 0, "")
    # More partitions than one poll reads, and each has new records all the time.
    seen = set()
    for _ in range(2):
        for index in range(20):
            producer.send("busy", b"last", partition=index)
        seen |= {each.partition for each in live.read_new(cluster, 1).records}
    assert seen == set(range(20))


def test_live_page_streams_and_ends_with_its_reader(
    running: InProcessBroker, pages: TestClient, sales: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TestClient reads a stream to its end, so the console stops it."""
    monkeypatch.setattr(records, "MAX_LIVE", 1)
    monkeypatch.setattr(records, "LIVE_CHECKS", 1)
    page = pages.get(f"/topics/{sales}/records?live=1&decoder=text").text
    assert f'hx-sse:connect="/topics/{sales}/records/live?decoder=text&amp;limit=50"' in page
    assert "Pause" in page
    options = ConsoleOptions(running.bootstrap, ("127.0.0.1",))
    polls = 0

    def stopping() -> bool:
        nonlocal polls
        polls += 1
        if polls == 3:
            TopicProducer(running.bootstrap).send(sales, b"<b>live</b>", key=b"live-key")
        return polls > 8

    with TestClient(application(options, stopping), base_url="http://127.0.0.1:8080") as streaming:
        for _ in range(2):  # the first ends, and gives its place to the next
            polls = 0
            answer = streaming.get(f"/topics/{sales}/records/live?decoder=text")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
    assert "No new record yet." in answer.text
    assert "&lt;b&gt;live&lt;/b&gt;" in answer.text
    assert "live-key" in answer.text
