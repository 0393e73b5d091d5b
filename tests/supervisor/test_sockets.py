"""Sockets that are bound before any worker starts.

Covers: kafkawire.supervisor.sockets, kafkawire.server.listeners.addresses.
"""

from __future__ import annotations

import socket

import pytest

from kafkawire.broker.options import InheritedSockets, Listener, WorkerRole
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.supervisor.plan import WorkerPlan, plan
from kafkawire.supervisor.sockets import BoundSockets, bind, descriptors, port_of

FREE = Listener("PLAINTEXT", "127.0.0.1", 0)


def connects(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_everything_is_bound_and_connects_wait() -> None:
    plans = plan([FREE], 1, 2, [], {}, 0)
    bound = BoundSockets.bind([FREE], plans, ("127.0.0.1", 0), 5, True)
    control, other = socket.socketpair()
    try:
        check_bound(bound, plans[1], control.fileno())
    finally:
        ports = ports_of(bound)
        bound.close()
        control.close()
        other.close()
    assert not any(connects(port) for port in ports)


def ports_of(bound: BoundSockets) -> list[int]:
    own = [port_of(bound.workers[node].own[0]) for node in (1, 2)]
    monitors = [port_of(bound.metrics), *(port_of(bound.workers[n].metrics) for n in (1, 2))]
    return [port_of(bound.shared[0]), *own, *monitors]


def check_bound(bound: BoundSockets, second: WorkerPlan, control: int) -> None:
    ports = ports_of(bound)
    assert len(set(ports)) == 6
    assert all(connects(port) for port in ports)
    role = bound.role(second, 2, first=False, control=control)
    found = role.sockets[0].port, role.first, role.drain, role.workers
    assert found == (ports[2], False, False, 2)
    assert len(set(descriptors(role))) == 4
    assert not any(each.get_inheritable() for each in bound.shared[0])


def test_taken_port_closes_what_was_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        plans = plan([FREE], 1, 2, [], {"PLAINTEXT": [0, taken]}, None)
        with pytest.raises(AddressError, match=f"worker-ports=127.0.0.1:{taken}: another process"):
            BoundSockets.bind([FREE], plans, None, 5, True)


def test_unknown_host_is_a_sentence() -> None:
    with pytest.raises(AddressError, match=r"listen=host\.invalid:9092: "):
        bind("listen", "host.invalid", 9092, 5)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.invalid"])
def test_host_that_is_no_name_is_a_sentence(host: str) -> None:
    with pytest.raises(
        AddressError, match=r"^listen=a.*:9092: the host cannot be resolved \(not a "
    ):
        bind("listen", host, 9092, 5)


def test_all_addresses_have_one_port() -> None:
    found = bind("listen", "", 0, 5)
    try:
        assert len({each.getsockname()[1] for each in found}) == 1
        assert connects(port_of(found))
    finally:
        for each in found:
            each.close()


def test_role_is_parsed_as_it_was_written() -> None:
    role = WorkerRole(
        4, True, False, 7, (InheritedSockets((3,), (4, 5), 9093),), (8,), restarted=True
    )
    assert WorkerRole.parse(role.option_value()) == role


@pytest.mark.parametrize(
    "text", ["", "x", "{}", "[]", "null", '{"workers": 1}', "[" * 100_000, '{"sockets": 3}']
)
def test_other_role_is_none(text: str) -> None:
    assert WorkerRole.parse(text) is None


def test_one_more_worker_is_bound_and_removed() -> None:
    bound = BoundSockets.bind([FREE], plan([FREE], 1, 1, [], {}, 0), ("127.0.0.1", 0), 5, True)
    guest = WorkerPlan(7, (0,), 0, drain=False, after=4)
    try:
        bound.add(guest, [FREE], ("127.0.0.1", 0), 5)
        sockets = bound.workers[7]
        ports = port_of(sockets.own[0]), port_of(sockets.metrics)
        assert all(connects(port) for port in ports)
        assert bound.role(guest, 1, first=False, control=3).after == 4
        bound.remove(7)
        bound.remove(7)
        assert not any(connects(port) for port in ports)
        assert connects(port_of(bound.shared[0]))
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = WorkerPlan(7, (0,), other.getsockname()[1], drain=False, after=4)
            with pytest.raises(AddressError, match="metrics"):
                bound.add(taken, [FREE], ("127.0.0.1", 0), 5)
        assert 7 not in bound.workers
    finally:
        bound.close()
