"""`python -m tests.trials --minutes 30 --seed 1 [--only kill] [--round 7] [--keep] [--short]`."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys

from tests.trials.context import Trial
from tests.trials.runner import Runner


def all_trials() -> list[Trial]:
    """All trials, in the order they run."""
    from tests.trials.flip.trial import TRIAL as FLIP
    from tests.trials.kill.trial import TRIAL as KILL
    from tests.trials.rot.trial import TRIAL as ROT
    from tests.trials.settings.trial import TRIAL as SETTINGS
    from tests.trials.starve.trial import TRIAL as STARVE
    from tests.trials.transactions.trial import TRIAL as TRANSACTIONS
    from tests.trials.wire.trial import TRIAL as WIRE

    return [KILL, TRANSACTIONS, FLIP, ROT, WIRE, STARVE, SETTINGS]


def arguments(words: list[str]) -> argparse.Namespace:
    """The parsed command line; exits with code 2 and a sentence where it is invalid."""
    trials = [trial.name for trial in all_trials()]
    parser = argparse.ArgumentParser("python -m tests.trials", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="shared by the trials")
    parser.add_argument("--seed", type=int, help="decides what is tried; without: a random one")
    parser.add_argument("--only", action="append", choices=trials, help="this trial; repeatable")
    parser.add_argument("--round", type=int, help="repeat this round alone, with --only and --seed")
    parser.add_argument(
        "--match",
        default="",
        help="only cases with one of these in their name, as `journal flip,segment` (flip)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder of a failed round")
    parser.add_argument("--short", action="store_true", help="the short rounds of `make test`")
    chosen = parser.parse_args(words)
    if not chosen.minutes > 0:
        parser.error(f"--minutes {chosen.minutes:g}: must be above 0")
    if chosen.round is not None and (chosen.seed is None or chosen.only is None):
        parser.error("--round needs --seed and --only: it repeats one round of one trial")
    return chosen


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    chosen = arguments(sys.argv[1:])
    logging.getLogger().addHandler(logging.NullHandler())  # a broker in this process is measured
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    trials = [t for t in all_trials() if chosen.only is None or t.name in chosen.only]
    runner = Runner(
        trials,
        seed,
        chosen.minutes,
        only_round=chosen.round,
        keep=chosen.keep,
        short=chosen.short,
        match=chosen.match,
    )
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
