"""The build of the optional compiled modules; everything else is in pyproject.toml.

`KAFKAWIRE_COMPILE=3` in the environment compiles the modules of the hot paths with mypyc (part of
mypy), at this optimization level of the C compiler: 0 to 3. Without it nothing is compiled and the
wheel is pure Python. The source files are in both wheels, and are the same.
"""

from __future__ import annotations

import os
import sys

from setuptools import setup

COMPILED = [
    "kafkawire/codec/fetch.py",
    "kafkawire/codec/flat.py",
    "kafkawire/codec/validate.py",
    "kafkawire/codec/varint.py",
    "kafkawire/codec/walk.py",
    "kafkawire/handlers/budget.py",
    "kafkawire/handlers/exchange.py",
    "kafkawire/handlers/fetch/context.py",
    "kafkawire/handlers/fetch/handler.py",
    "kafkawire/handlers/fetch/request.py",
    "kafkawire/handlers/produce/handler.py",
    "kafkawire/handlers/produce/pending.py",
    "kafkawire/handlers/produce/repeat.py",
    "kafkawire/handlers/produce/shape.py",
    "kafkawire/log/append/commit_log.py",
    "kafkawire/log/append/disk_sink.py",
    "kafkawire/log/io/gathered_write.py",
    "kafkawire/log/io/watchdog.py",
    "kafkawire/log/journal/file.py",
    "kafkawire/log/journal/write_batch.py",
    "kafkawire/log/partition/hot_index.py",
    "kafkawire/log/partition/partition.py",
    "kafkawire/log/partition/producers.py",
    "kafkawire/log/partition/read_plan.py",
    "kafkawire/log/partition/state.py",
    "kafkawire/messages/flat_produce.py",
    "kafkawire/metric_counters.py",
    "kafkawire/offsets/manager.py",
    "kafkawire/server/connection.py",
    "kafkawire/server/memory.py",
    "kafkawire/server/receiving.py",
    "kafkawire/server/sasl_connection.py",
    "kafkawire/server/throttled.py",
]
"""What every small Produce and Fetch passes. A class of these modules can have no base and no
subclass in a module that is not compiled, and its attributes cannot be replaced."""

GROUP = "kafkawire"
"""The name of the shared library of all of them: `kafkawire__mypyc`."""

COMMANDS = {"bdist_wheel", "build", "build_ext"}
"""Those that compile; an sdist and an editable installation need nothing compiled."""


def main() -> None:
    """Build, with compiled modules if KAFKAWIRE_COMPILE is set."""
    level = os.environ.get("KAFKAWIRE_COMPILE", "")
    if not level or not COMMANDS.intersection(sys.argv):
        setup()
        return
    if level not in ("0", "1", "2", "3"):
        raise SystemExit(f"KAFKAWIRE_COMPILE={level}: must be an optimization level, 0 to 3")
    try:
        from mypyc.build import mypycify
    except ImportError:
        raise SystemExit(
            "KAFKAWIRE_COMPILE needs mypy: pip install 'kafkawire[fast]', build without isolation"
        ) from None
    # Errors in other modules are not of interest: they import what is not installed for a build.
    options = ["--follow-imports=silent", "--ignore-missing-imports", "--no-warn-unused-ignores"]
    modules = mypycify([*options, *COMPILED], opt_level=level, debug_level="0", group_name=GROUP)
    setup(ext_modules=modules)


main()
