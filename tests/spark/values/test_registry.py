"""The client of a schema registry, against one over HTTP."""

from __future__ import annotations

import socket

import pytest

from kafkawire_spark.pipeline.values import registry as module
from kafkawire_spark.pipeline.values.registry import Registry, RegistryError, RegistryUnavailable
from tests.kit.spark.registry import FakeRegistry

TEXT = '"string"'


def test_schema_by_id_is_fetched_once(fake: FakeRegistry) -> None:
    number = fake.register("orders-value", TEXT)
    client = Registry(fake.url + "/")
    assert client.schema(number) == ("AVRO", TEXT, ())
    assert client.schema(number) == ("AVRO", TEXT, ())
    assert client.schema(99) is None
    assert client.schema(99) is None
    assert fake.requests == [f"/schemas/ids/{number}", "/schemas/ids/99"]


def test_schema_by_subject_and_version(fake: FakeRegistry) -> None:
    fake.register("a/b c", TEXT)
    fake.register("a/b c", '"long"')
    client = Registry(fake.url)
    assert client.version("a/b c").text == '"long"'
    assert client.version("a/b c", "1").text == TEXT
    assert fake.requests[0] == "/subjects/a%2Fb%20c/versions/latest"
    with pytest.raises(RegistryError, match=r"has no version 3 of the subject 'a/b c'"):
        client.version("a/b c", 3)
    with pytest.raises(RegistryError, match="has no subject 'none': set subject if the schema is"):
        client.version("none")


def test_references_over_levels(fake: FakeRegistry) -> None:
    fake.register("low", '"int"')
    fake.register("middle", '"long"', references=[("n.Low", "low", 1)])
    fake.register("top", TEXT, references=[("n.Middle", "middle", 1), ("n.Low", "low", 1)])
    client = Registry(fake.url)
    needed = client.fetch_references(client.version("top"))
    assert [(name, one.text) for name, one in needed.items()] == [
        ("n.Low", '"int"'),
        ("n.Middle", '"long"'),
    ]


def test_circular_references_are_refused(fake: FakeRegistry) -> None:
    fake.register("a", TEXT, references=[("B", "b", 1)])
    fake.register("b", TEXT, references=[("A", "a", 1), ("B", "b", 1)])
    client = Registry(fake.url)
    assert set(client.fetch_references(client.version("a"))) == {"A", "B"}


def test_user_and_password(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.register("s", TEXT)
    fake.password = "me:se cret"
    with pytest.raises(RegistryError, match=f"answers 401: set {module.USER_INFO}=USER:PASSWORD"):
        Registry(fake.url).version("s")
    monkeypatch.setenv(module.USER_INFO, "me:wrong cret")
    with pytest.raises(RegistryError, match=r"answers 401: the user or the password .* is wrong"):
        Registry(fake.url).version("s")
    monkeypatch.setenv(module.USER_INFO, "me:se cret")
    assert Registry(fake.url).version("s").text == TEXT
    monkeypatch.delenv(module.USER_INFO)
    client = Registry(fake.url.replace("//", "//me:se%20cret@"))
    assert client.version("s").text == TEXT
    with pytest.raises(RegistryError) as raised:
        client.version("none")
    assert "cret" not in str(raised.value)


def test_transient_errors_are_retried(fake: FakeRegistry) -> None:
    fake.register("s", TEXT)
    fake.failures = [500, 503, 429]
    assert Registry(fake.url).version("s").text == TEXT
    assert len(fake.requests) == 4
    fake.failures = [500] * 10
    with pytest.raises(RegistryUnavailable, match=r"/subjects/s/versions/latest answers 500"):
        Registry(fake.url).version("s")
    assert len(fake.requests) == 4 + module.TRIES
    fake.failures = [403]
    with pytest.raises(RegistryError, match="answers 403"):
        Registry(fake.url).version("s")
    assert len(fake.requests) == 5 + module.TRIES


def test_not_found_of_a_proxy_is_not_an_unknown_schema(fake: FakeRegistry) -> None:
    """A record must not become a dead letter because the registry's proxy knows no such path."""
    fake.register("s", TEXT, number=7)
    fake.failures = [404]
    client = Registry(fake.url)
    with pytest.raises(RegistryError, match="answers 404, but not as a registry does"):
        client.schema(7)
    assert client.schema(7) == ("AVRO", TEXT, ())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://[::1]:8081/path/", "http://[::1]:8081/path"),
        ("https://me:secret@[::1]", "https://[::1]"),
        ("http://Host:80", "http://Host:80"),
    ],
)
def test_addresses_are_kept_without_the_login(url: str, address: str) -> None:
    assert Registry(url).url == address


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": 5}',
        b'{"schema": "x", "references": [{"name": "a"}]}',
        b'{"schema": "x", "references": [5]}',
    ],
)
def test_invalid_responses_are_reported(fake: FakeRegistry, body: bytes) -> None:
    fake.failures = [body]
    with pytest.raises(RegistryError, match=r"does not answer|without a version"):
        Registry(fake.url).schema(1)


def test_too_large_response_is_refused(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 100)
    fake.register("s", '"' + "x" * 200 + '"')
    with pytest.raises(RegistryError, match="does not answer with a schema"):
        Registry(fake.url).version("s")


def test_lookups_of_unknown_ids_are_bounded(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNKNOWN_MAX", 3)
    client = Registry(fake.url)
    assert [client.schema(number) for number in range(10)] == [None] * 10
    assert len(fake.requests) == 3


def test_unknown_ids_are_looked_up_again_later(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNKNOWN_MAX", 1)
    client = Registry(fake.url)
    assert client.schema(8) is None
    for number in (8, 9):
        fake.register("s", TEXT, number=number)
        assert client.schema(number) is None
    monkeypatch.setattr(module, "UNKNOWN_S", 0.0)
    assert [client.schema(number) for number in (8, 9)] == [("AVRO", TEXT, ())] * 2


def test_unreachable_registry_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(
        RegistryUnavailable, match=rf"127\.0\.0\.1:{port}/schemas/ids/1 cannot be reached"
    ):
        Registry(f"http://127.0.0.1:{port}").schema(1)


@pytest.mark.parametrize(
    "url", ["", "localhost:8081", "ftp://x", "http://", "http://x:y", "http://[1"]
)
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(RegistryError, match="must be like http://HOST:8081"):
        Registry(url)
