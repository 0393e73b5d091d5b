"""The listening sockets of all workers, bound by the supervisor before it starts any of them.

It keeps them open: while a worker is restarted, connections to its address wait in the backlog.
One socket is shared by all workers for each address of --listen, and not one for each worker with
SO_REUSEPORT: of that the kernel gives connections to a worker that is stopped, too.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from kafkawire.broker.options import InheritedSockets, Listener, WorkerRole
from kafkawire.server.listeners.addresses import cannot_bind
from kafkawire.supervisor.plan import WorkerPlan

Sockets = list[socket.socket]


@dataclass(slots=True)
class WorkerSockets:
    """The sockets of one worker: its own sockets for each listener, and those for monitors."""

    own: list[Sockets]
    metrics: Sockets


class BoundSockets:
    """All sockets: `shared` by listener, `workers` by node id, `metrics` those of the supervisor's
    own pages."""

    def __init__(self) -> None:
        self.shared: list[Sockets] = []
        self.workers: dict[int, WorkerSockets] = {}
        self.metrics: Sockets = []

    @classmethod
    def bind(
        cls,
        listeners: Sequence[Listener],
        plans: Sequence[WorkerPlan],
        monitors: tuple[str, int] | None,
        backlog: int,
        pages: bool,
    ) -> BoundSockets:
        """Bind everything. `monitors`: the address of metrics.listener; `pages`: whether the
        supervisor answers there. Raises AddressError, after closing what was bound."""
        found = cls()
        try:
            for each in listeners:
                found.shared.append(bind("listen", each.host, each.port, backlog))
            if monitors is not None and pages:
                found.metrics = bind("metrics.listener", *monitors, backlog)
            for plan in plans:
                found._bind_worker(plan, listeners, monitors, backlog)
        except BaseException:
            found.close()
            raise
        return found

    def _bind_worker(
        self,
        plan: WorkerPlan,
        listeners: Sequence[Listener],
        monitors: tuple[str, int] | None,
        backlog: int,
    ) -> None:
        bound = self.workers[plan.node_id] = WorkerSockets([], [])
        for listener, port in zip(listeners, plan.ports, strict=True):
            bound.own.append(bind("worker-ports", listener.host, port, backlog))
        if monitors is not None and plan.metrics_port is not None:
            option = "metrics.listener of a worker"
            bound.metrics = bind(option, monitors[0], plan.metrics_port, backlog)

    def role(self, plan: WorkerPlan, workers: int, *, first: bool, control: int) -> WorkerRole:
        """Return the role of a worker, whose descriptors have the numbers that they have here."""
        bound = self.workers[plan.node_id]
        sockets = tuple(
            InheritedSockets(_numbers(shared), _numbers(own), port_of(own))
            for shared, own in zip(self.shared, bound.own, strict=True)
        )
        return WorkerRole(
            workers, first, plan.drain, control, sockets, _numbers(bound.metrics),
            after=plan.after,
        )  # fmt: skip

    def add(
        self,
        plan: WorkerPlan,
        listeners: Sequence[Listener],
        monitors: tuple[str, int] | None,
        backlog: int,
    ) -> None:
        """Bind the sockets of one more worker. Raises AddressError."""
        try:
            self._bind_worker(plan, listeners, monitors, backlog)
        except BaseException:
            self.remove(plan.node_id)
            raise

    def remove(self, node_id: int) -> None:
        """Close the sockets of a worker that has ended and is not started again."""
        bound = self.workers.pop(node_id, None)
        if bound is not None:
            _close([*bound.own, bound.metrics])

    def close(self) -> None:
        """Close all; then clients are refused."""
        of_workers = [
            sockets for each in self.workers.values() for sockets in (*each.own, each.metrics)
        ]
        _close([*self.shared, self.metrics, *of_workers])


def _close(every: Sequence[Sockets]) -> None:
    for sockets in every:
        for each in sockets:
            each.close()


def descriptors(role: WorkerRole) -> list[int]:
    """Return all descriptors that a role names."""
    of_listeners = [number for each in role.sockets for number in (*each.shared, *each.own)]
    return [role.control, *of_listeners, *role.metrics]


def bind(option: str, host: str, port: int, backlog: int) -> Sockets:
    """Listen on all addresses of a host; an empty one: on all of this machine. Raises
    AddressError."""
    found: Sockets = []
    try:
        for family, address in _resolve(host, port):
            sock = socket.socket(family, socket.SOCK_STREAM)
            found.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A port that the system has chosen is the same on all addresses.
            chosen = port or (port_of(found) if len(found) > 1 else 0)
            sock.bind((address[0], chosen, *address[2:]))
            sock.listen(backlog)
            sock.setblocking(False)
    except OSError as error:
        for sock in found:
            sock.close()
        raise cannot_bind(option, host, port, error) from error
    return found


def _resolve(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    try:
        kinds = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as wrong:
        raise socket.gaierror(socket.EAI_NONAME, f"not a name of a host: {wrong}") from wrong
    every = {(family, address): None for family, _, _, _, address in kinds}
    return list(every)  # type: ignore[arg-type]  # addresses of TCP begin with host and port


def port_of(sockets: Sockets) -> int:
    """Return the port that sockets are bound to."""
    return int(sockets[0].getsockname()[1])


def _numbers(sockets: Sockets) -> tuple[int, ...]:
    return tuple(each.fileno() for each in sockets)
