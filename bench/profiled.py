"""Run a module with cProfile ready: `profiled.py OUTPUT MODULE ARGUMENT...`.

SIGUSR1 starts profiling the main thread, SIGUSR2 stops it and writes OUTPUT, so that start-up and
warm-up are excluded. Not imported by any module: bench.profile starts the broker through this file.
"""

from __future__ import annotations

import cProfile
import os
import runpy
import signal
import sys


def main() -> None:
    """Run the module; end with its exit code."""
    output, module = sys.argv[1:3]
    profile = cProfile.Profile()

    def begin(*_: object) -> None:
        profile.enable()

    def end(*_: object) -> None:
        profile.disable()
        profile.dump_stats(output + ".new")
        os.rename(output + ".new", output)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    sys.argv[:] = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
