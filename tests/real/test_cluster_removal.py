"""`kafkawire cluster remove` with two broker processes.

Covers: kafkawire.cli.cluster.decommission.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.cli import Typed
from tests.kit.cluster import Cluster, metadata_url
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real


def test_stopped_broker_is_removed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with Cluster(tmp_path, metadata_url("sqlite", tmp_path, request)) as cluster:
        wait_until(lambda: cluster.listed(1) == cluster.listed(2) == [1, 2], "both brokers")

        def remove(broker: str) -> Typed:
            return Typed(cluster.bootstrap(1), "cluster", "remove", broker)

        alive = remove("2")
        assert (alive.code, "Broker 2 is alive" in alive.err) == (1, True)
        cluster.create(1, "t", [2])
        cluster.stop(2)
        wait_until(lambda: cluster.listed(1) == [1], "broker 1 to find that broker 2 was stopped")
        leading = remove("2")
        assert (leading.code, "has 1 led partition:" in leading.err) == (1, True)
        assert Typed(cluster.bootstrap(1), "topics", "delete", "t").code == 0
        done = remove("2")
        assert (done.code, done.out) == (0, "broker 2 was removed from the cluster\n")
        unknown = remove("2")
        assert (unknown.code, "BROKER_ID_NOT_REGISTERED" in unknown.err) == (1, True)
        cluster.start(2)  # it is registered again
        wait_until(lambda: cluster.listed(1) == cluster.listed(2) == [1, 2], "both brokers again")


@pytest.mark.parametrize("broker", ["x", "-1", "3000000000"])
def test_wrong_id_is_refused_in_a_sentence(broker: str) -> None:
    typed = Typed("127.0.0.1:1", "cluster", "remove", "--", broker)
    assert (typed.code, typed.out, typed.err.count("\n")) == (2, "", 1)
