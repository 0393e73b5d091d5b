"""Entry point of the `kafkawire` command: runs `serve` directly, other commands through typer.

typer (with pydantic) takes a fifth of a broker's start-up time, so `serve` starts without it; its
help is printed by typer as that of other commands. Called by kafkawire.__main__ and by the
`kafkawire` script.
"""

from __future__ import annotations

import sys

from kafkawire.cli import INTERRUPTED


def main() -> None:
    """Run the program; ends with SystemExit. Imports are inside, so that Ctrl-C never shows a
    traceback."""
    try:
        code = _run()
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)


def _run() -> int:
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        from kafkawire.cli.serving.run import start

        code = start(words[1:])
        if code is not None:
            return code
    from kafkawire.cli.app import app

    app(prog_name="kafkawire")
    return 0
