"""The behaviour of a broker with more connections than `max.connections`.

Kafka has two reactions. At `max.connections` it accepts no more: a new connection waits unanswered
in the operating system's backlog until another one is closed (KIP-402). At `max.connections.per.ip`
the new connection is closed at once. kafkawire reacts to `max.connections` in the second way too,
so that a client does not have to wait for its timeout: the newest connection is closed, open ones
are served, and a metric and a log line inform the operator. The exception: a connection that has
sent no request for 10 s is closed instead, and the newest is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import ExitStack
from pathlib import Path

from kafkawire.messages.metadata import MetadataRequest
from tests.kit.hostile import HalfOpen
from tests.kit.ports import free_port
from tests.trials.context import Context
from tests.trials.link import LOST, Link, Unanswered
from tests.trials.process import Victim, report_log

LIMIT, BEYOND, LEAVING = 40, 15, 5
CLOSED_WITHIN_S = 10.0
TAKEN_WITHIN_S = 40.0
"""A connection without a request may be closed after 10 s; a loaded machine is slower."""


async def metric(port: int, name: str) -> float:
    """One metric without labels, from a broker's metrics page; -1 where it is missing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: trial\r\n\r\n")
    page = (await asyncio.wait_for(reader.read(), CLOSED_WITHIN_S)).decode()
    writer.close()
    found = [line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")]
    return float(found[0]) if found else -1.0


class AtLimit:
    """Connections up to `max.connections` and beyond; `monitor` is the port of /metrics."""

    def __init__(self, context: Context, victim: Victim, monitor: int, limit: int = LIMIT) -> None:
        self.context, self.victim, self.monitor, self.limit = context, victim, monitor, limit
        self.links: list[Link] = []

    async def run(self) -> None:
        """All checks, in the order in which the connections of a broker grow and shrink."""
        try:
            for _ in range(self.limit):
                self.links.append(await Link.connect(self.victim.port, "within the limit"))
            await self._served("below max.connections")
            with ExitStack() as stack:
                await self._beyond(stack)
            await self._served("at max.connections")
            await self._reported()
            await self._left()
        finally:
            for each in self.links:
                with contextlib.suppress(*LOST):
                    await each.close()

    async def _served(self, when: str) -> None:
        """Check that each accepted connection is served."""
        for each in self.links:
            try:
                await each.call(MetadataRequest(topics=[]), 12)
                self.context.tried("requests of open connections served at max.connections")
            except (Unanswered, *LOST) as why:
                self.context.broken(f"{when} an open connection is not served: {why!r}")
                return

    async def _beyond(self, stack: ExitStack) -> None:
        """Check that the broker closes each further connection."""
        more = [HalfOpen(self.victim.port) for _ in range(BEYOND)]
        for one in more:
            stack.callback(one.close)
        end = time.monotonic() + CLOSED_WITHIN_S
        while left := sum(not one.closed for one in more):
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.02)
        self.context.check(
            not left,
            "rounds of connections beyond max.connections",
            f"{left} of {BEYOND} connections beyond max.connections={self.limit} were not closed",
        )

    async def _reported(self) -> None:
        """Check that a metric and a log line report the refused connections."""
        refused = await metric(self.monitor, "kafkawire_connections_refused_total")
        if refused != BEYOND:
            self.context.broken(
                f"kafkawire_connections_refused_total is {refused:g}, {BEYOND} were refused"
            )
        there = await metric(self.monitor, "kafkawire_connections")
        if there != self.limit:
            self.context.broken(f"kafkawire_connections is {there:g}, {self.limit} are open")
        words = f"{self.limit} connections are open, max.connections"
        if not any(words in line for line in self.victim.log.warnings):
            self.context.broken("the log has no warning about connections beyond max.connections")

    async def _left(self) -> None:
        """Check that after some connections are closed, as many are accepted."""
        for each in self.links[:LEAVING]:
            with contextlib.suppress(*LOST):
                await each.close()
        del self.links[:LEAVING]
        for _ in range(LEAVING):
            if not await self.taken("after others have left"):
                return

    async def taken(self, when: str) -> bool:
        """Whether a new connection is accepted and served, sooner or later; it is kept open."""
        end = time.monotonic() + TAKEN_WITHIN_S
        while time.monotonic() < end:
            one = await Link.connect(self.victim.port, "new")
            try:
                await one.call(MetadataRequest(topics=[]), 12)
            except (Unanswered, *LOST):
                with contextlib.suppress(*LOST):
                    await one.close()
                await asyncio.sleep(0.1)
            else:
                self.links.append(one)
                self.context.tried("connections taken at max.connections")
                return True
        self.context.broken(f"{when} no new connection is served in {TAKEN_WITHIN_S:g} s")
        return False

    async def unused_give_way(self) -> None:
        """Check that connections that send no request do not keep others out."""
        with ExitStack() as stack:
            for _ in range(self.limit):
                stack.callback(HalfOpen(self.victim.port).close)
            await self.taken("while all connections are without a request")
        for each in self.links:
            with contextlib.suppress(*LOST):
                await each.close()
        self.links.clear()


async def at_limit(context: Context, data: Path) -> None:
    """All checks against a broker process of its own."""
    monitor = free_port()
    settings = {
        "max.connections": str(LIMIT),
        "metrics.listener": f"127.0.0.1:{monitor}",
    }
    victim = Victim(data, settings)
    try:
        await victim.start()
        await AtLimit(context, victim, monitor).run()
        if not context.short:
            await AtLimit(context, victim, monitor).unused_give_way()
        await victim.stop()
    finally:
        await asyncio.to_thread(victim.process.kill)
        context.outputs["limit.log"] = victim.output
        report_log(context, victim.log)
