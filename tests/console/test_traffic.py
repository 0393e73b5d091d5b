"""Rates of the overview's plots, from the traffic of brokers since their start."""

from __future__ import annotations

from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.console.views.own import OwnBroker
from kafkawire.console.views.traffic import BrokerTraffic
from kafkawire.testing import InProcessBroker, TopicConsumer
from tests.console.conftest import ORDERS, RECORDS

BOUNDS = [0.001, 0.01, 0.1]


def answer(sent: int, *produces: int, bounds: list[float] = BOUNDS) -> dict[str, Any]:
    return {"sent_bytes": sent, "bounds_s": bounds, "produces": list(produces)}


def test_percentile_is_interpolated_between_bounds() -> None:
    before = BrokerTraffic.of([answer(0, 5, 0, 0, 1), answer(0, 5, 0, 0, 0)])
    assert before is not None
    now = BrokerTraffic.of([answer(0, 105, 50, 50, 1), answer(0, 5, 0, 0, 0)])
    assert now is not None
    # 198 of 200 requests: 48 of the 50 that took 10 to 100 ms.
    assert now.p99_ms_since(before) == 10 + 90 * 48 / 50
    above = BrokerTraffic.of([answer(0, 10, 0, 0, 9)])
    assert above is not None
    assert above.p99_ms_since(before) == 100
    assert before.p99_ms_since(before) is None


def test_restarted_broker_has_no_rates() -> None:
    before, now = (
        BrokerTraffic.of([answer(500, 9, 9, 9, 9)]),
        BrokerTraffic.of([answer(0, 10, 0, 0, 0)]),
    )
    assert before is not None
    assert now is not None
    assert now.sent_since(before, 2) is None
    assert now.p99_ms_since(before) is None
    assert before.sent_since(now, 2) == 250


def test_brokers_with_different_bounds_are_not_added() -> None:
    assert BrokerTraffic.of([answer(0, 1, 1, 1, 1), answer(0, 1, 1, bounds=[1.0])]) is None
    assert BrokerTraffic.of([]) is None


def test_traffic_of_a_broker_is_read(running: InProcessBroker) -> None:
    with Cluster(running.bootstrap) as cluster:
        before = OwnBroker().read_traffic(cluster)
        assert before is not None
        assert sum(before.produces) >= 1
        assert len(TopicConsumer(running.bootstrap).read(ORDERS, RECORDS)) == RECORDS
        after = OwnBroker().read_traffic(cluster)
        assert after is not None
        assert (after.sent_since(before, 1) or 0) > RECORDS * len(b'{"number": 1}')
