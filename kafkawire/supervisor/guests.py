"""Brokers of other machines that this one runs while they are absent there (docs/cluster.md).

A worker reports which brokers are absent and are to be started here
(kafkawire.broker.liveness.takeover). Each is one more worker, with addresses of its own and a
folder that is filled from SQL and the remote tier. It is not started again when it ends: it was
given back to its machine or removed from the cluster, or it is absent again and is reported as
such.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kafkawire.childprocess.parent_end import exit_words
from kafkawire.server.listeners.addresses import AddressError
from kafkawire.supervisor.plan import WorkerPlan
from kafkawire.supervisor.worker import SupervisedWorker

logger = logging.getLogger(__name__)

RETRY_S, MAX_RETRY_S = 15.0, 480.0
"""After a start that failed, the next one of the same broker: another machine may succeed
meanwhile. The delay doubles, because most failures, such as records that are only on the machine
that is gone, do not pass by themselves."""
MAX_GUESTS = 8
"""Brokers of other machines at the same time: each is a process of 62 MiB. With more machines gone
than that, the others wait for theirs."""


class Hosting(Protocol):
    """The part of the supervisor that guests need."""

    def host(self, plan: WorkerPlan) -> SupervisedWorker:
        """Bind the addresses of one more worker and return it. Raises AddressError, OSError."""

    def release(self, worker: SupervisedWorker) -> None:
        """Close the addresses of a worker that has ended."""


class Guests:
    """The brokers of other machines that run here, by node id. `own`: those of this machine."""

    def __init__(
        self,
        hosting: Hosting,
        own: frozenset[int],
        listeners: int,
        *,
        monitored: bool,
        clock: Callable[[], float] = time.monotonic,
        ports: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """`listeners`: how many there are; `monitored`: whether workers answer monitors; `clock`:
        in seconds; `ports`: those of each listener, one tuple for each broker; empty: free
        ones."""
        self._hosting = hosting
        self._own = own
        self._free = (0,) * listeners
        self._ports = ports
        self._metrics_port = 0 if monitored else None
        self._clock = clock
        self._failures: dict[int, tuple[int, float]] = {}
        self._stopping = False
        self._runs: dict[int, asyncio.Task[None]] = {}
        self.workers: dict[int, SupervisedWorker] = {}

    def start(self, absent: Mapping[int, int]) -> None:
        """Start brokers that are absent, given with their epochs, unless they run here already."""
        for node, epoch in sorted(absent.items()):
            if node in self._own or node in self.workers or self._waits(node):
                continue
            ports = self._next_ports()
            if ports is None or len(self.workers) >= MAX_GUESTS or self._stopping:
                return
            plan = WorkerPlan(node, ports, self._metrics_port, drain=False, after=epoch)
            try:
                worker = self._hosting.host(plan)
            except (AddressError, OSError) as failure:
                logger.error("cannot take over broker %d, which is not alive: %s", node, failure)
                self._fail(node)
                continue
            logger.warning("broker %d is not alive on its machine: it is started here", node)
            self.workers[node] = worker
            self._runs[node] = asyncio.create_task(self._run(worker))

    def _next_ports(self) -> tuple[int, ...] | None:
        """Return the first ports that no broker here has; None if all are taken."""
        if not self._ports:
            return self._free
        taken = {worker.plan.ports for worker in self.workers.values()}
        return next((each for each in self._ports if each not in taken), None)

    async def _run(self, worker: SupervisedWorker) -> None:
        node = worker.plan.node_id
        try:
            code = await worker.run()
        finally:
            del self.workers[node], self._runs[node]
            self._hosting.release(worker)
        if worker.removed:
            logger.warning("broker %d was removed from the cluster and has ended here", node)
        elif worker.started.is_set() or not code:  # it may have been given back while it started
            self._failures.pop(node, None)
            logger.warning("broker %d has ended here with %s", node, exit_words(code))
        elif not self._stopping:
            delay_s = self._fail(node)
            logger.warning(
                "broker %d could not be taken over (%s): if it is still not alive, it is tried "
                "again in %g s", node, exit_words(code), delay_s,
            )  # fmt: skip

    def _waits(self, node: int) -> bool:
        """Return whether a broker is not started because its last start has failed."""
        _, until_s = self._failures.get(node, (0, 0.0))
        return self._clock() < until_s

    def _fail(self, node: int) -> float:
        """Note a start that failed; return the delay before the next one."""
        before, _ = self._failures.get(node, (0, 0.0))
        delay_s: float = min(RETRY_S * 2**before, MAX_RETRY_S)
        self._failures[node] = min(before + 1, 10), self._clock() + delay_s
        return delay_s

    def stop(self) -> list[asyncio.Task[None]]:
        """Request the end of all, and start no more; return their tasks."""
        self._stopping = True
        for each in self.workers.values():
            each.stop()
        return list(self._runs.values())
