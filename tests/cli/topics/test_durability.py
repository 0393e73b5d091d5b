"""Starts that durability=s3 refuses without a remote tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.cli.serving.options import Given
from kafkawire.cli.serving.run import run
from kafkawire.testing.control import BrokerFailed
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed


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
