"""The list of compiled modules in setup.py, by the sources alone: tests/packaging compiles them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.kit.compiled import ROOT, compiled_modules


def test_every_module_is_listed_once_in_order() -> None:
    listed = compiled_modules()
    assert listed == sorted(set(listed))
    assert [path for path in listed if not (ROOT / path).is_file()] == []


def classes(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each class of a module with the names of its bases, without type arguments."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
            yield node.name, [ast.unparse(base) for base in bases]


def is_native(bases: list[str]) -> bool:
    """Whether the compiler makes a class without a dictionary of it."""
    return not {"Exception", "NamedTuple", "Protocol"}.intersection(bases)


def imported(path: str) -> set[str]:
    """Names that a module imports from compiled ones."""
    modules = {each.removesuffix(".py").replace("/", ".") for each in compiled_modules()}
    return {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module in modules
        for alias in node.names
    }


def test_subclasses_of_compiled_classes_are_compiled() -> None:
    """Python refuses others only when their module is imported: "interpreted classes cannot
    inherit from compiled"."""
    native = {
        name for path in compiled_modules() for name, bases in classes(path) if is_native(bases)
    }
    found = []
    for source in sorted((ROOT / "kafkawire").rglob("*.py")):
        path = str(source.relative_to(ROOT))
        if path not in compiled_modules() and (names := imported(path) & native):
            found += [
                f"{path} {name}" for name, bases in classes(path) if names.intersection(bases)
            ]
    assert found == []
