"""`kafkawire version`: the installed version, for bug reports."""

from __future__ import annotations

import platform
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import version
from importlib.util import find_spec

from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.parameters import Json


def run(as_json: Json = False) -> None:
    """Show the version.

    Examples:
      kafkawire version --json
    """
    compiled = is_compiled()
    facts = {
        "kafkawire": version("kafkawire"),
        "python": platform.python_version(),
        "compiled": compiled,
    }
    if as_json:
        print_json(facts)
    else:
        how = ", compiled" if compiled else ""
        print(f"kafkawire {facts['kafkawire']} (Python {facts['python']}{how})")


def is_compiled() -> bool:
    """Return whether the modules of the hot paths are compiled, as KAFKAWIRE_COMPILE builds them
    (setup.py)."""
    spec = find_spec("kafkawire.codec.walk")
    return spec is not None and str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES))
