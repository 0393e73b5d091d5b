"""Entry point of the `kafkawire` command: runs `serve` directly, other commands through typer.

typer (with pydantic) takes a fifth of a broker's start-up time, so the plain form of `serve` is
parsed here by hand. Anything else (--help, an invalid option, another command) is passed to
kafkawire.cli.app, which declares the same options with their help; a test checks that both parse
equally. Called by kafkawire.__main__ and by the `kafkawire` script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.cli import INTERRUPTED

if TYPE_CHECKING:
    from kafkawire.cli.serving.run import Given


def main() -> None:
    """Run the program; ends with SystemExit. Imports are inside, so that Ctrl-C never shows a
    traceback."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)


def _run() -> int:
    given = plain_serve(sys.argv[1:])
    if given is not None:
        from kafkawire.cli.serving.run import run

        return run(given, os.environ)
    from kafkawire.cli.app import app

    app(prog_name="kafkawire")
    return 0


def plain_serve(arguments: Sequence[str]) -> Given | None:
    """Options of a plain `serve`, or None if typer must parse the arguments."""
    if arguments[:1] != ["serve"]:
        return None
    from kafkawire.cli.serving.run import Given
    from kafkawire.cli.serving.sources import DEFAULTS, FLAGS, LISTS

    takes_a_value = {*DEFAULTS, "set", "config", "worker"} - set(FLAGS)
    found: dict[str, list[str]] = {}
    show_config = False
    words = iter(arguments[1:])
    for word in words:
        if word == "--show-config":
            show_config = True
            continue
        if word.removeprefix("--") in FLAGS and word.startswith("--"):
            found[word.removeprefix("--")] = ["true"]
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name not in takes_a_value:
            return None
        if not equals:
            following = next(words, None)
            if following is None:
                return None
            value = following
        found.setdefault(name, []).append(value)
    options = {n: v if n in LISTS else v[-1:] for n, v in found.items() if n in DEFAULTS}
    config, worker = (found.get(name, [None])[-1] for name in ("config", "worker"))
    return Given(options, found.get("set", []), config, show_config, worker)
