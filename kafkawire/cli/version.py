"""`kafkawire version`: the installed version, for bug reports."""

from __future__ import annotations

import platform
from importlib.metadata import version

from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.parameters import Json


def run(as_json: Json = False) -> None:
    """Show the version.

    Examples:
      kafkawire version --json
    """
    facts = {"kafkawire": version("kafkawire"), "python": platform.python_version()}
    if as_json:
        print_json(facts)
    else:
        print(f"kafkawire {facts['kafkawire']} (Python {facts['python']})")
