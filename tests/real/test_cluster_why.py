"""`kafkawire cluster why` with two broker processes.

Covers: kafkawire.cli.cluster.why, kafkawire.client.cluster_causes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cli import Typed
from tests.kit.cluster import Cluster, metadata_url
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real


def test_findings_about_two_brokers(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with Cluster(tmp_path, metadata_url("sqlite", tmp_path, request)) as cluster:
        wait_until(lambda: cluster.listed(1) == cluster.listed(2) == [1, 2], "both brokers")
        cluster.create(1, "t", [1, 2, 2])

        def why(*options: str) -> Typed:
            typed = Typed(cluster.bootstrap(1), "cluster", "why", *options)
            assert typed.code == 0, typed.err
            return typed

        def found() -> list[tuple[int, str, bool]]:
            return [(row["broker"], row["cause"], row["stuck"]) for row in why("--json").json]

        assert found() == [(1, "serves", False), (2, "serves", False)]
        assert "It leads 2 partitions." in why("--wide").out
        drain = Typed(cluster.bootstrap(1), "cluster", "drain", "2", "--no-wait")
        assert drain.code == 0, drain.err
        # No other broker writes to the data folder of broker 2.
        expected = [(1, "serves", False), (2, "draining", False), (2, "no-target", True)]
        wait_until(lambda: found() == expected, "the drain")
        cluster.stop(2)
        expected = [(1, "serves", False), (2, "not-alive", True)]
        wait_until(lambda: found() == expected, "broker 1 to find that broker 2 was stopped")
