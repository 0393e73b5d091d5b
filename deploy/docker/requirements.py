"""Print what kafkawire and the named extras of pyproject.toml depend on, as a requirements file.

    python requirements.py postgres,rocksdb spark > requirements.txt

The Dockerfile installs that before it copies the sources, so that a change of the sources does not
install the dependencies again. Exit code 2: there is no such extra.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Return the requirements of the table [project] and of extras, of which one may name others as
    kafkawire[s3,certs]; KeyError: an unknown one."""
    found: list[str] = list(project["dependencies"])
    left = list(extras)
    while left:
        for line in project["optional-dependencies"][left.pop(0)]:
            own = re.fullmatch(r"kafkawire\[(.*)\](?:==.*)?", line)
            if own:
                left += own[1].split(",")
            elif line not in found:
                found.append(line)
    return found


def main(arguments: list[str]) -> int:
    """Print the requirements for extras, which are separated by spaces or commas."""
    project, spark = (
        tomllib.loads(Path(folder, "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in (".", "spark")
    )
    # The extra names kafkawire-spark, which is installed from its sources.
    project["optional-dependencies"]["spark"] = spark["dependencies"]
    extras = [extra for argument in arguments for extra in argument.split(",") if extra]
    try:
        print("\n".join(requirements(project, extras)))
    except KeyError as error:
        known = ", ".join(project["optional-dependencies"])
        print(f"pyproject.toml has no extra {error}; it has {known}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
