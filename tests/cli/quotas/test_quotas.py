"""`kafkawire quotas` with a broker.

Covers: kafkawire.cli.quotas, kafkawire.client.quotas.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture)
from tests.kit.json_schema import check_document


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("quotas") / "data") as process:
        yield process.bootstrap


@pytest.mark.real
def test_quotas_are_set_listed_and_removed(server: str) -> None:
    def typed(*words: str) -> Typed:
        return Typed(server, "quotas", *words)

    assert typed("list", "--json").json == []
    done = typed("set", "producer_byte_rate=1MB/s", "request_percentage=12.5", "--user", "alice")
    assert done.out == "set 2 quotas of user alice\n"
    done = typed("set", "consumer_byte_rate=1.5KiB/s", "--users-default", "--client-id", "etl")
    assert done.out == "set 1 quota of default user and client-id etl\n"
    assert not typed("set", "controller_mutation_rate=0.5", "--client-ids-default").code
    assert not typed("set", "connection_creation_rate=7", "--ip", "10.0.0.7").code
    assert not typed("set", "connection_creation_rate=9", "--ips-default").code
    rows = check_document(typed("list", "--json").out)
    assert [
        ([(part["type"], part["name"]) for part in row["entity"]], row["quota"], row["value"])
        for row in rows
    ] == [
        ([("client_id", None)], "controller_mutation_rate", 0.5),
        ([("ip", "10.0.0.7")], "connection_creation_rate", 7.0),
        ([("ip", None)], "connection_creation_rate", 9.0),
        ([("user", "alice")], "producer_byte_rate", 1_000_000.0),
        ([("user", "alice")], "request_percentage", 12.5),
        ([("client_id", "etl"), ("user", None)], "consumer_byte_rate", 1536.0),
    ]
    listed = typed("list", "--wide").out
    for text in ("6 quotas", "(default)", "976.6 KiB/s", "1.5 KiB/s", "12.5%", "0.5/s", "9/s"):
        assert text in listed
    assert len(typed("list", "--user", "alice", "--json").json) == 2
    assert len(typed("list", "--client-id", "etl", "--json").json) == 1
    assert len(typed("list", "--ips-default", "--json").json) == 1

    gone = typed("remove", "request_percentage", "--user", "alice")
    assert gone.out == "removed 1 quota of user alice\n"
    again = typed("remove", "request_percentage", "--user", "alice")
    assert (again.code, "user alice has no quota request_percentage" in again.err) == (1, True)
    assert typed("remove", "all", "--user", "alice").out == "removed 1 quota of user alice\n"
    assert typed("remove", "all", "--user", "alice").code == 1
    assert typed("remove", "all", "--client-id", "etl").code == 1  # another entity
    assert len(typed("list", "--json").json) == 4


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("set", "producer_byte_rate=1"), "give --user"),
        (("remove", "all"), "give --user"),
        (("set", "producer_byte_rate=1", "--user", "a", "--users-default"), "only one of --user"),
        (("set", "producer_byte_rate=1", "--ip", "::1", "--user", "a"), "of an address cannot"),
        (("set", "producer_byte_rate=1", "--ip", "::1"), "connection_creation_rate"),
        (("set", "connection_creation_rate=1", "--user", "a"), "request_percentage"),
        (("set", "connection_creation_rate=1", "--ip", "localhost"), "--ip=localhost"),
        (("set", "connection_creation_rate=1.5", "--ip", "::1"), "a whole number above 0"),
        (("set", "connection_creation_rate=3000000000", "--ip", "::1"), "at most 2147483647"),
        (("set", "producer_byte_rate=fast", "--user", "a"), "producer_byte_rate=fast"),
        (("set", "producer_byte_rate=0", "--user", "a"), "at least 1 byte"),
        (("set", "request_percentage=nan", "--user", "a"), "a number above 0"),
        (("set", "request_percentage=0", "--user", "a"), "a number above 0"),
        (("set", "request_percentage=1", "request_percentage=2", "--user", "a"), "QUOTA once"),
        (("set", "request_percentage", "--user", "a"), "NAME=VALUE"),
        (("remove", "speed", "--user", "a"), "QUOTA=speed"),
        (("list", "--ip", "10.0.0.0/8"), "an IPv4 or IPv6 address"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], text: str) -> None:
    done = Typed("127.0.0.1:1", "quotas", *words)
    assert (done.code, done.out) == (2, "")
    assert text in done.err.replace("\n", " ")
