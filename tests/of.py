"""`make test-of PATH`: run the tests of a module, a folder, or a file of tests, within a minute.

A test file is about the modules it imports (a name that a package exports counts for the module
that defines it), those it names in a string (`import_module`, patches, `python -m`), those that the
modules of tests/kit it uses import, and those its docstring lists after "Covers:", such as
`kafkawire.log.partition.hooks` or `kafkawire.messages.*`. Of these run those that list the module,
those in the folder that mirrors its package, and those that import it themselves, if these are few:
what every test imports is not tested by every test. Slow tests and those with real clients do not
run; `python -m tests.of --list PATH` prints the files.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "kafkawire", ROOT / "spark" / "kafkawire_spark")
FEW = 12
"""Test files that import a module, up to which all of them run."""
QUICK = {"SIM_SEEDS": "3", "HYPOTHESIS_PROFILE": "quick"}
COVERS = re.compile(r"^Covers: (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


@cache
def modules() -> tuple[str, ...]:
    """Every module of the product, without packages and migrations."""
    names = (
        path.relative_to(top.parent)
        for top in PACKAGES
        for path in sorted(top.rglob("*.py"))
        if path.stem != "__init__"
    )
    return tuple(_dotted(path) for path in names if "migrations" not in path.parts)


@cache
def tests() -> tuple[Path, ...]:
    """Every file of tests."""
    return tuple(sorted((ROOT / "tests").rglob("test_*.py")))


def covered(path: Path) -> set[str]:
    """Return the modules that a test file is about, through the kit too."""
    found: set[str] = set()
    waiting, seen = [path], {path}
    while waiting:
        for name in _named(waiting.pop()):
            if name.startswith(("kafkawire.", "kafkawire_spark.")):
                found.add(name)
            kit = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("tests.") and kit.is_file() and kit not in seen:
                seen.add(kit)
                waiting.append(kit)
    return found & set(modules())


def listed(path: Path) -> list[str]:
    """Return the entries that a test file lists after "Covers:"."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    found = COVERS.search(said)
    return [name.strip().rstrip(".") for name in found[1].split(",")] if found else []


def matches(pattern: str) -> list[str]:
    """Return the modules that an entry of "Covers:" names."""
    if pattern.endswith(".*"):
        return [name for name in modules() if name.startswith(pattern[:-1])]
    return [name for name in modules() if name == pattern]


@cache
def _named(path: Path) -> frozenset[str]:
    """Modules that a file imports or names in a string."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.update(_exported(node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(_prefixes(re.findall(r"kafkawire(?:_spark)?(?:\.\w+)+", node.value)))
    found.update(name for entry in listed(path) for name in matches(entry))
    return frozenset(found)


def _exported(package: str, name: str) -> str:
    """The module that defines what a package of the product exports."""
    if not (ROOT / package.replace(".", "/") / "__init__.py").is_file() or package[:5] == "tests":
        return ""
    return str(getattr(getattr(import_module(package), name, None), "__module__", ""))


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    """`a.b.C` names the module a.b too."""
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:count]) for count in range(2, len(parts) + 1))


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


@cache
def index() -> dict[str, list[Path]]:
    """Module -> the test files about it."""
    found: dict[str, list[Path]] = {name: [] for name in modules()}
    for path in tests():
        for name in covered(path):
            found[name].append(path)
    return found


def chosen(path: Path) -> list[Path]:
    """Return the test files of a module, of all modules below a folder, or the test file itself.
    Raises LookupError."""
    place = path.resolve()
    if (ROOT / "tests") in place.parents:
        return [place]
    names = [name for name in modules() if place in (_file(name), *_file(name).parents)]
    if not names:
        raise LookupError(f"{path} is no module or folder of kafkawire, and no test")
    found = {test for name in names for test in _tests_of(name)}
    return sorted(found) or sorted({test for name in names for test in index()[name]})


def _tests_of(name: str) -> Iterator[Path]:
    own = ROOT / "tests" / Path(*name.split(".")[1:-1])
    importing = [path for path in index()[name] if name in _named(path)]
    for path in importing:
        lists = any(name in matches(entry) for entry in listed(path))
        if lists or path.parent == own or len(importing) <= FEW:
            yield path


def _file(name: str) -> Path:
    top = next(top for top in PACKAGES if name.startswith(top.name + "."))
    return top.parent.joinpath(*name.split(".")).with_suffix(".py")


def main() -> None:
    """Run pytest with the chosen files; options that are not known here are pytest's."""
    parser = argparse.ArgumentParser("python -m tests.of")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--list", action="store_true", help="print the files of tests only")
    options, more = parser.parse_known_args()
    try:
        files = sorted({str(each.relative_to(ROOT)) for p in options.paths for each in chosen(p)})
    except LookupError as wrong:
        sys.exit(str(wrong))
    if options.list:
        print("\n".join(files))
        return
    marks = "not slow and not real and not java"
    words = ["-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", marks, *more, *files]
    os.chdir(ROOT)
    os.execve(sys.executable, [sys.executable, *words], {**os.environ, **QUICK})


if __name__ == "__main__":
    main()
