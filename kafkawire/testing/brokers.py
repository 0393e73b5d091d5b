"""Several brokers of a test in one process and one data folder: `brokers=3`.

Each has its node id, its ports and the partitions that it leads, as the workers of `kafkawire serve
--workers` have. They share an event loop, so they start within a tenth of a second each, and faults
and the clock are those of all.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kafkawire.broker.moving.reassignment import Wish
from kafkawire.broker.options import ServeOptions
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env
from kafkawire.server.run import Server
from kafkawire.server.worker.ends import store_role
from kafkawire.testing.control import Ports
from kafkawire.testing.faults import Faults

MOVED_S = 30.0
"""Limit for moves, which take some tenths of a second."""
CHECK_S = 0.01
"""Interval of the check whether a partition was moved."""
OF_ONE_BROKER = ("metrics.listener",)
"""Settings that only the first broker has: their port cannot be used twice."""


class Brokers:
    """The brokers of this process. Their methods raise ValueError with one sentence.

    `running`: servers by node id; `ports`: those that they have, also of stopped ones.
    """

    def __init__(self, count: int = 1, ports: Ports | None = None) -> None:
        """`ports`: for the brokers after the first one; any free ones where it has none."""
        self.running: dict[int, Server] = {}
        self.ports = dict(ports or {})
        self.faults = Faults()
        self._count = count
        self._first = 1
        self._options: ServeOptions
        self._env: Env  # of the first, which its caller closes

    async def start_others(self, first: Server, options: ServeOptions) -> None:
        """Start the others. Raises the errors of Server.start; then all are closed."""
        self._options, self._first = options, first.broker.node_id
        self._env = first.broker.env
        self._add(first, options)
        try:
            for node in range(self._first + 1, self._first + self._count):
                await self._start(node)
            if self._count > 1:
                await self._acquaint()
        except BaseException:
            await self.close()
            raise

    async def start(self, node: int) -> None:
        """Start a broker again, at its ports. It leads nothing until partitions are moved to it or
        created."""
        if node in self.running or node not in self.ports:
            stopped = ", ".join(
                str(each) for each in sorted(self.ports) if each not in self.running
            )
            raise ValueError(f"node={node}: it must be a stopped broker ({stopped or 'none is'})")
        await self._start(node)
        await self._acquaint()

    async def stop(self, node: int) -> None:
        """Stop a broker after the others lead its partitions, as Kafka's controlled shutdown."""
        server = self._server("node", node)
        if len(self.running) == 1:
            raise ValueError(f"node={node}: it is the last broker that runs, stop all with stop()")
        idle = asyncio.Event()
        await store_role(server.broker, True, idle.set)
        try:
            async with asyncio.timeout(MOVED_S):
                await idle.wait()
        except TimeoutError:
            await store_role(server.broker, False, idle.set)
            raise ValueError(
                f"node={node}: it leads partitions after {MOVED_S:g} s: those with an open "
                "transaction move when the transaction has ended"
            ) from None
        del self.running[node]
        self.faults.detach(server.host)
        others = [each.broker for each in self.running.values()]
        for broker in (server.broker, *others):
            await broker.liveness.beat()  # the others see its heartbeat, and so its end below
        await self._close(server)
        for broker in others:
            await broker.topics.lock.apply_changes()
            await broker.liveness.beat()  # Metadata no longer lists the stopped broker

    async def move(self, topic: str, partition: int, to: int) -> None:
        """Move a partition; return when all brokers know its new leader, which serves it."""
        target = self._server("to", to)
        leader = self.leaders(topic).get(partition)
        if leader is None:
            raise ValueError(f"partition={partition}: topic {topic} has no such partition")
        sender = self._server(f"{topic}-{partition}", leader).broker
        (refused,) = await sender.moves.alter([Wish(topic, partition, [to])], "a test")
        if refused is not None:
            raise ValueError(f"{topic}-{partition}: {refused}")
        try:
            async with asyncio.timeout(MOVED_S):
                while not await self._is_led_by(topic, partition, to):
                    await target.broker.env.sleep(CHECK_S)
        except TimeoutError:
            raise ValueError(
                f"{topic}-{partition}: broker {leader} leads it after {MOVED_S:g} s: it moves when "
                "its open transaction has ended"
            ) from None
        await target.broker.table.load([(topic, partition)])

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the node id of the leader of each partition."""
        for server in self.running.values():  # the others follow the one that created the topic
            found = server.broker.catalog.by_name.get(topic)
            if found is not None:
                return {each.index: each.leader for each in found.partitions}
        raise ValueError(f"topic={topic}: there is no such topic")

    async def close(self) -> None:
        """Stop all brokers. Partitions stay where they are."""
        while self.running:
            _, server = self.running.popitem()
            await self._close(server)

    async def _close(self, server: Server) -> None:
        await server.close()
        if server.broker.env is not self._env:
            await close_env(server.broker.env)

    async def _is_led_by(self, topic: str, partition: int, node: int) -> bool:
        found = []
        for each in self.running.values():
            await each.broker.topics.lock.apply_changes()
            info = each.broker.catalog.by_name.partition_of(topic, partition)
            found.append(info is not None and info.leader == node)
        return all(found)

    def _server(self, name: str, node: int) -> Server:
        if node not in self.running:
            running = ", ".join(map(str, sorted(self.running)))
            raise ValueError(f"{name}={node}: it must be a running broker ({running})")
        return self.running[node]

    async def _start(self, node: int) -> None:
        options, ports = self._options, self.ports.get(node, {})
        settings = {**options.settings, "node.id": str(node)}
        for name in OF_ONE_BROKER if node != self._first else ():
            settings.pop(name, None)
        listeners = [replace(each, port=ports.get(each.name, 0)) for each in options.listeners]
        hosts = {name: host for name, (host, _) in options.advertised.items()}
        advertised = {each.name: (hosts[each.name], each.port) for each in listeners}
        own = replace(options, listeners=listeners, advertised=advertised, settings=settings)
        env = replace(real_env(), clock=self._env.clock)
        try:
            server = await Server.start(own, env)
        except BaseException:
            await close_env(env)
            raise
        self._add(server, own)
        await store_role(server.broker, False, lambda: None)

    def _add(self, server: Server, options: ServeOptions) -> None:
        node = server.broker.node_id
        self.running[node] = server
        self.faults.attach(server.host)
        bound = [each.sockets[0].getsockname()[1] for each in server.sockets]
        names = [each.name for each in options.listeners]
        self.ports[node] = dict(zip(names, bound, strict=False))  # the last one may be of monitors

    async def _acquaint(self) -> None:
        """Let each broker know all others, which it would else learn by their heartbeats."""
        for each in self.running.values():
            await each.broker.topics.lock.apply_changes()
            each.broker.liveness.running(frozenset(self.running))


async def close_env(env: Env) -> None:
    """End the tasks and threads of a broker that was closed, or did not start."""
    left = list(env.tasks)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    env.offload.close()
