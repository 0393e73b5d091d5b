"""Run trials: share the minutes, repeat rounds, and report at the end what was checked and what
failed."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.trials.context import Context, Finding, Trial


@dataclass(slots=True)
class Result:
    """All rounds of one trial."""

    trial: Trial
    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    suppressed: int = 0


def console() -> Console:
    """Colours and tables on a terminal, plain lines elsewhere."""
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


class Runner:
    """Runs trials. `only_round`: repeat this round alone."""

    def __init__(
        self,
        trials: Sequence[Trial],
        seed: int,
        minutes: float,
        *,
        only_round: int | None = None,
        keep: bool = False,
        short: bool = False,
        match: str = "",
    ) -> None:
        self.trials, self.seed, self.minutes = trials, seed, minutes
        self.only_round, self.keep, self.short = only_round, keep, short
        self.match = match
        self.out = console()
        self.results: list[Result] = []

    def run(self) -> int:
        """Run everything; the exit code is 1 where a check failed."""
        names = ", ".join(trial.name for trial in self.trials)
        self.out.print(f"trials: {names}; {self.minutes:g} minutes; SEED={self.seed}")
        for trial in self.trials:
            result = Result(trial)
            self.results.append(result)
            try:
                self._rounds(result)
            except KeyboardInterrupt:
                self.out.print("interrupted")
                break
        self.report()
        return 1 if any(result.findings for result in self.results) else 0

    def _rounds(self, result: Result) -> None:
        """Rounds of one trial until its share of the time is over; at least one."""
        share = result.trial.weight / sum(trial.weight for trial in self.trials)
        began = time.monotonic()
        ends_at = began + share * self.minutes * 60
        number = self.only_round or 0
        while True:
            self._round(result, number, ends_at)
            number += 1
            if self.only_round is not None or time.monotonic() >= ends_at:
                break
        result.seconds = time.monotonic() - began

    def _round(self, result: Result, number: int, ends_at: float) -> None:
        name = result.trial.name
        folder = Path(tempfile.mkdtemp(prefix=f"kafkawire-trial-{name}-"))

        def say(text: str) -> None:
            self.out.print(
                escape(f"{time.strftime('%H:%M:%S')} {name} {self.seed}/{number}: {text}")
            )

        context = Context(
            name, self.seed, number, folder, ends_at, self.short, self.keep, self.match, say
        )
        say("begins")
        try:
            asyncio.run(result.trial.round(context))
        except Exception:
            context.broken(f"the trial itself failed:\n{traceback.format_exc()}")
        result.rounds += 1
        result.counts += context.counts
        result.findings += context.findings
        result.suppressed += context.suppressed
        for name_, text in context.outputs.items():
            (folder / name_).write_text(text)
        if self.keep and context.findings:
            say(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
        say("; ".join(f"{what} {count:,}" for what, count in sorted(context.counts.items())))

    def report(self) -> None:
        """The table of checks, and the findings."""
        table = Table("trial", "tried", "count", title=f"SEED={self.seed}")
        for result in self.results:
            held = "held" if not result.findings else f"{len(result.findings)} findings"
            head = f"{result.rounds} rounds, {result.seconds:.0f} s, {held}"
            table.add_row(result.trial.name, head, "", style="red" if result.findings else "")
            for what, count in sorted(result.counts.items()):
                table.add_row("", what, f"{count:,}")
        self.out.print(table)
        for result in self.results:
            for finding in result.findings:
                self.out.print(
                    escape(f"NOT HELD: {finding.trial}: {finding.text}\n  {finding.again}")
                )
            if result.suppressed:
                self.out.print(f"{result.trial.name}: {result.suppressed} more not shown")
