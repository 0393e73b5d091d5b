"""A broker as a child process, for tests: start, stop, kill, restart.

The child runs `kafkawire serve` on a free port of 127.0.0.1 with a data folder of its own. A fork
server (kafkawire.testing.forks) starts it, so it takes a tenth of a second, and ends with this
process however that ends. Its output is kept in memory and shown in the error when it does not
start or does not stop. Only this child is ever signalled. Works without pytest too:

    with BrokerProcess() as broker:
        print(broker.bootstrap)

Used by the fixtures in kafkawire.testing.plugin.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kafkawire.testing.forks import (
    Forked,
    ForkServer,
    ForkServerFailed,
    Start,
    inherited_environ,
    shared,
)

TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",  # the first consumer waits for no others
    "log.retention.ms": "-1",  # records of fixed, old timestamps stay
    "journal.bytes": str(4 << 20),
    "recycle.bytes": "0",  # no journals in reserve
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
"""Settings that suit tests: a small data folder, quick consumer groups. The fixtures, the container
and the brokers in this process use them; BrokerProcess leaves the choice to its caller."""

OUTPUT_LINES = 2000
"""Lines kept of the child's output, which bounds the memory."""
READY = re.compile(r"kafkawire listens on .*?:([0-9]+)[,;]")
WORKER = re.compile(r": worker ([0-9]+) serves at [^,]*:([0-9]+)")
REASON = re.compile(r"kafkawire: (.*)")


class BrokerFailed(AssertionError):
    """The broker did not start or stop as expected: a sentence with the reason, and its output."""


class BrokerProcess:
    """One broker: `bootstrap` (host:port for clients), `port`, `data` (its folder), `output`.

    `data`: its folder, which is kept; None: a temporary one, deleted at the end of the `with`
    statement, but kept and named in the exception if there is one. `settings`: broker settings by
    Kafka's names; `listeners`: addresses as [NAME=]PROTOCOL://HOST:PORT in addition to `bootstrap`;
    `arguments`: further arguments of `kafkawire serve`; `environ`: variables added to those of
    this process. With `port` 0 the system chooses one at the first start, which is kept over
    `restart`, so clients find the broker again. `workers`: processes that serve (docs/cluster.md);
    clients use `bootstrap`, and their own ports are kept, too.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
        port: int = 0,
        listeners: Sequence[str] = (),
        workers: int = 1,
    ) -> None:
        self._temporary = data is None
        self.data = Path(tempfile.mkdtemp(prefix="kafkawire-") if data is None else data)
        self.port = port
        self.settings = {name: setting_text(value) for name, value in (settings or {}).items()}
        self.listeners = list(listeners)
        self.workers = workers
        self._worker_ports: dict[int, str] = {}  # by node id, once they have served
        self.arguments = list(arguments)
        self.environ = dict(environ or {})
        self.start_timeout_s = start_timeout_s
        self._child: Forked | None = None
        self._server: ForkServer | None = None
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        """Value for the bootstrap servers of clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process ID of the child."""
        assert self._child is not None, "the broker was not started"
        return self._child.pid

    @property
    def running(self) -> bool:
        """True while the child runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def output(self) -> str:
        """The last lines of the broker's output, over all its starts."""
        return "".join(self._lines)

    def command(self) -> list[str]:
        """Return a command line that does the same as `start`."""
        return [sys.executable, "-P", "-m", "kafkawire", *self._words()]

    def _words(self) -> list[str]:
        words = ["serve", "--listen", self.bootstrap, "--data", str(self.data)]
        for address in self.listeners:
            words += ["--listen", address]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        if self.workers > 1:
            words += ["--workers", str(self.workers)]
        if len(self._worker_ports) == self.workers:
            ports = ",".join(port for _, port in sorted(self._worker_ports.items()))
            words += ["--worker-ports", f"PLAINTEXT://{ports}"]
        return words + self.arguments

    def start(self) -> None:
        """Start the child and wait until it serves; BrokerFailed with the reason if it does not."""
        assert not self.running, "the broker runs already"
        self._ready.clear()
        begun = len(self._lines)
        environ = {**inherited_environ(), **self.environ}
        try:
            # Variables such as PYTHONPATH take effect only in a new process.
            self._server = ForkServer(environ) if self.environ else None
            server = self._server or shared()
            self._child = server.start(Start(self._words(), environ, os.getcwd()))
        except (ForkServerFailed, OSError) as failure:
            self._close_server()
            raise BrokerFailed(f"the broker did not start: {failure}") from failure
        self._reader = threading.Thread(target=self._keep, args=[self._child.output], daemon=True)
        self._reader.start()
        self._wait_until_ready(begun)

    def _wait_until_ready(self, begun: int) -> None:
        """`begun`: the number of lines that earlier starts have written."""
        assert self._child is not None
        limit_s = self.start_timeout_s * self.workers  # some start one after the other
        end = time.monotonic() + limit_s
        while not self._ready.wait(0.02):
            if self._child.poll() is not None:
                self._reap()
                found = [REASON.match(line) for line in list(self._lines)[begun:]]
                reason = "".join(f": {match[1]}" for match in found[-1:] if match)
                code = self._child.returncode
                raise BrokerFailed(f"the broker ended with {code}{reason}\n{self.output}")
            if time.monotonic() > end:
                self.kill()
                limit = f"{limit_s:g} s"
                raise BrokerFailed(f"the broker was not ready after {limit}\n{self.output}")

    def _keep(self, output: Iterable[str]) -> None:
        """Read the child's output to its end, so that the child never blocks on a full pipe."""
        for line in output:
            self._lines.append(line)
            worker = WORKER.search(line)
            if worker:
                self._worker_ports[int(worker[1])] = worker[2]
            found = READY.match(line)
            if found:
                self.port = self.port or int(found[1])  # a known one may be advertised otherwise
                self._ready.set()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker with SIGTERM; BrokerFailed if it fails or does not stop in time. Does
        nothing if it is not running."""
        if self._child is None:
            return
        if not self.running:
            self._reap()
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(timeout_s)
        except TimeoutError:
            self.kill()
            limit = f"{timeout_s:g} s"
            raise BrokerFailed(f"the broker did not stop in {limit}\n{self.output}") from None
        self._reap()
        if code != 0:
            raise BrokerFailed(f"the broker ended with {code}\n{self.output}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._reap()

    def restart(self) -> None:
        """Stop the broker if it runs, and start it on the same port and data."""
        self.stop()
        self.start()

    def _reap(self) -> None:
        """Release what belongs to an ended child; it may have been done before."""
        assert self._child is not None
        assert self._reader is not None
        self._reader.join()
        self._child.output.close()
        self._close_server()

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._delete_temporary()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except BrokerFailed as failure:
            error = error or failure
            raise
        finally:
            if error is None:
                self._delete_temporary()
            elif self._temporary:
                error.add_note(f"kafkawire: the broker's data is kept in {self.data}")

    def _delete_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self.data, ignore_errors=True)


def setting_text(value: object) -> str:
    """Return the value of a setting as Kafka's configuration files have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
