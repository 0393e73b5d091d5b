"""Find assignments to other objects' attributes, and import cycles, in the syntax of the sources.

tests/test_architecture.py asks two questions: which attributes are assigned by code outside the
class that owns them, and which modules import each other in a cycle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

DATA_DECORATORS = {"dataclass", "request", "response", "message", "struct", "record"}


@dataclass
class ClassInfo:
    """One class: the annotation of each attribute ("" if it has none), whether it is plain data,
    and the modules that define a class of this name."""

    data: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)


def _decorator(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def _class_named(annotation: str) -> str:
    """The class that an annotation means, "" for containers, callables and unions of several."""
    names = [part.strip() for part in annotation.split("|") if part.strip() != "None"]
    plain = len(names) == 1 and re.fullmatch(r"[\w.]+", names[0])
    return names[0].rpartition(".")[2] if plain else ""


def _annotations(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {each.arg: ast.unparse(each.annotation) for each in every if each.annotation}


def _called(value: ast.expr | None) -> str:
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def _fields(made: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Attributes of a class with their annotations, as far as its own body names them."""
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = _annotations(node)
            for inner in ast.walk(node):
                yield from _self_fields(inner, arguments)


def _self_fields(node: ast.AST, arguments: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.AnnAssign):
        for each in _flat(node.target):
            if isinstance(each.value, ast.Name) and each.value.id == "self":
                yield each.attr, ast.unparse(node.annotation)
    elif isinstance(node, ast.Assign):
        value = node.value
        for target in node.targets:
            for each in _flat(target):
                if isinstance(each.value, ast.Name) and each.value.id == "self":
                    yield each.attr, _type_of(value, arguments)


def _type_of(value: ast.expr, arguments: Mapping[str, str]) -> str:
    """The declared type of an assigned argument, or the called class."""
    return arguments.get(value.id, "") if isinstance(value, ast.Name) else _called(value)


def _flat(target: ast.expr) -> Iterator[ast.Attribute]:
    """Attributes among the targets of an assignment."""
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _flat(each)
    elif isinstance(target, ast.Starred):
        yield from _flat(target.value)
    elif isinstance(target, ast.Attribute):
        yield target


def _assigned(node: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that a statement assigns to."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _flat(target)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield from _flat(node.target)


def classes(trees: Mapping[str, ast.Module]) -> dict[str, ClassInfo]:
    """Every class of the sources by its name."""
    found: dict[str, ClassInfo] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                info = found.setdefault(node.name, ClassInfo())
                info.modules.add(path)
                info.data |= any(_decorator(d) in DATA_DECORATORS for d in node.decorator_list)
                info.data |= any(ast.unparse(base) == "NamedTuple" for base in node.bases)
                for name, annotation in _fields(node):
                    info.attributes[name] = info.attributes.get(name) or annotation
    return found


class Assignments:
    """Finds assignments to attributes of other objects. `shared`: classes whose state is written
    by the modules that work on it together, each with a reason."""

    def __init__(self, known: Mapping[str, ClassInfo], shared: Iterable[str]) -> None:
        self._known = known
        self._shared = set(shared)
        self._owners: dict[str, list[str]] = {}
        for name, info in known.items():
            for attribute in info.attributes:
                self._owners.setdefault(attribute, []).append(name)

    def of(self, path: str, tree: ast.Module) -> list[str]:
        """The forbidden assignments in one module: "path:line target"."""
        found: list[str] = []
        for node in tree.body:
            self._walk(path, node, "", {}, found)
        return found

    def _walk(
        self, path: str, node: ast.AST, owner: str, types: dict[str, str], found: list[str]
    ) -> None:
        if isinstance(node, ast.ClassDef):
            owner = node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            types = types | {n: _class_named(a) for n, a in _annotations(node).items()}
            for inner in ast.walk(node):
                self._learn(inner, owner, types)
        for each in _assigned(node):
            if self._is_outside(path, each, owner, types):
                found.append(f"{path}:{each.lineno} {ast.unparse(each)}")
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr):
                self._walk(path, child, owner, types, found)

    def _learn(self, node: ast.AST, owner: str, types: dict[str, str]) -> None:
        """Note the class of a local name, where it can be seen."""
        if isinstance(node, ast.Assign) and isinstance(node.targets[-1], ast.Name):
            kind = self._class_of(node.value, owner, types)
            if kind:
                types[node.targets[-1].id] = kind

    def _class_of(self, node: ast.expr, owner: str, types: Mapping[str, str]) -> str:
        if isinstance(node, ast.Name):
            return owner if node.id == "self" else types.get(node.id, "")
        if isinstance(node, ast.Attribute):
            info = self._known.get(self._class_of(node.value, owner, types))
            return _class_named(info.attributes.get(node.attr, "")) if info else ""
        name = _called(node).rpartition(".")[2]
        return name if name in self._known else ""

    def _is_outside(
        self, path: str, target: ast.Attribute, owner: str, types: Mapping[str, str]
    ) -> bool:
        if isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"):
            return False
        if target.attr.startswith("_") and target.attr.endswith("_"):
            return False  # Python's own: __cause__, _value_
        kind = self._class_of(target.value, owner, types)
        # Where the class cannot be seen, any that has the attribute may be meant.
        owners = [kind] if kind in self._known else self._owners.get(target.attr, [])
        return bool(owners) and not any(self._may(path, name, target.attr) for name in owners)

    def _may(self, path: str, name: str, attribute: str) -> bool:
        """Whether a module may assign this attribute of a class: one of its own, or plain data
        that holds no callback."""
        info = self._known[name]
        annotation = info.attributes.get(attribute, "")
        if path in info.modules or name in self._shared or f"{name}.{attribute}" in self._shared:
            return True
        return info.data and "Callable" not in annotation


@dataclass
class Import:
    """One import of a module of the sources by another; `kind`: "top", "late" (in a function) or
    "types" (under TYPE_CHECKING)."""

    module: str
    kind: str


def _imported(node: ast.AST, modules: Iterable[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in modules else node.module
    elif isinstance(node, ast.stmt):
        # import_module("a.b") is an import, too.
        for each in _expressions(node):
            if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("import_module"):
                names = (arg.value for arg in each.args if isinstance(arg, ast.Constant))
                yield from (name for name in names if isinstance(name, str))


def _expressions(node: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement without those of the statements in it."""
    waiting = [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt)]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += [
            child for child in ast.iter_child_nodes(each) if not isinstance(child, ast.stmt)
        ]


def imports_of(tree: ast.AST, modules: Iterable[str]) -> Iterator[Import]:
    """The imports of other modules in a module."""
    waiting: list[tuple[ast.AST, str]] = [(tree, "top")]
    while waiting:
        node, kind = waiting.pop()
        for name in _imported(node, modules):
            yield Import(name, kind)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            kind = "types" if node.test.id == "TYPE_CHECKING" else kind
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "top":
            kind = "late"
        waiting += [
            (child, kind) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
        ]
        if isinstance(node, ast.Try):
            waiting += [(child, kind) for handler in node.handlers for child in handler.body]


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other: the strongly connected components of two or more."""
    reached = {node: _reach(graph, node) for node in graph}
    groups = {
        tuple(sorted(m for m in reached[node] if node in reached.get(m, ()))) for node in graph
    }
    return sorted(list(group) for group in groups if len(group) > 1)


def _reach(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in found and node in graph:
            found.add(node)
            waiting += graph[node]
    return found


def import_circles(trees: Mapping[str, ast.Module], kinds: Iterable[str]) -> list[list[str]]:
    """Groups of modules (by dotted name) that import each other by imports of these kinds."""
    wanted = set(kinds)
    return circles(
        {
            name: {
                each.module
                for each in imports_of(tree, trees)
                if each.kind in wanted and each.module != name
            }
            for name, tree in trees.items()
        }
    )


def package_imports(
    trees: Mapping[str, ast.Module], packages: Iterable[str]
) -> dict[str, set[str]]:
    """Each of the packages with those of the others that its modules import at run time.

    A module belongs to the innermost of the packages that it lies in; modules of no package do not
    count."""
    known = set(packages)
    graph: dict[str, set[str]] = {package: set() for package in known}
    for name, tree in trees.items():
        package = _package_of(name, known)
        if package is None:
            continue
        for each in imports_of(tree, trees):
            target = _package_of(each.module, known)
            if each.kind != "types" and target not in (None, package):
                graph[package].add(target)
    return graph


def _package_of(module: str, packages: set[str]) -> str | None:
    """The innermost of the packages that a module lies in, or is."""
    while module and module not in packages:
        module = module.rpartition(".")[0]
    return module or None
