"""The Python interpreter of Spark's workers: the driver's own, or one that has the packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.reading.model.source import SourceError

if TYPE_CHECKING:
    from pyspark import SparkContext

PYTHON = "PYSPARK_PYTHON"
SETTING = "spark.pyspark.python"
SPARKS_DEFAULT = "python3"
PACKAGES = ("numba", "numpy", "pyarrow")
"""Packages that tasks import and `addPyFile` cannot provide, because they are compiled."""
STARTS_WITHIN_S = 60.0  # a cold disk under load; usually 0.03
_QUERY = (
    "import importlib.util, json, sys; print(json.dumps(["
    "'.'.join(map(str, sys.version_info[:2])), "
    "[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]]))"
)


class WorkerPythonError(SourceError):
    """The workers' Python lacks packages; one sentence names it, them and the setting."""


def use_driver_python(context: SparkContext) -> None:
    """Have the sources and functions that are registered from now on run in the driver's Python.

    Only with a local master, and only if neither PYSPARK_PYTHON nor the session sets another one.
    Another one is checked, as far as it is installed on the driver's machine: Raises
    WorkerPythonError.
    """
    given = os.environ.get(PYTHON) or context.getConf().get(SETTING) or ""
    # Spark starts its workers, also those that plan on the driver, with the python3 of PATH. If the
    # driver was started by the path of a virtual environment that is not activated, that is another
    # Python, without pyarrow.
    if context.pythonExec == SPARKS_DEFAULT and (context.master or "").startswith("local"):
        context.pythonExec = given or sys.executable
    shipped = bool(context._python_includes)
    packages = PACKAGES if shipped else (*PACKAGES, "kafkawire", "kafkawire_spark")
    check_worker_python(context.pythonExec, packages)


def check_worker_python(python: str, packages: Sequence[str]) -> None:
    """Raise WorkerPythonError if this interpreter cannot import the packages or has another version
    than the driver's. One that is not on this machine is left to Spark."""
    found = shutil.which(python)
    if found is None or os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    try:
        done = subprocess.run(
            [found, "-c", _QUERY, *packages],
            capture_output=True, text=True, timeout=STARTS_WITHIN_S, check=True,
        )  # fmt: skip
        version, missing = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return  # Spark reports why it cannot start it
    own = ".".join(map(str, sys.version_info[:2]))
    problem = f"has no {', '.join(missing)}" if missing else f"is Python {version}, not {own}"
    if missing or version != own:
        raise WorkerPythonError(
            f"Spark's workers use {found}, which {problem}: set {PYTHON}={sys.executable}, or the "
            "path of another Python with kafkawire[spark], before the session is started"
        )
