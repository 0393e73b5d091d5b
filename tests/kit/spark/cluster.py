"""A real Spark cluster on this machine: Spark's own master and workers, of the pyspark installed.

    with cluster(folder) as spark:
        driver = spark.start_driver("tests/kit/spark/job.py", ...)   # in a process of its own
        spark.kill(0)               # a worker with its executor, as when a machine ends
        rows = result(driver)

Small: a core and an executor for each worker. All processes are children of this one, and are
ended at the end, with the executors and Python workers they began.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.kit.jvm import spark_options
from tests.kit.minio import _die_with_parent
from tests.kit.ports import free_port

ROOT = Path(__file__).parent.parent.parent.parent
READY_WITHIN_S = 180.0
HOST = "127.0.0.1"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
CONF = {
    "spark.executor.memory": "640m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": spark_options(),
    "spark.driver.memory": "640m",
    # No task begins before both workers are registered: else the first may run all of them.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass
class Cluster:
    """A master and its workers. `url`: the master URL for drivers."""

    folder: Path
    environ: Mapping[str, str]
    port: int = field(default_factory=free_port)
    web_port: int = field(default_factory=free_port)
    master: psutil.Popen | None = None
    workers: list[psutil.Popen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def start(self, workers: int) -> None:
        """Start the processes and wait until all workers have registered."""
        ports = ["--port", str(self.port), "--webui-port", str(self.web_port)]
        self.master = self._process("master", MASTER, *ports)
        self._until_alive(0)
        for index in range(workers):
            size = ["--cores", "1", "--memory", "1g", "--port", "0", "--webui-port", "0"]
            work = ["--work-dir", str(self.folder / f"work-{index}")]
            child = self._process(f"worker-{index}", WORKER, *size, *work, self.url)
            self.workers.append(child)
        self._until_alive(workers)

    def _process(self, name: str, of: str, *arguments: str) -> psutil.Popen:
        import pyspark

        home = Path(pyspark.__file__).parent
        environ = {
            **os.environ, **self.environ,
            "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "local"), "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        with self._log(name).open("ab") as log:
            return psutil.Popen(
                [str(home / "bin" / "spark-class"), of, "--host", HOST, *arguments],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environ,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )  # fmt: skip

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _until_alive(self, workers: int) -> None:
        end = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < end:
            for name, child in self._named():
                assert child.poll() is None, f"the {name} ended:\n{self._log(name).read_text()}"
            if self.state().get("aliveworkers", -1) >= workers:
                return
            time.sleep(0.1)
        raise AssertionError(f"not {workers} workers in time:\n{self.logs()}")

    def _named(self) -> Iterator[tuple[str, psutil.Popen]]:
        if self.master is not None:
            yield "master", self.master
        for index, child in enumerate(self.workers):
            yield f"worker-{index}", child

    def logs(self) -> str:
        """The last lines of all logs, for a failure message."""
        return "\n".join(
            f"{name}: {self._log(name).read_text()[-2000:]}" for name, _ in self._named()
        )

    def state(self) -> dict[str, Any]:
        """The master's own report of its state; {} while it does not respond."""
        page = f"http://{HOST}:{self.web_port}/json/"
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                found = json.load(answer)
        except (OSError, ValueError):
            return {}
        assert isinstance(found, dict)
        return found

    def start_driver(self, script: str, *arguments: str, **conf: str) -> subprocess.Popen[str]:
        """Start a driver: a Python script of the repository, given the master's URL, the settings
        as JSON, and the arguments."""
        settings = json.dumps({**CONF, "spark.local.dir": str(self.folder / "local"), **conf})
        return subprocess.Popen(
            [sys.executable, "-P", script, self.url, settings, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **self.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": HOST},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )  # fmt: skip

    def kill(self, index: int) -> None:
        """Kill a worker, its executors, and their Python processes, without a clean shutdown."""
        _kill(self.workers[index])
        self.workers[index].wait(90)

    def close(self) -> None:
        for _, child in self._named():
            _kill(child)
            child.wait(90)


def _kill(child: psutil.Process) -> None:
    """Kill a child and all its descendants; these are listed first, since no orphan would be
    found."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [*child.children(recursive=True), child]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def result(driver: subprocess.Popen[str], within_s: float = 540.0) -> Any:
    """The JSON that a driver printed in its last line. AssertionError with its output if it
    fails."""
    try:
        output, errors = driver.communicate(timeout=within_s)
    finally:
        if driver.poll() is None:
            _kill(psutil.Process(driver.pid))
            driver.wait(90)
    assert driver.returncode == 0, f"the driver ended with {driver.returncode}:\n{errors[-6000:]}"
    return json.loads(output.strip().rsplit("\n", 1)[-1])


@contextlib.contextmanager
def cluster(folder: Path, *, workers: int = 2, **environ: str) -> Iterator[Cluster]:
    """A cluster with the given environment for its executors."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Cluster(folder, environ)
    try:
        made.start(workers)
        yield made
    finally:
        made.close()
