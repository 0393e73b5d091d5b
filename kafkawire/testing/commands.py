"""The broker's end of kafkawire.testing.control: commands of a test, and the clock that they move.

Only brokers that kafkawire.testing started have it. In another process than the test, commands come
on a connection that the process has inherited: a frame (kafkawire.childprocess.frames) with the
name and the arguments of a method of BrokerCommands, answered with its result, or with a sentence.

All times of a broker come from the clock of its Env and from its event loop, so timers that are due
after a move run in the next iteration of the loop. uvloop has a clock of its own: brokers with a
clock that can be moved use asyncio's loop.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Awaitable
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from kafkawire.childprocess.frames import pack, receive
from kafkawire.codec.errors import ErrorCode
from kafkawire.log.io.disk import SystemClock, real_env
from kafkawire.log.io.ports import Env
from kafkawire.messages.registry import spec_of
from kafkawire.testing.brokers import Brokers
from kafkawire.testing.control import Ports
from kafkawire.testing.faults import ApiFault

if TYPE_CHECKING:
    from kafkawire.broker.options import ServeOptions
    from kafkawire.server.run import Server

CHECK_S = 0.001
"""Interval of the check whether the log is being written."""


class MovableClock(SystemClock):
    """The clock of the machine, moved forward."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def move(self, seconds: float) -> float:
        """Move it forward; return how many seconds it is ahead of the machine's."""
        self._ahead_s += seconds
        return self._ahead_s

    def now_ms(self) -> int:
        return super().now_ms() + int(self._ahead_s * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_s

    def env(self) -> Env:
        """Return the Env of a real broker with this clock."""
        return replace(real_env(), clock=self)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return a new event loop with this clock."""
        return _MovableLoop(self)


class _MovableLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: MovableClock) -> None:
        self._movable = clock
        super().__init__()

    def time(self) -> float:
        return self._movable.monotonic()


class BrokerCommands:
    """The commands, for the brokers of a process. They raise ValueError with one sentence."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._faults = brokers.faults
        self.move_leader, self.leaders = brokers.move, brokers.leaders
        self.start_broker, self.stop_broker = brokers.start, brokers.stop

    def ports(self) -> Ports:
        """Return the ports of the brokers."""
        return self._brokers.ports

    def add_fault(
        self,
        kind: str,
        api: str | int,
        times: int | None,
        error: str | int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        seconds: float = 0.0,
    ) -> int:
        """Add a fault and return its number."""
        code = ErrorCode.NONE if error is None else _error(error)
        return self._faults.add(
            ApiFault(kind, self._key(api), topic, partition, code, seconds, left=times)
        )

    def count_uses(self, number: int) -> int:
        """Return how many requests a fault has had."""
        return self._faults.count_uses(number)

    def advance(self, seconds: float) -> Awaitable[float]:
        """Move the broker's clock forward; to be awaited. Return by how much in all."""
        clock = self._any.broker.env.clock
        if not isinstance(clock, MovableClock):
            raise ValueError('the broker has a clock of its own: start it with clock="manual"')
        if seconds < 0:
            raise ValueError(f"seconds={seconds:g}: the clock moves only forward, by 0 or more")
        return self._advance(clock, seconds)

    async def _advance(self, clock: MovableClock, seconds: float) -> float:
        env, running = self._any.broker.env, self._brokers.running
        while any(each.broker.log.commit_log.busy_s() for each in running.values()):
            await env.sleep(CHECK_S)  # a write would seem to take that long
        return clock.move(seconds)

    def clear_faults(self) -> None:
        """End all faults."""
        self._faults.clear()

    @property
    def _any(self) -> Server:
        """A running broker."""
        return next(iter(self._brokers.running.values()))

    def _key(self, api: str | int) -> int:
        """Return the key of an API by its key or its name."""
        apis = self._any.host.apis
        names = {spec_of(key).name.lower(): key for key in apis}
        wanted = str(api).lower().replace("_", "")
        key = api if isinstance(api, int) else names.get(wanted, -1)
        if key not in apis:
            raise ValueError(f"api={api}: this broker serves no such API, name one as Kafka does")
        return key


def _error(error: str | int) -> ErrorCode:
    """Return an error by its code or its name."""
    try:
        found = ErrorCode(error) if isinstance(error, int) else ErrorCode[error.upper()]
    except (KeyError, ValueError):
        raise ValueError(f"error={error}: Kafka has no such error") from None
    if found is ErrorCode.NONE:
        raise ValueError(f"error={error}: it must be an error")
    return found


async def obey(
    control: socket.socket, brokers: Brokers, first: Server, options: ServeOptions
) -> None:
    """Start the brokers after the first one, and execute the commands that come on a connection,
    until it ends. Raises the errors of Server.start."""
    await brokers.start_others(first, options)
    first.broker.env.spawn(_obey(control, BrokerCommands(brokers)), "commands of the test")


async def _obey(control: socket.socket, commands: BrokerCommands) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=control)
    while True:
        try:
            name, arguments = pickle.loads(await receive(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        answer: tuple[Any, str | None]
        try:
            result = getattr(commands, name)(*arguments)
            answer = (await result if isawaitable(result) else result), None
        except ValueError as wrong:
            answer = None, str(wrong)
        writer.writelines(pack(answer))
        await writer.drain()
