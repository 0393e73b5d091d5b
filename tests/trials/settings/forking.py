"""Runs the command line many times in one process: `python -m tests.trials.settings.forking`.

It imports `kafkawire` once and forks for each line of JSON on standard input ({"words": [...],
"environ": {...}}); the answer is a line with exit code, output and errors. A broker that starts
instead of refusing is ended by an alarm, which shows as code -14.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from typing import IO, Any

ENDED_AFTER_S = 10
SHOWN_BYTES = 4000


def run(words: list[str], environ: dict[str, str], out: IO[bytes], err: IO[bytes]) -> None:
    """In the child: become the command; does not return."""
    code = 70
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        signal.alarm(ENDED_AFTER_S)
        os.environ.update(environ)
        sys.argv = ["kafkawire", *words]
        from kafkawire.cli.main import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ask(line: str) -> dict[str, Any]:
    """One command, from its line to its answer."""
    asked = json.loads(line)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            run(asked["words"], asked["environ"], out, err)
        _, status = os.waitpid(pid, 0)
        found: dict[str, Any] = {"code": os.waitstatus_to_exitcode(status)}
        for name, file in (("out", out), ("err", err)):
            file.seek(0)
            found[name] = file.read(SHOWN_BYTES).decode(errors="replace")
        return found


def main() -> None:
    """Answer until the input ends."""
    import kafkawire.cli.main
    import kafkawire.cli.serving.run  # noqa: F401  (imported once for all children)

    for line in sys.stdin:
        print(json.dumps(ask(line)), flush=True)


if __name__ == "__main__":
    main()
