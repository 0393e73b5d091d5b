"""An environment with only what `pip install kafkawire` brings, without a network.

Its packages are links to those of the environment of the tests.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent


def bare_environment(folder: Path, *extras: str, wheel_of: Path | None = None) -> Path:
    """Make an environment with these extras of kafkawire; return its interpreter. kafkawire is this
    checkout, or a wheel that is built from the checkout `wheel_of`."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    if wheel_of is None:
        (_packages(folder) / "kafkawire.pth").write_text(f"{ROOT}\n")
    else:
        build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
        run_quietly(*build, wheel_of)
        (wheel,) = folder.glob("*.whl")
        run_quietly("-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    _link(folder, required(*extras))
    return python


def add_packages(folder: Path, *names: str) -> None:
    """Add distributions, and what they need, to the environment in a folder."""
    _link(folder, _closure([Requirement(name) for name in names]))


def run_quietly(*words: str | Path) -> None:
    """Run a module of this environment's Python, which prints only what fails."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _link(folder: Path, names: set[str]) -> None:
    for name in names:
        for file in distribution(name).files or ():
            top = Path(str(file)).parts[0]
            origin, link = Path(str(distribution(name).locate_file(top))), _packages(folder) / top
            if top != ".." and not link.exists() and origin.exists():
                link.symlink_to(origin)


def _packages(folder: Path) -> Path:
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


def required(*extras: str) -> set[str]:
    """The names of all distributions that kafkawire with these extras needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    rows = [*project["dependencies"], *(row for extra in extras for row in optional[extra])]
    return _closure([Requirement(row) for row in rows], optional)


def _closure(left: list[Requirement], own: Mapping[str, list[str]] = {}) -> set[str]:
    """The names of the distributions in `left`, and of all that they need. `own`: the extras of
    kafkawire, which has none that are installed; kafkawire-spark is one of the others."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while left:
        each = left.pop()
        if each.name == "kafkawire":
            left += [Requirement(row) for extra in each.extras for row in own[extra]]
            continue
        found.add(each.name)
        for extra in {"", *each.extras} - {extra for name, extra in seen if name == each.name}:
            seen.add((each.name, extra))
            for row in map(Requirement, distribution(each.name).requires or ()):
                if row.marker is None or row.marker.evaluate({"extra": extra}):
                    left.append(row)
    return found


def size_bytes(*extras: str) -> int:
    """The bytes of the files of all these distributions, and of kafkawire, with their bytecode."""
    own = sum(path.stat().st_size for path in ROOT.glob("kafkawire*/**/*.py"))
    files = (
        Path(str(distribution(name).locate_file(file)))
        for name in required(*extras)
        for file in distribution(name).files or ()
    )
    return own + sum(path.stat().st_size for path in files if path.exists())


if __name__ == "__main__":
    for extras in ((), ("s3",), ("cluster",), ("sql",), ("all",)):
        print(f"kafkawire{list(extras) or ''}: {size_bytes(*extras) / 1e6:.0f} MB", file=sys.stdout)
