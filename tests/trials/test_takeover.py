"""The faults of the takeover trial, on machines that only note what is done to them."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kit.history.history import History
from tests.trials.takeover import Faults


class NotedMachines:
    """Stands for Machines and their Network: `calls` are the methods that were called."""

    def __init__(self) -> None:
        self.machines = {1: None, 2: None, 3: None}
        self.network = self
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> Any:
            self.calls.append(name)
            return self

        return call

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> NotedMachines:
    made = NotedMachines()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(os, "kill", made.resume_process)
    return made


def cause(machines: NotedMachines, replicated: bool) -> Faults:
    """Cause a hundred faults."""
    load = SimpleNamespace(history=History(), heal=lambda: None)
    faults = Faults(cast("Any", machines), cast("Any", load), 1, replicated)
    for _ in range(100):
        faults.next()
    return faults


def test_followers_fail_only_where_they_are_needed(machines: NotedMachines) -> None:
    names = {*cause(machines, replicated=False).counts}
    assert "wait_for_all_in_sync" not in machines.calls
    more = {*cause(machines, replicated=True).counts}
    assert more - names == {"kill follower", "pause follower"}


def test_next_fault_waits_until_all_is_as_before(machines: NotedMachines) -> None:
    faults = cause(machines, replicated=True)
    calls = machines.calls
    assert calls.count("pause_follower") == calls.count("resume_process") > 0
    assert calls.count("wipe") == faults.counts["wipe"] > 0
    waits = [at for at, name in enumerate(calls) if name == "wait_for_all_in_sync"]
    assert len(waits) == 100
    assert all(calls[at - 1] == "wait_for_all_at_home" for at in waits)
    assert calls[-1] == "wait_for_all_in_sync"
