"""Which workers there are, and the ports of their own addresses. Pure.

Each listener has one address that all workers accept on, and each worker an address of its own at
the same host. By default the ports of these follow that of the listener: 9093 to 9096 with
`--listen 0.0.0.0:9092 --workers 4`. Ports that another listener uses are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafkawire.broker.options import Listener, ServeOptions
from kafkawire.codec.configs.settings import BrokerConfig

PORT_MAX = 65535
NODE_ID_MAX = 2**31 - 1
TAKEOVER_PORTS = "cluster.takeover.ports"
ALLOWED_PORTS = (
    "[NAME://]PORTS, ports and ranges of them with commas between: 9093-9096 or 19001,19002"
)


class PlanError(ValueError):
    """Workers that cannot be: one sentence."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker: its node id, the port of its own address for each listener, the port where it
    answers monitors (None: nowhere), and whether it is to hand over what it leads and end. Port 0:
    a free one. `after`: of a broker of another machine, its epoch when it was absent; else -1."""

    node_id: int
    ports: tuple[int, ...]
    metrics_port: int | None
    drain: bool
    after: int = -1


def monitors_of(config: BrokerConfig) -> tuple[str, int] | None:
    """Return the host and port of metrics.listener; None without one."""
    text = config.metrics_listener.strip()
    if not text:
        return None
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def plans_of(options: ServeOptions, surplus: Sequence[int] = ()) -> list[WorkerPlan]:
    """Return the plans of the workers that the options ask for, then of the brokers `surplus`.
    Raises PlanError."""
    config = BrokerConfig(options.settings)
    names = [each.name for each in options.listeners]
    given = parse_worker_ports(options.worker_ports, names) if options.worker_ports else {}
    monitors = monitors_of(config)
    port = None if monitors is None else monitors[1]
    plans = plan(options.listeners, config.node_id, options.workers, surplus, given, port)
    _check_takeover_ports(options, plans, port)
    return plans


def takeover_ports(options: ServeOptions) -> list[tuple[int, ...]]:
    """Return the ports of the addresses of brokers of other machines, for each listener, in the
    order in which they are used; empty: free ones. Raises PlanError."""
    text = BrokerConfig(options.settings).cluster_takeover_ports.strip()
    if not text:
        return []
    names = [each.name for each in options.listeners]
    found = parse_worker_ports([text], names, TAKEOVER_PORTS)
    columns = [found.get(name, []) for name in names]
    if len({len(column) for column in columns}) != 1:
        raise PlanError(f"{TAKEOVER_PORTS}={text}: it must be as many ports for each listener")
    return list(zip(*columns, strict=True))


def _check_takeover_ports(
    options: ServeOptions, plans: Sequence[WorkerPlan], metrics_port: int | None
) -> None:
    taken = {each.port for each in options.listeners} | {metrics_port}
    for each in plans:
        taken |= {*each.ports, each.metrics_port}
    for ports in takeover_ports(options):
        for port in ports:
            if port and port in taken:
                raise PlanError(
                    f"{TAKEOVER_PORTS}: {port} is the port of a listener or a worker; choose "
                    "another one"
                )


def plan(
    listeners: Sequence[Listener],
    first_node: int,
    workers: int,
    surplus: Sequence[int],
    given: Mapping[str, Sequence[int]],
    metrics_port: int | None,
) -> list[WorkerPlan]:
    """Return the plans of `workers` workers from node id `first_node` on, then of the brokers
    `surplus`, which the data folder has besides. `given`: ports by listener. Raises PlanError."""
    last_node = first_node + workers - 1
    if last_node > NODE_ID_MAX:
        raise PlanError(
            f"node.id={first_node}: with --workers {workers} it must be at most "
            f"{NODE_ID_MAX - workers + 1}, because the workers have the node ids from it on"
        )
    nodes = [*range(first_node, last_node + 1), *surplus]
    taken = {each.port for each in listeners} | {metrics_port or 0}
    for port in _flat(given):
        if port and port in taken:
            raise PlanError(f"worker-ports: {port} is the port of a listener; choose another one")
    taken.update(_flat(given))
    columns = [_ports(each, given.get(each.name), workers, len(nodes), taken) for each in listeners]
    monitors: list[int | None] = [None] * len(nodes)
    if metrics_port is not None:
        monitors = list(_following("metrics.listener", metrics_port, len(nodes), taken))
    return [
        WorkerPlan(node, tuple(column[at] for column in columns), monitors[at], at >= workers)
        for at, node in enumerate(nodes)
    ]


def _flat(given: Mapping[str, Sequence[int]]) -> Iterator[int]:
    for ports in given.values():
        yield from ports


def _ports(
    listener: Listener, given: Sequence[int] | None, workers: int, count: int, taken: set[int]
) -> list[int]:
    """Return the own ports of a listener; `taken` is added to."""
    if given is None:
        return list(_following(f"listen of {listener.name}", listener.port, count, taken))
    if len(given) not in (workers, count):
        raise PlanError(
            f"worker-ports={','.join(map(str, given))}: it must be {workers} ports for listener "
            f"{listener.name}, one for each worker"
        )
    return [*given, *[0] * (count - len(given))]


def _following(option: str, port: int, count: int, taken: set[int]) -> Iterator[int]:
    """Yield the next ports after `port` that are not taken, and take them."""
    if port == 0:
        yield from [0] * count
        return
    for _ in range(count):
        port += 1
        while port in taken:
            port += 1
        if port > PORT_MAX:
            raise PlanError(
                f"the port of {option} is too high for {count} workers, whose ports follow it: "
                "choose a lower one, or name ports with --worker-ports"
            )
        taken.add(port)
        yield port


def parse_worker_ports(
    texts: Sequence[str], names: Sequence[str], option: str = "worker-ports"
) -> dict[str, list[int]]:
    """Return the ports by listener of the values of --worker-ports, or of another option. A name is
    valid for the ports after it, until the next one. Raises PlanError."""
    found: dict[str, list[int]] = {}
    name: str | None = names[0] if len(names) == 1 else None
    whole = ",".join(texts)
    for item in whole.split(","):
        before, separator, ports = item.strip().rpartition("://")
        if separator:
            name = before
        if name is None or name not in names:
            raise PlanError(
                f"{option}={whole}: it must begin with the name of a listener "
                f"({', '.join(names)}), as in {names[0]}://9093-9096"
            )
        found.setdefault(name, []).extend(_range_of(ports, f"{option}={whole}"))
    every = [port for port in _flat(found) if port]
    if len(every) != len(set(every)):
        raise PlanError(f"{option}={whole}: it must name a different port for each worker")
    return found


def _range_of(text: str, given: str) -> list[int]:
    first, dash, last = text.strip().partition("-")
    words = (first, last) if dash else (first,)
    if all(word.isascii() and word.isdigit() and len(word) <= 5 for word in words):
        low, high = int(words[0]), int(words[-1])
        if low <= high <= PORT_MAX and (low or not dash):
            return list(range(low, high + 1))
    raise PlanError(f"{given}: it must be {ALLOWED_PORTS}")
