"""Node ids and ports of workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.broker.options import Listener, ServeOptions
from kafkawire.supervisor.plan import (
    NODE_ID_MAX,
    PlanError,
    WorkerPlan,
    parse_worker_ports,
    plan,
    plans_of,
    takeover_ports,
)

ONE = [Listener("PLAINTEXT", "127.0.0.1", 9092)]
TWO = [*ONE, Listener("TLS", "127.0.0.1", 9093)]


def test_ports_follow_that_of_the_listener() -> None:
    assert plan(ONE, 1, 2, [], {}, 9400) == [
        WorkerPlan(1, (9093,), 9401, False),
        WorkerPlan(2, (9094,), 9402, False),
    ]


def test_ports_of_other_listeners_are_left_out() -> None:
    found = plan(TWO, 5, 2, [], {}, 9095)
    assert [each.ports for each in found] == [(9094, 9097), (9096, 9098)]
    assert [each.metrics_port for each in found] == [9099, 9100]


def test_brokers_beyond_the_number_of_workers_are_to_be_drained() -> None:
    found = plan(ONE, 1, 2, [3, 7], {}, None)
    assert [(each.node_id, each.ports, each.drain) for each in found] == [
        (1, (9093,), False),
        (2, (9094,), False),
        (3, (9095,), True),
        (7, (9096,), True),
    ]
    named = plan(ONE, 1, 2, [3], {"PLAINTEXT": [19001, 19002]}, None)
    assert [each.ports for each in named] == [(19001,), (19002,), (0,)]


def test_port_0_gives_free_ports() -> None:
    found = plan([Listener("PLAINTEXT", "127.0.0.1", 0)], 1, 3, [], {}, 0)
    assert {(each.ports, each.metrics_port) for each in found} == {((0,), 0)}


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["9093-9095"], {"PLAINTEXT": [9093, 9094, 9095]}),
        (["9093,9095"], {"PLAINTEXT": [9093, 9095]}),
        (["9093", "9095"], {"PLAINTEXT": [9093, 9095]}),
        (["0,0"], {"PLAINTEXT": [0, 0]}),
        (["PLAINTEXT://1-2"], {"PLAINTEXT": [1, 2]}),
    ],
)
def test_worker_ports_are_parsed(texts: list[str], found: dict[str, list[int]]) -> None:
    assert parse_worker_ports(texts, ["PLAINTEXT"]) == found


def test_worker_ports_of_several_listeners_have_names() -> None:
    names = ["PLAINTEXT", "TLS"]
    found = {"PLAINTEXT": [1, 3], "TLS": [7, 8, 10]}
    assert parse_worker_ports(["PLAINTEXT://1,3", "TLS://7-8,10"], names) == found
    assert parse_worker_ports(["PLAINTEXT://1,3,TLS://7-8,10"], names) == found
    with pytest.raises(PlanError, match=r"worker-ports=1,3: it must begin with the name"):
        parse_worker_ports(["1,3"], names)
    with pytest.raises(PlanError, match="name of a listener"):
        parse_worker_ports(["NO://1"], names)


@pytest.mark.parametrize(
    "text",
    ["", "x", ",", "3-1", "65536", "1-99999", "-1", "1-", "0-3", "1,1", "1-3,2", " - "],
)
def test_other_worker_ports_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match=rf"^worker-ports={text}: it must "):
        parse_worker_ports([text], ["PLAINTEXT"])


def test_number_of_ports_is_that_of_the_workers() -> None:
    with pytest.raises(PlanError, match=r"worker-ports=1,2,3: it must be 2 ports for listener PL"):
        plan(ONE, 1, 2, [], {"PLAINTEXT": [1, 2, 3]}, None)


def test_numbers_that_are_too_large_are_refused() -> None:
    with pytest.raises(PlanError, match=f"node.id={NODE_ID_MAX}: with --workers 2"):
        plan(ONE, NODE_ID_MAX, 2, [], {}, None)
    with pytest.raises(PlanError, match="too high for 2 workers"):
        plan([Listener("PLAINTEXT", "127.0.0.1", 65534)], 1, 2, [], {}, None)


@given(
    st.lists(st.integers(1, 60_000), min_size=1, max_size=4, unique=True),
    st.integers(1, 64),
    st.none() | st.integers(1, 60_000),
)
def test_all_addresses_differ(ports: list[int], workers: int, metrics: int | None) -> None:
    if metrics in ports:
        return
    listeners = [Listener(f"L{port}", "127.0.0.1", port) for port in ports]
    found = plan(listeners, 1, workers, [], {}, metrics)
    every = [*ports, *(port for each in found for port in each.ports)]
    if metrics is not None:
        every += [metrics, *(each.metrics_port or 0 for each in found)]
    assert len(every) == len(set(every))


def test_plans_of_options() -> None:
    settings = {"node.id": "5", "metrics.listener": "[::1]:9400"}
    options = ServeOptions(ONE, {}, "", "", settings, workers=2, worker_ports=("1,2",))
    assert plans_of(options, [9]) == [
        WorkerPlan(5, (1,), 9401, False),
        WorkerPlan(6, (2,), 9402, False),
        WorkerPlan(9, (0,), 9403, True),
    ]


def options_of(text: str, listeners: list[Listener] = ONE) -> ServeOptions:
    return ServeOptions(listeners, {}, "", "", {"cluster.takeover.ports": text})


def test_ports_of_brokers_that_are_taken_over() -> None:
    assert takeover_ports(options_of("")) == []
    assert takeover_ports(options_of("9193-9194")) == [(9193,), (9194,)]
    two = options_of("PLAINTEXT://9193-9194,TLS://9293,9295", TWO)
    assert takeover_ports(two) == [(9193, 9293), (9194, 9295)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x", r"^cluster\.takeover\.ports=x: it must be \[NAME://\]PORTS"),
        ("5,5", "cluster.takeover.ports=5,5: it must name a different port"),
        ("9092", "cluster.takeover.ports: 9092 is the port of a listener or a worker"),
        ("9091-9093", "cluster.takeover.ports: 9092 is the port of a listener or a worker"),
        ("9093", "cluster.takeover.ports: 9093 is the port of a listener or a worker"),
    ],
)
def test_other_ports_for_a_takeover_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plans_of(options_of(text))


def test_each_listener_has_as_many_ports_for_a_takeover() -> None:
    for text in ("PLAINTEXT://9193", "PLAINTEXT://9193-9194,TLS://9293"):
        with pytest.raises(PlanError, match="as many ports for each listener"):
            takeover_ports(options_of(text, TWO))
    with pytest.raises(PlanError, match="ports=9193: it must begin with the name of a listener"):
        takeover_ports(options_of("9193", TWO))
