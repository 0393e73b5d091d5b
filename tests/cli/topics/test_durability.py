"""Topics with durability=s3 from the command line: create, describe, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import run
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("durability")
    with BrokerProcess(folder / "data", settings={"tier.url": folder / "tier"}) as broker:
        yield broker.bootstrap


@pytest.mark.real
@pytest.mark.slow
def test_durability_is_shown_and_cannot_be_altered(server: str) -> None:
    done = Typed(server, "topics", "create", "orders", "--config", "durability=s3")
    assert done.code == 0, done.err
    assert Typed(server, "topics", "create", "clicks").code == 0
    described = Typed(server, "topics", "describe", "orders", "clicks", "--json").json
    assert [topic["configs"] for topic in described] == [{"durability": "s3"}, {}]
    of = ("--topic", "orders")
    shown = Typed(server, "configs", "describe", *of, "--json").json
    assert [(row["name"], row["value"], row["change"]) for row in shown] == [
        ("durability", "s3", "static"), ("min.insync.replicas", "1", "dynamic"),
    ]  # fmt: skip
    refused = [
        ("configs", "set", "durability=local", *of),
        ("configs", "unset", "durability", *of),
        ("configs", "set", "durability=s3", "--topic", "clicks"),
    ]
    for words in refused:
        done = Typed(server, *words)
        assert done.code == 1
        assert "the durability of a topic is fixed when it is created" in done.out + done.err
    assert Typed(server, "configs", "set", "durability=s3", "retention.ms=5000", *of).code == 0


@pytest.mark.real
@pytest.mark.slow
def test_unknown_durability_is_refused(server: str) -> None:
    done = Typed(server, "topics", "create", "new", "--config", "durability=disk")
    assert done.code == 1
    assert "durability=disk: it must be local, s3 or replicated" in done.out + done.err


def test_serve_without_tier_refuses_s3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    with pytest.raises(SystemExit) as ended:
        run(Given({"data": [str(folder)]}, ["durability=s3"], None, False), {})
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == (
        "kafkawire: durability=s3: it needs a remote tier: start the broker with --tier URL\n"
    )
    assert not folder.exists()


@pytest.mark.real
@pytest.mark.slow
def test_start_without_tier_is_refused_where_topic_needs_it(tmp_path: Path) -> None:
    data, tier = tmp_path / "data", {"tier.url": tmp_path / "tier"}
    with BrokerProcess(data, settings=tier) as broker:
        made = Typed(broker.bootstrap, "topics", "create", "orders", "--config", "durability=s3")
        assert made.code == 0
    sentence = "topic orders has durability=s3, which needs a remote tier: start the broker with"
    with pytest.raises(BrokerFailed, match=f"ended with 2(.|\n)*{sentence}"):
        BrokerProcess(data).start()
    with BrokerProcess(data, settings=tier) as broker:
        assert Typed(broker.bootstrap, "topics", "delete", "orders").code == 0
    with BrokerProcess(data):
        pass
