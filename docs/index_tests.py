"""Write docs/tests.md: for each module, the test files that are about it.

A test file is about the modules it imports (a name that a package exports counts for the module
that defines it), those it names in a string (`import_module`, patches, `python -m`), those that the
modules of tests/kit it uses import, and those its docstring lists after "Covers:", such as
`kafkawire.log.partition.hooks` or `kafkawire.messages.*`. Called by docs/generate.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "kafkawire", ROOT / "spark" / "kafkawire_spark")
SHOWN = 5
"""Test files in a row of the table: those in the module's own folder of tests come first."""
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
    """The modules that a test file is about, through the kit too."""
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
    """What a test file lists after "Covers:", as it stands there."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    found = COVERS.search(said)
    return [name.strip().rstrip(".") for name in found[1].split(",")] if found else []


def matches(pattern: str) -> list[str]:
    """The modules that an entry of "Covers:" names."""
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


def page() -> str:
    """docs/tests.md."""
    found = index()
    packages: dict[str, list[str]] = {}
    for name in found:
        packages.setdefault(name.rpartition(".")[0], []).append(name)
    parts = [
        "# Tests of each module\n\nMade by `make docs` from the imports of the tests and their kit,"
        ' and from what tests list\nafter "Covers:" in their docstrings. Tests in the folder that'
        f" mirrors the package come first,\nat most {SHOWN} of each module are shown.\n"
    ]
    for package, names in packages.items():
        rows = [_row(name, found[name]) for name in names if found[name]]
        if rows:
            head = f"## {package}\n\n| module | tests |\n|---|---|"
            parts.append("\n".join([head, *rows, ""]))
    without = [f"- {name}" for name, paths in found.items() if not paths]
    said = "\n".join(without) or "None."
    parts.append(f"## Modules that no test imports or names\n\n{said}\n")
    return "\n".join(parts)


def _row(name: str, paths: list[Path]) -> str:
    own = ROOT / "tests" / Path(*name.split(".")[1:-1])
    ordered = sorted(paths, key=lambda path: (own not in path.parents, str(path)))
    links = [f"[{_short(path)}](../{path.relative_to(ROOT)})" for path in ordered[:SHOWN]]
    more = " and more" if len(paths) > SHOWN else ""  # a count would change with most commits
    return f"| {name.rpartition('.')[2]} | {', '.join(links)}{more} |"


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT / "tests").with_suffix(""))
