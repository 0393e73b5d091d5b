"""Random faults on three machines that take over brokers of each other, with a checked history:
`python -m tests.trials.takeover --minutes 5 --seed 1`. Needs PostgreSQL and MinIO.

One fault at a time, then everything is healed and every machine gets its broker back. With
`--durability replicated`, followers fail as well, and the next fault waits until all followers are
in sync: a wiped machine loses its copies of the other machines' logs. Started by hand: a run takes
minutes, and shows what a fixed order of faults does not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import minio as servers
from tests.kit.history.clients import RecordedLoad
from tests.kit.history.history import Event, Kind, Result, waits_for_acks
from tests.kit.machines import LEASE_S, REPLICATED, S3, SQL, Machines
from tests.kit.postgres import new_database, postgres
from tests.kit.proxy import Network
from tests.kit.waiting import wait_until

TOPIC, SPREAD = "trial", [1, 2, 3, 1, 2, 3]
S3_LOG, REPLICATED_LOG = "s3", "replicated"
DURABILITIES = {S3_LOG: {}, REPLICATED_LOG: REPLICATED}
"""Settings of the machines by durability."""
MAX_FAULT_S = 4 * LEASE_S
"""Faults are healed before, during and after a takeover."""


class Faults:
    """The faults by name, each of one machine for some seconds."""

    def __init__(
        self, machines: Machines, load: RecordedLoad, seed: int, replicated: bool = False
    ) -> None:
        self._machines = machines
        self._load = load
        self._replicated = replicated
        self._random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._all: dict[str, Callable[[int, float], None]] = {
            "kill": self._kill,
            "wipe": self._wipe,
            "stop": self._stop,
            "pause": self._pause,
            "hold SQL": lambda node, seconds: self._hold(node, SQL, seconds),
            "hold S3": lambda node, seconds: self._hold(node, S3, seconds),
            "reset SQL": lambda node, _: self._machines.network.cut(str(node), SQL),
            "reset S3": lambda node, _: self._machines.network.cut(str(node), S3),
        }
        if replicated:
            self._all["pause follower"] = self._pause_follower
            self._all["kill follower"] = lambda node, _: self._machines.kill_follower(node)

    def next(self) -> Event:
        """Cause a fault, heal it, and wait until all is as before; return the fault."""
        name = self._random.choice([*self._all])
        node = self._random.choice([*self._machines.machines])
        seconds = self._random.uniform(0, MAX_FAULT_S)
        self.counts[name] += 1
        fault = self._load.history.fault(f"{name} of machine {node} for {seconds:.1f} s")
        print(f"{time.strftime('%H:%M:%S')} {fault.note}", flush=True)
        self._all[name](node, seconds)
        self._machines.wait_for_all_at_home()
        self._load.heal()
        if self._replicated:
            self._machines.wait_for_all_in_sync()
        return fault

    def _kill(self, node: int, seconds: float) -> None:
        self._machines.kill(node)
        time.sleep(seconds)
        self._machines.start(node)

    def _wipe(self, node: int, seconds: float) -> None:
        self._machines.kill(node)
        time.sleep(seconds)
        self._machines.wipe(node)
        self._machines.start(node)

    def _stop(self, node: int, seconds: float) -> None:
        self._machines.stop(node)
        time.sleep(seconds)
        self._machines.start(node)

    def _pause(self, node: int, seconds: float) -> None:
        self._machines.pause(node)
        time.sleep(seconds)
        self._machines.resume(node)

    def _pause_follower(self, node: int, seconds: float) -> None:
        pid = self._machines.pause_follower(node)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def _hold(self, node: int, server: str, seconds: float) -> None:
        with self._machines.network.silent(str(node), server):
            time.sleep(seconds)


def run(folder: Path, seed: int, minutes: float, durability: str = S3_LOG) -> int:
    """Cause faults for some minutes; return the number of findings."""
    settings, replicated = DURABILITIES[durability], durability == REPLICATED_LOG
    with (
        pytest.MonkeyPatch.context() as patch,
        postgres() as url,
        servers.running(folder / "minio") as minio,
        Network() as network,
    ):
        tier = servers.new_tier(minio, patch)
        database = asyncio.run(new_database(url))
        with Machines(folder, network, database, minio, tier, settings=settings) as machines:
            wait_until(lambda: machines.listed(1) == [1, 2, 3], "all brokers")
            machines.create_everywhere(TOPIC, SPREAD)
            return _faults(folder, machines, seed, minutes, replicated)


def _faults(folder: Path, machines: Machines, seed: int, minutes: float, replicated: bool) -> int:
    end = time.monotonic() + minutes * 60
    load = RecordedLoad(machines.addresses, TOPIC, len(SPREAD), socket_timeout_ms=10_000)
    longest = 0.0
    with load:
        load.wait_for_progress()
        if replicated:
            machines.wait_for_all_in_sync()
        faults = Faults(machines, load, seed, replicated)
        while time.monotonic() < end:
            fault = faults.next()
            waits = waits_for_acks(load.history, since=fault.at, until=time.monotonic())
            print(f"  longest wait for an acknowledgement: {max(waits.values()):.1f} s", flush=True)
            longest = max(longest, *waits.values())
    found = load.findings(machines.bootstrap(1), folder / "history")
    acked = sum(
        each.kind is Kind.PRODUCE and each.result is Result.OK for each in load.history.events
    )
    print(f"{acked:,} records acknowledged, faults {dict(faults.counts)}, longest {longest:.1f} s")
    print(f"{len(found)} findings {Counter(each.kind for each in found)}, seed {seed}, {folder}")
    for each in found[:20]:
        print(f"  {each}")
    return len(found)


def main() -> int:
    """Return 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--durability", choices=[*DURABILITIES], default=S3_LOG)
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="kafkawire-takeover-"))
    return 1 if run(folder, seed, given.minutes, given.durability) else 0


if __name__ == "__main__":
    raise SystemExit(main())
