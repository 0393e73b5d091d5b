"""Commands of a user whom access rules restrict."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment  # noqa: F401  (a fixture)


@pytest.mark.real
def test_partitions_of_a_created_topic_are_unknown_without_a_right(tmp_path: Path) -> None:
    rules = [("alice", "Create", "topic:orders")]
    with BrokerProcess(tmp_path / "data", users={"alice": "secret"}, acls=rules) as broker:
        settings = broker.client_settings("alice")
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        to = ("--command-config", str(file), "topics", "create", "orders", "--partitions", "3")
        (created,) = Typed(settings["bootstrap.servers"], *to, "--json").json
    assert created["partitions"] is None
