"""Pages of several workers in one."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from kafkawire.supervisor.joined_pages import WorkerState, join_health, join_metrics, own_metrics

ONE = """# HELP a_total Things.
# TYPE a_total counter
a_total 1.0
# HELP h Times.
# TYPE h histogram
h_bucket{le="0.1"} 2.0
h_bucket{le="+Inf"} 3.0
h_sum 4.0
h_count 3.0
"""
TWO = """# HELP h Times.
# TYPE h histogram
h_bucket{le="+Inf"} 5.0
h_sum 6.0
h_count 5.0
# HELP g Rest.
# TYPE g gauge
g{topic="x {y} z",partition="0"} 7.0
g{} 8.0
"""


def test_families_are_joined_with_the_node_as_label() -> None:
    page = join_metrics({1: ONE, 2: TWO})
    assert page.count("# TYPE h histogram") == 1
    families = {each.name: each for each in text_string_to_metric_families(page)}
    assert list(families) == ["a", "h", "g"]
    samples = [
        (each.name, each.labels, each.value) for name in families for each in families[name].samples
    ]
    assert ("a_total", {"node": "1"}, 1.0) in samples
    assert ("h_bucket", {"node": "1", "le": "0.1"}, 2.0) in samples
    assert ("h_sum", {"node": "2"}, 6.0) in samples
    assert ("g", {"node": "2", "topic": "x {y} z", "partition": "0"}, 7.0) in samples
    assert ("g", {"node": "2"}, 8.0) in samples
    assert len(samples) == 10


def test_no_pages_are_an_empty_page() -> None:
    assert join_metrics({}) == ""


def test_metrics_of_the_supervisor() -> None:
    states = [WorkerState(1, True, 0), WorkerState(2, False, 3), WorkerState(7, True, 0, True)]
    families = list(text_string_to_metric_families(own_metrics(states)))
    found = [(s.name, s.labels["node"], s.value) for each in families for s in each.samples]
    assert found == [
        ("kafkawire_worker_up", "1", 1.0),
        ("kafkawire_worker_up", "2", 0.0),
        ("kafkawire_worker_up", "7", 1.0),
        ("kafkawire_worker_restarts_total", "1", 0.0),
        ("kafkawire_worker_restarts_total", "2", 3.0),
        ("kafkawire_worker_restarts_total", "7", 0.0),
        ("kafkawire_worker_guest", "1", 0.0),
        ("kafkawire_worker_guest", "2", 0.0),
        ("kafkawire_worker_guest", "7", 1.0),
    ]


def test_health_is_that_of_all() -> None:
    well = b'{"status": "ok", "topics": 3}'
    healthy, body = join_health({1: well, 2: well})
    assert healthy
    workers = {"1": {"status": "ok", "topics": 3}, "2": {"status": "ok", "topics": 3}}
    assert json.loads(body) == {"status": "ok", "workers": workers}


def test_one_ill_worker_makes_all_ill() -> None:
    for body in (None, b'{"status": "ill", "reason": "x"}', b"no json", b"[]"):
        healthy, page = join_health({1: b'{"status": "ok"}', 2: body})
        assert not healthy
        found = json.loads(page)
        assert (found["status"], found["workers"]["2"]["status"]) == ("ill", "ill")
        assert found["workers"]["2"]["reason"]


def test_degraded_worker_makes_all_degraded_but_healthy() -> None:
    degraded = b'{"status": "degraded", "reason": "x"}'
    healthy, page = join_health({1: b'{"status": "ok"}', 2: degraded})
    assert (healthy, json.loads(page)["status"]) == (True, "degraded")
    healthy, page = join_health({1: degraded, 2: None})
    assert (healthy, json.loads(page)["status"]) == (False, "ill")
