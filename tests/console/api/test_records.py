"""Records over HTTP by curl and httpx2: produce, pages, long polling, events, and hostile input.

Covers: kafkawire.console.api.records, kafkawire.console.api.record_json,
kafkawire.console.views.produce, kafkawire.console.views.tail.
"""

from __future__ import annotations

import json
import subprocess
import threading
from base64 import b64encode
from typing import Any

import httpx2
import pytest
from confluent_kafka import Consumer, TopicPartition

from kafkawire.client.cluster import Cluster
from kafkawire.codec.batches import Record
from kafkawire.console.api.record_json import found_record, read_record, record_json
from kafkawire.console.views.produce import NewRecord, RecordProducer
from kafkawire.console.web.queries import WrongInput
from kafkawire.testing import InProcessBroker, TopicProducer, create_topic
from kafkawire.testing.process import BrokerProcess
from tests.console.api.conftest import console, curl

pytestmark = pytest.mark.real
BYTES = bytes(range(256))


def test_curl_produces_what_a_real_consumer_reads(
    running: InProcessBroker, url: str, topic: str
) -> None:
    path = f"{url}/api/topics/{topic}/records"
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "text é", "partition": 0, "timestamp": 1_700_000_000_000,
         "headers": [{"key": "a", "value": "1"}, {"key": "a", "value": None},
                     {"key": "b", "value_base64": b64encode(BYTES).decode()}]},
        {"key_base64": b64encode(BYTES).decode(), "value": None, "partition": 0},
        {"value_base64": b64encode(BYTES).decode(), "partition": 0},
        {"value": "", "partition": 0},
    ]  # fmt: skip
    answer = curl(path, data={"records": records})
    assert answer == {"records": [{"partition": 0, "offset": at} for at in range(4)]}
    raw = ["-H", "Content-Type: application/octet-stream", "--data-binary", "raw\n\x01"]
    assert curl(f"{path}?key=k&partition=0", *raw)["records"] == [{"partition": 0, "offset": 4}]
    consumer = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "none"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = consumer.consume(5, timeout=60)
    finally:
        consumer.close()
    assert [(each.key(), each.value()) for each in found] == [
        (b"k", "text é".encode()), (BYTES, None), (None, BYTES), (None, b""), (b"k", b"raw\n\x01"),
    ]  # fmt: skip
    assert found[0].headers() == [("a", b"1"), ("a", None), ("b", BYTES)]
    assert found[0].timestamp() == (1, 1_700_000_000_000)
    shown = curl(f"{path}?where=offset&partition=0&at=0")["records"]
    assert shown[0] == {**records[0], "offset": 0}
    assert [{"key_base64", "value"} <= set(each) for each in shown][1]
    assert shown[2]["value_base64"] == b64encode(BYTES).decode()


def test_keys_choose_the_partition_that_kafkas_clients_choose(
    running: InProcessBroker, url: str, topic: str
) -> None:
    keys = [f"key-{number}" for number in range(20)]
    records = [{"key": key, "value": ""} for key in keys]
    answer = curl(f"{url}/api/topics/{topic}/records", data={"records": records})
    found = [each["partition"] for each in answer["records"]]
    producer = TopicProducer(running.bootstrap)
    for key in keys:
        producer.send(topic, b"", key=key.encode())
    again = curl(f"{url}/api/topics/{topic}/records?where=oldest&limit=100")["records"]
    by_key = {each["key"]: set[int]() for each in again}
    for each in again:
        by_key[each["key"]].add(each["partition"])
    assert by_key == {key: {at} for key, at in zip(keys, found, strict=True)}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b"[" * 1_000_000, "JSON"),
        (b'{"records": ' + b"9" * 10_000 + b"}", "JSON"),
        (b'{"records": []}', "1 to 10000"),
        (b'{"records": [{}]}', "records[0].value"),
        (b'{"records": [{"value": {"a": 1}}]}', "bytes are in value_base64"),
        (b'{"records": [{"value": "a", "value_base64": "YQ=="}]}', "without value"),
        (b'{"records": [{"value_base64": "YQ"}]}', "base64 with padding"),
        (b'{"records": [{"value": "\\ud800"}]}', "records[0].value"),
        (b'{"records": [{"value": "a", "partition": -1}]}', "records[0].partition=-1"),
        (b'{"records": [{"value": "a", "partition": true}]}', "records[0].partition"),
        (b'{"records": [{"value": "a", "partition": 1.5}]}', "records[0].partition"),
        (b'{"records": [{"value": "a", "timestamp": 9223372036854775808}]}', "timestamp"),
        (b'{"records": [{"value": "a", "headers": {}}]}', "headers"),
        (b'{"records": [{"value": "a", "headers": [{"key": null}]}]}', "headers[0].key"),
        (b'{"records": [{"value": "a", "topic": "b"}]}', "records[0]=topic"),
    ],
    ids=range(17),
)
def test_wrong_bodies_get_a_sentence(url: str, topic: str, body: bytes, sentence: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx2.post(
        f"{url}/api/topics/{topic}/records", content=body, headers=headers, timeout=60
    )
    assert answer.status_code == 400, answer.text
    assert sentence in answer.json()["error"]
    assert curl(f"{url}/api/topics/{topic}/records")["records"] == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/api/topics/{}/records", {"Content-Type": "text/plain"}, 415),
        ("POST", "/api/topics/{}/records", {}, 415),
        ("POST", "/api/topics/{}/records", {"Content-Type": "application/x-www-form-urlencoded"},
         415),
        ("POST", "/api/topics/{}/records", {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/topics/{}/records", {"Cookie": "a=b"}, 403),
        ("POST", "/api/topics/{}/records", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("DELETE", "/api/topics/{}", {"Referer": "http://evil.example/"}, 403),
        ("POST", "/topics", {}, 403),
        ("GET", "/api/topics/{}/records", {"Sec-Fetch-Site": "cross-site",
                                           "Sec-Fetch-Mode": "cors"}, 403),
        ("GET", "/api/topics/{}/records", {"Host": "evil.example"}, 421),
        ("GET", "/api/topics/{}/records?limit=501", {}, 400),
        ("GET", "/api/topics/{}/records?wait=61", {}, 400),
        ("GET", "/api/topics/{}/records?encoding=hex", {}, 400),
        ("GET", "/api/topics/{}/events?after=x", {}, 400),
        ("GET", "/api/topics/{}/events", {"Last-Event-ID": "0:x"}, 400),
        ("GET", "/api/topics/{}/records?partition=99", {}, 502),
        ("GET", "/api/topics/%2e%2e/records", {}, 400),
        ("GET", "/api/topics?q=" + "x" * 9000, {}, 414),
        ("PATCH", "/api/topics", {}, 405),
        ("GET", "/api/absent", {}, 404),
        ("POST", "/api/group/offsets?name=g", {"Content-Type": "application/json"}, 400),
    ],
    ids=range(21),
)  # fmt: skip
def test_wrong_requests_get_a_status(
    url: str, topic: str, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = httpx2.request(method, url + path.format(topic), headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    assert "Traceback" not in answer.text
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_failed_records_have_their_reasons(url: str, topic: str) -> None:
    records = [{"value": "a", "partition": 0}, {"value": "b", "partition": 99}]
    path = f"{url}/api/topics/{topic}/records"
    answer = curl(path, data={"records": records}, status=404)
    stored, refused = answer["records"]
    assert stored == {"partition": 0, "offset": 0}
    assert refused["offset"] is None
    assert answer["error"] == refused["error"] == f"partition=99: topic {topic} has 3 partitions."
    large = {"records": [{"value": "x" * 1_200_000}]}
    assert "MESSAGE_TOO_LARGE" in curl(path, data=large, status=413)["error"]
    curl(path, data={"records": [{"value": "x" * 3_000_000}]}, status=413)
    assert curl(path, data={"records": [{"value": "after"}]})["records"][0]["offset"] >= 0
    curl(f"{url}/api/topics/absent/records", data={"records": [{"value": ""}]}, status=404)


def test_next_reads_every_record_once_and_waits_for_more(url: str, topic: str) -> None:
    path = f"/api/topics/{topic}/records"
    numbers = [str(number) for number in range(25)]
    for at in range(0, 25, 5):
        curl(url + path, data={"records": [{"value": each} for each in numbers[at : at + 5]]})
    found, following = [], f"{path}?where=oldest&limit=7"
    for _ in range(5):
        page = curl(url + following)
        found += [each["value"] for each in page["records"]]
        following = page["next"]
    assert sorted(found, key=int) == numbers
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(curl(f"{url}{following}&wait=60")))
    waiting.start()
    curl(url + path, data={"records": [{"value": "later"}]})
    waiting.join(60)
    assert [each["value"] for each in answers[0]["records"]] == ["later"]
    assert curl(f"{url}{answers[0]['next'].replace('wait=60', 'wait=1')}")["records"] == []


def test_newest_pages_go_back_to_the_first_record(url: str, topic: str) -> None:
    path = f"/api/topics/{topic}/records"
    curl(url + path, data={"records": [{"value": str(at), "partition": 0} for at in range(9)]})
    found, following = [], f"{path}?limit=4"
    while following:
        page = curl(url + following)
        found += [each["value"] for each in page["records"]]
        following = page["next"]
    assert found == [str(at) for at in reversed(range(9))]


def read_events(
    url: str, count: int, headers: dict[str, str] | None = None, then: Any = None
) -> tuple[list[Any], str]:
    """Return `count` records of a stream of events, and the ID of the last; call `then` when it is
    open."""
    found: list[Any] = []
    last = ""
    with httpx2.stream("GET", url, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if then is not None:
                then()
                then = None
            if line.startswith("id: "):
                last = line[4:]
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if len(found) == count:
                    break
    return found, last


def test_events_resume_after_the_last_one(url: str, topic: str) -> None:
    path = f"{url}/api/topics/{topic}"

    def write(first: int, last: int) -> None:
        records = [{"value": str(at), "key": str(at)} for at in range(first, last)]
        curl(f"{path}/records", data={"records": records})

    found, last = read_events(f"{path}/events", 5, then=lambda: write(0, 12))
    more, last = read_events(f"{path}/events", 7, {"Last-Event-ID": last})
    values = [each["value"] for each in found + more]
    assert sorted(values, key=int) == [str(at) for at in range(12)]
    (only,), _ = read_events(f"{path}/events?where=oldest&key=7", 1)
    assert only["value"] == "7"
    later, _ = read_events(f"{path}/events", 1, {"Last-Event-ID": last}, then=lambda: write(12, 13))
    assert later[0]["value"] == "12"


def test_console_that_only_reads_produces_nothing(running: InProcessBroker, topic: str) -> None:
    with console(running.bootstrap) as url:
        for path, body in (
            (f"/api/topics/{topic}/records", {"records": [{"value": ""}]}),
            ("/api/topics", {"name": "never"}),
            ("/api/group/offsets?name=g", {"topic": topic, "where": "oldest"}),
        ):
            assert "--allow-changes" in curl(url + path, data=body, status=403)["error"]
        curl(f"{url}/api/topics/{topic}", "-X", "DELETE", status=403)
        assert curl(f"{url}/api/topics/{topic}/records")["records"] == []


def test_broker_that_is_killed_loses_nothing_that_was_answered(tmp_path: Any) -> None:
    with (
        BrokerProcess(data=tmp_path / "kept") as broker,
        console(broker.bootstrap, "--allow-changes") as url,
    ):
        create_topic(broker.bootstrap, "kept")
        path = f"{url}/api/topics/kept/records"
        first = curl(path, data={"records": [{"value": "before"}]})["records"]
        broker.kill()
        curl(f"{path}?where=oldest", status=502)
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(curl(path, data={"records": [{"value": "during"}]}))
        )
        waiting.start()
        broker.start()
        waiting.join(90)
        assert first == [{"partition": 0, "offset": 0}]
        assert answers[0]["records"] == [{"partition": 0, "offset": 1}]
        found = curl(f"{path}?where=oldest")["records"]
        assert [each["value"] for each in found] == ["before", "during"]


def test_many_single_records_share_requests(running: InProcessBroker) -> None:
    create_topic(running.bootstrap, "shared")
    producer = RecordProducer(lambda: Cluster(running.bootstrap), True)
    asked = [producer.queue("shared", [NewRecord(None, b"%d" % number)]) for number in range(500)]
    offsets = [future.result(60)[0].offset for future in asked]
    producer.close()
    assert offsets == list(range(500))


def test_records_keep_their_bytes_as_json() -> None:
    headers = [("é", BYTES), ("\udcff", None)]
    for key, value in ((None, b""), (BYTES, None), (b"a", b'{"b": 1}')):
        found = found_record(1, Record(5, 7, key, value, headers))
        for base64 in (False, True):
            shown = json.loads(json.dumps(record_json(found, base64)))
            del shown["offset"]
            assert read_record(shown, "x") == NewRecord(key, value, headers, 1, 7)
    with pytest.raises(WrongInput):
        read_record({"value": "a" * 10, "headers": [{"key": "a"}] * 101}, "x")


def test_curl_waits_for_a_record_of_another_shell(url: str, topic: str) -> None:
    path = f"{url}/api/topics/{topic}"
    with subprocess.Popen(
        ["curl", "-sN", "--max-time", "60", f"{path}/events"], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        tail.stdout.readline()  # the stream is open
        curl(f"{path}/records", data={"records": [{"value": "seen"}]})
        line = next(line for line in tail.stdout if line.startswith("data: "))
        tail.terminate()
    assert json.loads(line[6:])["value"] == "seen"
