"""A broker as a child process, for tests: start, stop, kill, restart.

The child is `sys.executable -P -m kafkawire serve` on a free port of 127.0.0.1 with a data folder
of its own; -P, because the project under test may have a folder named log or groups. Its output is
kept in memory and shown in the error when it does not start or does not stop. Only this child is
ever signalled. Works without pytest too:

    with BrokerProcess("/tmp/some-folder") as broker:
        print(broker.bootstrap)

Used by the fixtures in kafkawire.testing.plugin.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

OUTPUT_LINES = 2000
"""Lines kept of the child's output, which bounds the memory."""
READY = re.compile(r"kafkawire listens on .*?:([0-9]+)[,;]")


class BrokerFailed(AssertionError):
    """The broker did not start or stop as expected; has its output."""


class BrokerProcess:
    """One broker: `bootstrap` (host:port for clients), `port`, `data` (its folder), `output`.

    `settings` are broker settings by Kafka's names, `arguments` further arguments of
    `kafkawire serve`, `environ` variables put over this process's own. The port is chosen by
    the system at the first start and kept over `restart`, so clients find the broker again.
    """

    def __init__(
        self,
        data: str | os.PathLike[str],
        *,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        start_timeout_s: float = 30.0,
    ) -> None:
        self.data = Path(data)
        self.port = 0
        self.settings = dict(settings or {})
        self.arguments = list(arguments)
        self.environ = dict(environ or {})
        self.start_timeout_s = start_timeout_s
        self._child: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._ready = threading.Event()
        self._readers: list[threading.Thread] = []

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
        """Command line that `start` runs."""
        command = [sys.executable, "-P", "-m", "kafkawire", "serve"]
        command += ["--listen", self.bootstrap, "--data", str(self.data)]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self.arguments

    def start(self) -> None:
        """Start the child and wait until it serves; BrokerFailed with its output if it does not."""
        assert not self.running, "the broker runs already"
        self._ready.clear()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("KAFKAWIRE_")}
        self._child = subprocess.Popen(
            self.command(),
            env={**inherited, "PYTHONUNBUFFERED": "1", **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._readers = []
        for stream in (self._child.stdout, self._child.stderr):
            reader = threading.Thread(target=self._keep, args=(stream,), daemon=True)
            reader.start()
            self._readers.append(reader)
        end = time.monotonic() + self.start_timeout_s
        while not self._ready.wait(0.02):
            if self._child.poll() is not None:
                self._reap()
                raise BrokerFailed(f"the broker ended with {self._child.returncode}\n{self.output}")
            if time.monotonic() > end:
                self.kill()
                limit = f"{self.start_timeout_s:g} s"
                raise BrokerFailed(f"the broker was not ready after {limit}\n{self.output}")

    def _keep(self, stream: object) -> None:
        """Read one of the child's streams to its end, so that the child never blocks on a full
        pipe."""
        for line in stream:  # type: ignore[attr-defined]
            self._lines.append(line)
            found = READY.match(line)
            if found:
                self.port = int(found[1])
                self._ready.set()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop the broker with SIGTERM; BrokerFailed if it fails or does not stop in time. Does
        nothing if it is not running."""
        if not self.running:
            return
        assert self._child is not None
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
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
        assert self._child is not None
        for reader in self._readers:
            reader.join()
        for stream in (self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
