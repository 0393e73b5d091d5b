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
import pickle
import re
import select
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
from typing import TYPE_CHECKING, Any, Self

from kafkawire.childprocess.frames import pack, read_frame, write_frame
from kafkawire.testing.control import (
    MANUAL_CLOCK,
    SYSTEM_CLOCK,
    BrokerControl,
    BrokerFailed,
    Ports,
    settings_for,
)
from kafkawire.testing.forks import (
    ANSWER_S,
    Forked,
    ForkServer,
    ForkServerFailed,
    Start,
    find_or_start_server,
    inherited_environ,
)

if TYPE_CHECKING:
    from kafkawire.testing.secured import AccessRule, Secured

OUTPUT_LINES = 2000
"""Lines kept of the child's output, which bounds the memory."""
READY = re.compile(r"kafkawire listens on (\S+://\S+(?:, \S+://\S+)*); ")
MAIN_LISTENER = "PLAINTEXT"
WORKER = re.compile(r": worker ([0-9]+) serves at [^,]*:([0-9]+)")
REASON = re.compile(r"kafkawire: (.*)")


class BrokerProcess(BrokerControl):
    """One broker: `bootstrap` (host:port for clients), `port`, `data` (its folder), `output`.

    `data`: its folder, which is kept; None: a temporary one, deleted at the end of the `with`
    statement, but kept and named in the exception if there is one. `settings`: broker settings by
    Kafka's names; `listeners`: addresses as [NAME=]PROTOCOL://HOST:PORT in addition to `bootstrap`;
    `arguments`: further arguments of `kafkawire serve`; `environ`: variables added to those of
    this process. With `port` 0 the system chooses one at the first start, which is kept over
    `restart`, so clients find the broker again; the same of `listeners`, which then have it.
    `snapshot`: a folder that `snapshot` has made, which is copied to `data`. `brokers`: how many
    brokers the child has; `bootstrap` then has the addresses of all. `workers`: processes that
    serve (docs/cluster.md); their own ports are kept, too. `clock`: "system", or "manual" for one
    that `advance` moves.

    `users` (passwords by name), `tls` and `acls` (see kafkawire.testing.secured) are those of one
    more listener, for the programs under test: `client_settings`.
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
        brokers: int = 1,
        workers: int = 1,
        snapshot: str | os.PathLike[str] | None = None,
        clock: str = SYSTEM_CLOCK,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        acls: Sequence[AccessRule] | None = None,
    ) -> None:
        self._secured: Secured | None = None
        if users or tls or acls is not None:
            from kafkawire.testing.secured import Secured  # tenths of a second

            self._secured = Secured(users or {}, tls, acls)
        settings_for(clock, {})  # checked before a folder is made
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: it must be at least 1")
        if brokers > 1 and workers > 1:
            raise ValueError(f"workers={workers}: brokers={brokers} are in one process, without it")
        self._manual_clock = clock == MANUAL_CLOCK
        self._temporary = data is None
        self.data = Path(tempfile.mkdtemp(prefix="kafkawire-") if data is None else data)
        if snapshot is not None:
            copy_snapshot(snapshot, self.data, max(brokers, workers))
        self.port = port
        self.addresses: dict[str, str] = {}
        """HOST:PORT of each listener by its name, once it has started; with several brokers the
        addresses of all, separated by commas."""
        self._certificates = self.data / "certs"
        self.settings = settings_for(clock, settings or {})
        self.listeners = list(listeners)
        if self._secured is not None:
            self.settings = self._secured.settings(self._certificates) | self.settings
            self.listeners += self._secured.listeners
        self.brokers = brokers
        self._ports: Ports = {}  # of several brokers, once they have served
        self.workers = workers
        self._worker_ports: dict[int, str] = {}  # by node id, once they have served
        self.arguments = list(arguments)
        self.environ = dict(environ or {})
        self.start_timeout_s = start_timeout_s
        self._child: Forked | None = None
        self._server: ForkServer | None = None
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._begun = 0  # lines that earlier starts have written
        self._starting = False
        self._ready = threading.Event()
        self._commanding = threading.Lock()
        self._reader: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        """Value for the bootstrap servers of clients."""
        return self.addresses.get(MAIN_LISTENER) or self._first

    @property
    def _first(self) -> str:
        """The address of the first broker."""
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
        words = ["serve", "--listen", self._first, "--data", str(self.data)]
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

    def begin_start(self) -> None:
        """Start the child, for which `start` then waits. BrokerFailed."""
        assert not self.running, "the broker runs already"
        self._ready.clear()
        self._begun = len(self._lines)
        environ = {**inherited_environ(), **self.environ}
        try:
            # Variables such as PYTHONPATH take effect only in a new process.
            self._server = ForkServer(environ) if self.environ else None
            server = self._server or find_or_start_server()
            if self._secured is not None:
                self._secured.make_certificates(self._certificates, server, environ)
            more = self._manual_clock, self.brokers, self._ports
            self._child = server.start(Start(self._words(), environ, os.getcwd(), *more))
        except (ForkServerFailed, OSError) as failure:
            self._close_server()
            raise BrokerFailed(f"the broker did not start: {failure}") from failure
        self._reader = threading.Thread(target=self._keep, args=[self._child.output], daemon=True)
        self._reader.start()
        self._starting = True

    def start(self) -> None:
        """Start the child and wait until it serves; BrokerFailed with the reason if it does not."""
        if not self._starting:
            self.begin_start()
        self._starting = False
        self._wait_until_ready()
        if self.brokers > 1:
            self._ports = self._command("ports")
            self.addresses = joined_addresses(self.addresses, self._ports)
        if self._secured is not None:
            try:
                self._secured.create_users_and_rules(self.bootstrap)
            except BaseException:
                self.kill()
                raise

    def client_settings(self, user: str | None = None) -> dict[str, str]:
        """Return settings of a client by the names of librdkafka and of Kafka: `bootstrap.servers`,
        and what it needs to connect and to log in as `user` (None: the first one)."""
        if self._secured is None:
            return {"bootstrap.servers": self.bootstrap}
        return self._secured.client_settings(self.addresses, self._certificates, user)

    def _wait_until_ready(self) -> None:
        assert self._child is not None
        limit_s = self.start_timeout_s * self.workers  # some start one after the other
        end = time.monotonic() + limit_s
        while not self._ready.wait(0.02):
            if self._child.poll() is not None:
                self._reap()
                found = [REASON.match(line) for line in list(self._lines)[self._begun :]]
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
                self._keep_addresses(found[1].split(", "))
                self._ready.set()

    def _keep_addresses(self, urls: Sequence[str]) -> None:
        """Keep the ports that the system has chosen for the next start. `urls`: those of all
        listeners in their order; known ports may be advertised otherwise."""
        protocols, addresses = zip(*(url.split("://") for url in urls), strict=True)
        self.port = self.port or int(addresses[0].rpartition(":")[2])
        for at, text in enumerate(self.listeners, start=1):
            if text.endswith(":0"):
                name = text.partition("=")[0] if "=" in text else text.partition("://")[0]
                self.listeners[at - 1] = f"{name}={protocols[at]}://{addresses[at]}"
        names = [text.partition("=")[0].partition("://")[0] for text in self.listeners]
        given = [text.partition("://")[2] for text in self.listeners]
        self.addresses = dict(zip((MAIN_LISTENER, *names), (self._first, *given), strict=True))

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

    def _command(self, name: str, *arguments: object) -> Any:
        """Have the broker execute a command; see BrokerControl. BrokerFailed if it has ended."""
        if self.workers > 1:
            raise ValueError(
                f"workers={self.workers}: {name} needs brokers in one process, use "
                f"brokers={self.workers} instead"
            )
        if not self.running or self._child is None:
            raise BrokerFailed(f"the broker does not run, so it has no {name}")
        with self._commanding:
            try:
                control = self._child.control.fileno()
                write_frame(control, *pack((name, arguments)))
                if not select.select([control], [], [], ANSWER_S)[0]:
                    self._child.control.close()  # a late answer is not for the next command
                    raise TimeoutError(f"no answer in {ANSWER_S:g} s")
                body = read_frame(control)
            except (OSError, ValueError) as failure:  # ValueError: it is closed
                raise BrokerFailed(f"the broker did not execute {name}: {failure}") from failure
        if body is None:
            raise BrokerFailed(f"the broker ended before it executed {name}\n{self.output}")
        result, wrong = pickle.loads(body)
        if wrong is not None:
            raise ValueError(wrong)
        return result

    def snapshot(self, folder: str | os.PathLike[str]) -> Path:
        """Copy the data to a folder, which must be empty or absent, and return its path. The broker
        stops for that, and starts again if it ran."""
        ran = self.running
        self.stop()
        shutil.copytree(self.data, folder, dirs_exist_ok=True)
        if ran:
            self.start()
        return Path(folder)

    def _reap(self) -> None:
        """Release what belongs to an ended child; it may have been done before."""
        assert self._child is not None
        assert self._reader is not None
        self._reader.join()
        self._child.output.close()
        self._child.control.close()
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


def copy_snapshot(snapshot: str | os.PathLike[str], data: Path, brokers: int) -> None:
    """Copy the data of `brokers` brokers, or of fewer, to a data folder. ValueError."""
    has = len(os.listdir(Path(snapshot) / "brokers"))
    if has > brokers:
        raise ValueError(f"snapshot={snapshot}: it has {has} brokers, start it with brokers={has}")
    shutil.copytree(snapshot, data, dirs_exist_ok=True)


def joined_addresses(of_first: Mapping[str, str], ports: Ports) -> dict[str, str]:
    """Return the addresses of all brokers by listener, from those of the first one."""
    return {
        name: ",".join(f"{address.rpartition(':')[0]}:{each[name]}" for each in ports.values())
        for name, address in of_first.items()
    }
