"""The supervisor of `kafkawire serve --workers N`: bind, start the workers, wait, stop them.

Order of the start: all addresses are bound, then one worker starts, which creates or migrates the
metadata, then all others at the same time. Called by kafkawire.cli.serving.run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from kafkawire.broker.options import ServeOptions, WorkerRole
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.server.console_process import ConsoleProcess
from kafkawire.server.listeners.addresses import AddressError, ready_line
from kafkawire.server.service_manager import READY, STOPPING, notify
from kafkawire.supervisor.follower import SupervisedFollower
from kafkawire.supervisor.guests import Guests
from kafkawire.supervisor.pages import Pages
from kafkawire.supervisor.plan import PlanError, WorkerPlan, monitors_of, plans_of, takeover_ports
from kafkawire.supervisor.sockets import BoundSockets, port_of
from kafkawire.supervisor.surplus import mark_guest, surplus_brokers
from kafkawire.supervisor.worker import SupervisedWorker

logger = logging.getLogger(__name__)

ACQUAINT_S = 15.0
"""How long the workers may take to learn of each other: usually milliseconds, seconds on a machine
without idle cores. Later, they learn by heartbeats."""
STOP_S = 30.0
"""How long workers may take to stop: answers to clients take five seconds at most, the rest is the
last commit and a checkpoint."""


class Supervisor:
    """The workers of one data folder and their sockets."""

    def __init__(
        self, options: ServeOptions, arguments: Sequence[str], plans: Sequence[WorkerPlan]
    ) -> None:
        """`arguments`: the command line of `kafkawire serve`. Binds the addresses: raises
        AddressError."""
        self._options = options
        config = BrokerConfig(options.settings)
        monitors = monitors_of(config)
        self._console = ConsoleProcess.bind_address(options)
        self._follower = SupervisedFollower.bind_address(options)
        self._sockets = BoundSockets.bind(
            options.listeners, plans, monitors, config.socket_listen_backlog_size,
            pages=not config.metrics_tls,
        )  # fmt: skip
        self._plans = plans
        self._arguments = arguments
        self._monitors = monitors
        self._backlog = config.socket_listen_backlog_size
        self.guests = Guests(
            self, frozenset(each.node_id for each in plans), len(options.listeners),
            monitored=monitors is not None, ports=takeover_ports(options),
        )  # fmt: skip
        self.workers = [
            SupervisedWorker(
                each,
                arguments,
                self._role,
                self._on_worker_change,
                returns=config.cluster_takeover_enable,
            )
            for each in plans
        ]
        self.pages = Pages(self.workers, self.guests.workers, self._sockets)
        self._stop = asyncio.Event()
        self._all_known = asyncio.Event()
        self._is_open = False
        self._runs: list[asyncio.Task[int]] = []

    def _role(self, of: WorkerPlan, control: int) -> WorkerRole:
        first = of.node_id == self._plans[0].node_id
        return self._sockets.role(of, self._options.workers, first=first, control=control)

    def _on_worker_change(self, worker: SupervisedWorker) -> None:
        """A worker serves, or knows of more that do: let all know of all. Or it has found brokers
        of other machines that are to be started here."""
        if worker.absent:
            self.guests.start(worker.take_absent())
            return
        node = worker.plan.node_id
        serving = [each.plan.node_id for each in self.workers if each.ready]
        if worker.ready and not worker.knows:
            host, port = self._sockets.workers[node].own[0][0].getsockname()[:2]
            logger.info("worker %d serves at %s:%d", node, host, port)
            for each in self.workers:
                if each.ready:
                    each.inform(serving)
            if self._is_open:  # it was started again
                worker.open()
        elif all(each.drained or each.knows >= set(serving) for each in self.workers):
            self._all_known.set()

    def host(self, plan: WorkerPlan) -> SupervisedWorker:
        """Bind the addresses of one more worker and return it. Raises AddressError, OSError."""
        mark_guest(self._options.data, plan.node_id)
        self._sockets.add(plan, self._options.listeners, self._monitors, self._backlog)
        return SupervisedWorker(plan, self._arguments, self._role, self._on_worker_change)

    def release(self, worker: SupervisedWorker) -> None:
        """Close the addresses of a worker that has ended."""
        self._sockets.remove(worker.plan.node_id)

    async def run(self) -> int:
        """Run until a signal stops it, a start is refused, or no worker is left because their
        brokers were started elsewhere or removed; return the exit code."""
        self._handle_signals()
        try:
            await self.pages.open()
            if self._follower is not None:  # before the workers, which store its address in SQL
                await self._follower.start()
            code = await self._start()
            if code is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ACQUAINT_S):
                        await self._all_known.wait()
                self._open()
                line = ready_line(self._options, self._addresses(), self._console.url)
                print(line, flush=True)
                self._console.start(self._addresses())
                notify(READY, os.environ)
                code = await self._serve()
            notify(STOPPING, os.environ)
            if not code:
                logger.info("stopping")
        finally:
            await self._end()
        if not code:  # otherwise the last line is the sentence of the worker that was refused
            logger.info("all workers have ended")
        return code

    def _open(self) -> None:
        """Let all workers accept clients at the shared addresses."""
        self._is_open = True
        for each in (*self.workers, *self.guests.workers.values()):
            each.open()

    async def _serve(self) -> int:
        """Wait for a signal, or the end of all workers; return the exit code."""
        stopped = asyncio.create_task(self._stop.wait())
        ended = asyncio.gather(*self._runs)
        waiting: list[asyncio.Future[Any]] = [stopped, ended]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self._stop.is_set():
            return 0
        if all(each.removed for each in self.workers):
            logger.warning(
                "the brokers of this machine were removed from the cluster: a start of it would "
                "register them again. What it runs for other machines is taken over"
            )
        return max(ended.result())

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        for each in (*self.workers, *self.guests.workers.values()):
            each.signal(signal.SIGHUP)

    async def _start(self) -> int | None:
        """Start all workers; return an exit code if they are stopped or one is refused before all
        are ready."""
        existing = [each for each in self.workers if self._has_folder(each.plan.node_id)]
        # One that has records finds out whether the metadata is missing, and does not create it.
        first = (existing or self.workers)[0]
        for several in ([first], [each for each in self.workers if each is not first]):
            code = await self._start_together(several) if several else None
            if code is not None:
                return code
        return None

    def _has_folder(self, node_id: int) -> bool:
        return os.path.isdir(os.path.join(self._options.data, "brokers", str(node_id)))

    async def _start_together(self, workers: Sequence[SupervisedWorker]) -> int | None:
        self._runs += [asyncio.create_task(each.run()) for each in workers]
        started = asyncio.create_task(_all_started(workers))
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not started.done() and not self._stop.is_set():
                ended = [each.result() for each in self._runs if each.done() and each.result()]
                if ended:
                    return max(ended)
                running = [each for each in self._runs if not each.done()]
                await asyncio.wait(
                    [started, stopped, *running], return_when=asyncio.FIRST_COMPLETED
                )
            return 0 if self._stop.is_set() else None
        finally:
            started.cancel()
            stopped.cancel()

    def _addresses(self) -> dict[str, tuple[str, int]]:
        """Return the addresses of the listeners for clients that begin."""
        found = {}
        for each, sockets in zip(self._options.listeners, self._sockets.shared, strict=True):
            host, port = self._options.advertised[each.name]
            found[each.name] = host, port or port_of(sockets)
        return found

    async def _end(self) -> None:
        """Stop all workers, kill those that do not stop in time, close the sockets."""
        self._console.stop()
        for each in self.workers:
            each.stop()
        runs = [*self._runs, *self.guests.stop()]
        if runs:
            _, late = await asyncio.wait(runs, timeout=STOP_S)
            for each in (*self.workers, *self.guests.workers.values()) if late else ():
                if each.pid is not None:
                    logger.error(
                        "worker %d has not stopped in %g s: it is killed, and recovers at the "
                        "next start", each.plan.node_id, STOP_S,
                    )  # fmt: skip
                    each.signal(signal.SIGKILL)
            if late:
                await asyncio.wait(late)
        if self._follower is not None:  # after the workers of this machine, whose ends others need
            await self._follower.stop()
        await self.pages.close()
        self._sockets.close()
        self._console.close()


async def _all_started(workers: Sequence[SupervisedWorker]) -> None:
    for each in workers:
        await each.started.wait()


def supervise(options: ServeOptions, arguments: Sequence[str]) -> int:
    """Run workers until SIGINT or SIGTERM. Returns the exit code as kafkawire.server.run.serve
    does; `arguments`: the command line from which each worker reads its options again."""
    return asyncio.run(_supervise(options, arguments))


async def _supervise(options: ServeOptions, arguments: Sequence[str]) -> int:
    try:
        first_node = BrokerConfig(options.settings).node_id
        plans = plans_of(options, surplus_brokers(options.data, first_node, options.workers))
        supervisor = Supervisor(options, arguments, plans)
    except (AddressError, PlanError) as wrong:
        print(f"kafkawire: {wrong}", file=sys.stderr)
        return 2
    surplus = [str(each.node_id) for each in plans if each.drain]
    if surplus:
        logger.warning(
            "the data folder has more brokers than --workers %d: %s; they are started too, hand "
            "over the partitions that they lead, and end", options.workers, ", ".join(surplus),
        )  # fmt: skip
    return await supervisor.run()
