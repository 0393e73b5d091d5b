"""The context of a trial's round: a seed, a folder, a time limit, and the findings it reports.

A round counts its checks (`tried`) and reports those that failed (`broken`); it continues after a
finding as far as possible. The same seed gives the same round, as far as a broker in another
process allows that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

MAX_FINDINGS = 20
"""Findings kept of one round: a broken broker fails every check, and the first findings say why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A check that failed, and how to repeat it."""

    trial: str
    seed: int
    round: int
    text: str
    short: bool = False

    @property
    def again(self) -> str:
        """The command that repeats the round."""
        chosen = f"--only {self.trial} --seed {self.seed} --round {self.round}"
        return f"python -m tests.trials {chosen}" + (" --short" if self.short else "")


@dataclass(slots=True)
class Context:
    """One round of one trial. `short`: a few to some tens of seconds are all there is."""

    trial: str
    seed: int
    round: int
    folder: Path
    ends_at: float
    short: bool = False
    keep: bool = False
    match: str = ""
    """Run only cases whose name contains one of these, separated by commas; empty: all."""
    say: Callable[[str], None] = lambda text: None
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    suppressed: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    """The output of brokers, by file name; kept with the folder of a failed round."""
    rng: Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = Random(f"{self.trial}:{self.seed}:{self.round}")

    @property
    def left_s(self) -> float:
        """Seconds until the trial's share of the time is over."""
        return self.ends_at - time.monotonic()

    def tried(self, what: str, count: int = 1) -> None:
        """Count something that was done or checked."""
        self.counts[what] += count

    def broken(self, text: str) -> None:
        """Report a finding; equal ones are reported once."""
        if any(known.text == text for known in self.findings):
            return
        if len(self.findings) >= MAX_FINDINGS:
            self.suppressed += 1
            return
        self.findings.append(Finding(self.trial, self.seed, self.round, text, self.short))
        self.say(f"NOT HELD: {text}")

    def check(self, holds: bool, what: str, otherwise: str) -> bool:
        """Count a check, and report it if it failed; return whether it passed."""
        self.tried(what)
        if not holds:
            self.broken(otherwise)
        return holds


@dataclass(frozen=True, slots=True)
class Trial:
    """One kind of trial: `round` runs once and returns when it is done or the time is over.
    `weight`: its part of the minutes, compared with the others."""

    name: str
    about: str
    round: Callable[[Context], Coroutine[Any, Any, None]]
    weight: float = 1.0
