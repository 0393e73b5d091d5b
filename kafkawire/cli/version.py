"""`kafkawire version`: the installed version, for bug reports. Called by kafkawire.cli.app."""

from __future__ import annotations

import platform
from importlib.metadata import version

from kafkawire.cli.output import print_json


def run(as_json: bool) -> None:
    """Print the version of kafkawire and of the Python it runs on."""
    facts = {"kafkawire": version("kafkawire"), "python": platform.python_version()}
    if as_json:
        print_json(facts)
    else:
        print(f"kafkawire {facts['kafkawire']} (Python {facts['python']})")
