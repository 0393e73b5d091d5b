"""The native load client: compile it where its sources are newer, run it, read its JSON lines.

Jobs and the names of all options are described in native/main.c; options are passed on unchanged.
Called by the runner, the guard and the profile.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.payload import CODECS, payload_file

BENCH = Path(__file__).parent
OUT = BENCH / "out"
# A cell may take long on a slow peer: a drain of acks=0 alone may last a minute.
RUN_LIMIT_S = 180

Options = Mapping[str, int | float | str]


class LoadError(Exception):
    """The client could not be built, or a run could not go on."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a run: its mode and options, as native/main.c names them."""

    mode: str
    options: Options


@dataclass(frozen=True, slots=True)
class JobResult:
    """The measurements of one job within the window; latencies in microseconds."""

    mode: str
    requests: int
    records: int
    bytes: int
    seconds: float
    requests_s: float
    records_s: float
    mb_s: float
    latency_us: dict[str, float]
    unsent: int  # open loop: due, but not sent when the run was stopped
    server_cpu_s: float
    client_cpu_s: float
    errors: int
    error: str | None

    @property
    def cpu_us(self) -> float:
        """Server CPU microseconds per request of this job (of all jobs, when there are several)."""
        return self.server_cpu_s / self.requests * 1e6 if self.requests else 0.0

    @property
    def client_busy(self) -> float:
        """How busy the client was, 0 to 1: near 1 the figure is the client's, not the broker's."""
        return min(1.0, self.client_cpu_s / self.seconds) if self.seconds else 0.0


def build() -> Path:
    """Compiles native/*.c into out/load and returns its path."""
    sources = sorted((BENCH / "native").glob("*.[ch]"))
    binary = OUT / "load"
    if binary.exists() and binary.stat().st_mtime > max(f.stat().st_mtime for f in sources):
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise LoadError("the load client needs a C compiler (cc)")
    OUT.mkdir(exist_ok=True)
    unfinished = OUT / f"load.{os.getpid()}.new"  # concurrent tests may build at the same time
    command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", str(unfinished)]
    command += [str(f) for f in sources if f.suffix == ".c"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadError(f"the load client does not compile:\n{done.stderr}")
    unfinished.replace(binary)
    return binary


def with_payload(options: Options) -> dict[str, int | float | str]:
    """Options with a codec's name turned into its number and a payload file."""
    known = dict(options)
    codec = known.get("codec")
    if isinstance(codec, str):
        path = payload_file(OUT, codec, int(known["record_bytes"]), int(known["records"]))
        known |= {"codec": CODECS[codec], "payload": str(path)}
    return known


def words(options: Options) -> list[str]:
    """Options as NAME=VALUE for the command line."""
    return [f"{name}={value}" for name, value in options.items()]


def run(jobs: Sequence[Job], options: Options) -> list[JobResult]:
    """Run the client once; a failed check is in the results, a broken run raises LoadError."""
    command = [str(build()), *words(options)]
    for number, job in enumerate(jobs):
        command += ["+"] if number else []
        command += [job.mode, *words(with_payload(job.options))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=RUN_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise LoadError(f"no end after {RUN_LIMIT_S} s: {' '.join(command[1:])}") from None
    if done.returncode not in (0, 1):
        raise LoadError(done.stderr.strip() or f"the load client ended with {done.returncode}")
    return [JobResult(**json.loads(found)) for found in done.stdout.splitlines()]


def ceiling(job: Job, seconds: float, server_core: int, client_core: int) -> JobResult:
    """The client's rate against its own responder: the highest rate it could show for any
    broker."""
    options = {
        "ceiling": 1, "seconds": seconds, "server_core": server_core, "client_core": client_core
    }  # fmt: skip
    return run([job], options)[0]
