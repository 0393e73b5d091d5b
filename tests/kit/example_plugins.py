"""The plug-ins of examples/plugins, installed for a test: pip puts them into a folder for
PYTHONPATH, so that nothing else of the run sees them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

EXAMPLE = Path(__file__).parents[2] / "examples/plugins"


def install(folder: Path) -> Path:
    """Install the example with pip; return the folder for PYTHONPATH."""
    source, target = folder / "source", folder / "installed"
    shutil.copytree(EXAMPLE, source)  # setuptools builds in it
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", *words, "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=240)
    return target


def load() -> ModuleType:
    """Import the module of the example from its file."""
    spec = importlib.util.spec_from_file_location("example_plugins", EXAMPLE / "example_plugins.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
