"""Azure Blob Storage: URLs, credentials, errors that Azurite cannot be made to give, and a broker
whose tier it is.

Covers: kafkawire.objectstore.azure, kafkawire.objectstore.azure_blob.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kafkawire.objectstore.azure import read_credential
from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import (
    ConditionFailed,
    NoSuchObject,
    Refused,
    SlowDown,
    StoreError,
)
from kafkawire.objectstore.open import make_provider
from kafkawire.objectstore.overlap import overlap, same_place
from kafkawire.objectstore.port import Provider
from kafkawire.objectstore.url import parse_tier
from kafkawire.reading.files.open import open_place
from kafkawire.testing.contracts import STORE_CHECKS, StoreCheck, name_of
from kafkawire.testing.process import BrokerProcess
from tests.kit.s3_stub import Reply, serving
from tests.kit.waiting import wait_until

PART_BYTES = 5 << 20


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("azure://account", "'' is no container"),
        ("azure://account/c", "'c' is no container, 3 to 63"),
        ("azure://account/Upper", "'Upper' is no container"),
        ("azure://account/two--hyphens", "is no container"),
        ("azure://ACCOUNT/container", "'ACCOUNT' is no storage account"),
        ("azure://account/container?key=x", "the option 'key' is not known"),
        ("azure://account/container?endpoint=host", "must be http://HOST:PORT"),
        ("azure://hush:hush@account/container", "holds credentials"),
        ("azure:///container", "is no bucket"),
        ("azure://account/container/../x", "begins with a dot"),
    ],
)
def test_invalid_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_tier(url)
    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


def test_url_is_canonical_and_has_its_own_keys() -> None:
    tier = parse_tier("azure://account/container/a b/?create=false&endpoint=http://127.0.0.1:1/")
    assert tier.url == (
        "azure://account/container/a%20b?endpoint=http%3A%2F%2F127.0.0.1%3A1&create=false"
    )
    assert parse_tier(tier.url) == tier
    assert tier.inside("nodes/2").outside("nodes/2") == tier
    assert same_place("azure://account/container/x?create=false", "azure://account/container/x")
    assert overlap("azure://account/container", "azure://account/container/nodes/1")
    assert not overlap("s3://account/container", "azure://account/container")


@pytest.mark.parametrize(
    ("environ", "credential"),
    [
        ({}, None),
        ({"AZURE_STORAGE_KEY": "k"}, "k"),
        ({"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=x"}, "sv=1&sig=x"),
        (
            {
                "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=a2V5==;X=y",
                "AZURE_STORAGE_KEY": "k",
            },
            "a2V5==",
        ),
    ],
)
def test_credentials_of_the_environment(environ: dict[str, str], credential: str | None) -> None:
    assert read_credential(environ) == credential


def test_missing_credentials_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECTION_STRING", "KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    with pytest.raises(Refused, match=r"^NoCredentials: .* set AZURE_STORAGE_KEY"):
        make_provider(parse_tier("azure://account/container"), PART_BYTES, 1, 1)


def failed(status: int, code: str) -> Reply:
    return Reply(status, b"", {"x-ms-error-code": code} if code else {})


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failed(404, "BlobNotFound"), NoSuchObject),
        (failed(404, "ContainerNotFound"), Refused),
        (failed(409, "ContainerBeingDeleted"), Refused),
        (failed(412, "ConditionNotMet"), ConditionFailed),
        (failed(409, "BlobAlreadyExists"), ConditionFailed),
        (failed(412, "LeaseIdMissing"), Refused),
        (failed(403, "AuthenticationFailed"), Refused),
        (failed(400, "InvalidHeaderValue"), Refused),
        (failed(400, "Md5Mismatch"), StoreError),
        (failed(503, "ServerBusy"), SlowDown),
        (failed(429, ""), SlowDown),
        (failed(500, "InternalError"), StoreError),
        (failed(500, "OperationTimedOut"), StoreError),
    ],
)
def test_errors_are_those_of_the_port(
    reply: Reply, kind: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    with serving(lambda method, path, headers: reply) as stub:
        tier = parse_tier(f"azure://account/container?endpoint={stub.endpoint}")
        store = make_provider(tier, PART_BYTES, 1, 1, seen=True)
        asked: list[Callable[[], Any]] = [
            lambda: store.head("k", Call()),
            lambda: store.get("k", 0, None, Call()),
            lambda: store.list("", "", 1, Call()),
        ]
        if kind is not NoSuchObject:  # as the answer to a PUT: its condition is not met
            asked.append(lambda: store.put("k", b"", None, True, Call()))
        for ask in asked:
            stub.asked.clear()
            with pytest.raises(StoreError) as caught:
                ask()
            assert type(caught.value) is kind
            assert len(stub.asked) == 1  # the caller decides about retries
            assert "\n" not in str(caught.value)


def test_unreachable_account_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    with serving(lambda method, path, headers: failed(500, "")) as stub:
        endpoint = stub.endpoint
    store = make_provider(parse_tier(f"azure://account/container?endpoint={endpoint}"), 1, 1, 1)
    with pytest.raises(StoreError) as caught:
        store.get("k", 0, None, Call())
    assert type(caught.value) is StoreError


@pytest.mark.real
@pytest.mark.parametrize("check", STORE_CHECKS, ids=name_of)
def test_contract(check: StoreCheck, azure_url: str) -> None:
    check(opened(azure_url))


@pytest.mark.real
def test_container_is_only_created_if_allowed(azure_url: str) -> None:
    refusing = opened(azure_url + "&create=false")
    for _ in range(2):
        with pytest.raises(Refused, match="does not exist, and create=false forbids"):
            refusing.get("k", 0, None, Call())
    opened(azure_url).put("k", b"", None, False, Call())
    assert refusing.get("k", 0, None, Call())[0] == b""


@pytest.mark.real
def test_wrong_key_is_refused(azure_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "d3Jvbmc=")
    with pytest.raises(Refused, match=r"AuthorizationFailure|AuthenticationFailed"):
        opened(azure_url).put("k", b"", None, False, Call())


@pytest.mark.real
@pytest.mark.slow
def test_records_are_read_from_the_container(azure_url: str, tmp_path: Path) -> None:
    """Of a broker whose local segments are gone, by a real client."""
    settings = {
        "log.local.retention.ms": 0, "journal.roll.ms": 200, "tiering.max.lag.ms": 5000,
        "log.retention.check.interval.ms": 200, "log.segment.delete.delay.ms": 0,
    }  # fmt: skip
    with BrokerProcess(tmp_path / "data", settings=settings,
                       arguments=["--tier", azure_url]) as broker:  # fmt: skip
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(100):
            producer.produce("t", b"%d" % number)
        assert producer.flush(60) == 0
        segments = tmp_path / "data"
        place = open_place(azure_url)
        wait_until(lambda: any(key.startswith("segments/") for key in place.list()), "an upload")
        wait_until(lambda: not list(segments.rglob("*.segment")), "no local segment is left")
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        found: list[bytes] = []
        wait_until(lambda: _read(consumer, found) == 100, "all records are read")
        consumer.close()
    assert found == [b"%d" % number for number in range(100)]


def _read(consumer: Consumer, found: list[bytes]) -> int:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        found.append(message.value())
    return len(found)


def opened(url: str) -> Provider:
    return make_provider(parse_tier(url), PART_BYTES, 8, 4)
