"""Names say what a function does, and what prose refers to exists.

No function is named by a bare participle: `refused` may build an answer, raise an error or be a
state, and no search finds it. No public method name has many meanings, except words that every
reader knows. References are those of docstrings, comments, READMEs and pages of
docs: dotted names of modules and of what is in them, members of classes, and paths of files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from functools import cache

import pytest

from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS
from tests.test_architecture import ROOT, _tracked, dotted, nodes, sources, tree

# Functions and methods.

IRREGULAR = frozenset((
    "begun", "bent", "bound", "bought", "broken", "brought", "built", "caught", "chosen", "done",
    "drawn", "driven", "eaten", "fallen", "fed", "felt", "forgotten", "found", "frozen", "given",
    "gone", "grown", "heard", "held", "hidden", "kept", "known", "laid", "led", "left", "lent",
    "lost", "made", "meant", "met", "paid", "ridden", "risen", "said", "sealed", "seen", "sent",
    "shown", "sold", "spent", "spoken", "stolen", "stood", "struck", "sworn", "taken", "taught",
    "thrown", "told", "torn", "understood", "woken", "won", "worn", "written",
))  # fmt: skip
OTHERS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"})
"""Verbs and nouns that end like a participle."""
STAY = {
    "kafkawire/offsets/integration.py:LiveSource.committed": "implements OffsetSource",
    "kafkawire/offsets/registry.py:OffsetAssigner.applied": "public, see docs/offsets.md",
    "kafkawire/offsets/registry.py:OffsetAssigner.failed": "public, see docs/offsets.md",
    "kafkawire/offsets/subscription.py:OffsetSource.committed": "public, see docs/offsets.md",
}
"""Functions with a participle as name, and why they keep it."""
PROPERTIES = ("property", "cached_property", "setter")
"""Decorators of properties, which are states: their names are adjectives."""


def is_participle(name: str) -> bool:
    """Whether a name is a participle alone."""
    word = name.strip("_")
    ends = word in IRREGULAR or word.endswith("ed")
    return "_" not in word and ends and word not in OTHERS


def participles(module: ast.Module) -> Iterator[str]:
    """Yield the functions and methods that are named by a bare participle, nested ones too."""
    waiting: list[tuple[str, ast.AST]] = [("", module)]
    while waiting:
        prefix, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            inside = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{prefix}{child.name}."
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                words = {ast.unparse(each).rpartition(".")[2] for each in child.decorator_list}
                if is_participle(child.name) and words.isdisjoint(PROPERTIES):
                    yield f"{prefix}{child.name}"
            waiting.append((inside, child))


def unlisted(found: Iterable[str], listed: Collection[str]) -> list[str]:
    """Return what was found and is not listed, and what is listed and does not exist any more."""
    return sorted({*found} ^ {*listed})


def test_functions_are_named_by_verbs() -> None:
    found = [f"{path}:{name}" for path in sources() for name in participles(tree(path))]
    assert unlisted(found, STAY) == []


def test_participles_are_detected() -> None:
    text = """
def opened(): ...
def _known():
    async def written(): ...
class Log:
    def refused(self): ...
    @property
    def closed(self): ...
    @closed.setter
    def closed(self, value): ...
    def is_opened(self): ...
    def feed(self): ...
    def proceed(self): ...
if True:
    def found(): ...
"""
    expected = {"opened", "_known", "_known.written", "Log.refused", "found"}
    assert set(participles(ast.parse(text))) == expected
    assert unlisted(["a.py:opened"], STAY) == sorted(["a.py:opened", *STAY])
    assert unlisted([*STAY, "a.py:opened"], STAY) == ["a.py:opened"]


# Meanings of method names.

MAX_MEANINGS = 3
CONVENTIONAL = {
    "abort": "ends a connection or write at once, without its rest (asyncio, Spark)",
    "add": "puts one more into a collection, count or file (set.add)",
    "alter": "stores changes that an admin request asks for (Kafka's AlterConfigs)",
    "append": "adds to the end of a log, file or list (list.append)",
    "apply": "changes the state as a decision or record says; the only mutator (state machines)",
    "cancel": "ends a timer, call or wait before it happens (asyncio)",
    "check": "raises or returns what is wrong, and changes nothing",
    "close": "ends use of a resource; a second call has no effect (io)",
    "commit": "makes a transaction or offsets durable (SQL, Kafka)",
    "connect": "opens the connection to another process or a database (socket)",
    "copy": "returns or stores the same contents once more (copy)",
    "create": "makes something that did not exist (Kafka's CreateTopics)",
    "decide": "returns what follows from a request and changes nothing (state machines)",
    "delete": "removes something stored (SQL, S3, Kafka's DeleteTopics)",
    "find": "returns what matches, or None or nothing (str.find)",
    "finish": "writes or does the rest, and returns the result",
    "get": "returns the value of a key, usually None without one (dict.get)",
    "list": "returns names or objects in order (S3's ListObjects)",
    "load": "brings stored state into memory (json.load)",
    "open": "returns a file, store or connection to use, until `close` (open)",
    "put": "stores a value under a key, over an earlier one (queue.put, S3's PutObject)",
    "read": "returns what is stored, and leaves it there (io)",
    "release": "gives back what was acquired (threading.Lock)",
    "remove": "takes one out of a collection (list.remove)",
    "run": "does the whole job of the object, until it is done or cancelled (asyncio.run)",
    "scan": "goes through all stored entries of a range, or all that is due",
    "send": "passes bytes or a request to the other end of a connection (socket)",
    "start": "begins work in the background, until `stop` or `close` (threading.Thread)",
    "stop": "ends what `start` began",
    "update": "changes fields of something that exists (dict.update, SQL)",
    "verify": "compares a claim with what is stored, and raises or returns the difference",
    "wait": "returns when a condition holds (threading.Condition)",
    "write": "stores bytes or rows at a position (io)",
}
"""Words with a meaning that readers know, and what their methods have in common."""

Parameters = tuple[str, ...]


def meanings(modules: Iterable[ast.Module]) -> dict[str, set[Parameters]]:
    """Return the meanings of each public name of methods: what differs in the positional parameters
    means something else. Classes that implement a Protocol have its names and parameters."""
    found: dict[str, set[Parameters]] = {}
    for node in (each for module in modules for each in ast.walk(module)):
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            words = {ast.unparse(one).rpartition(".")[2] for one in each.decorator_list}
            if not each.name.startswith("_") and words.isdisjoint((*PROPERTIES, "overload")):
                names = [one.arg for one in (*each.args.posonlyargs, *each.args.args)]
                bound = "staticmethod" not in words
                found.setdefault(each.name, set()).add(tuple(names[bound:]))
    return found


def vague(found: dict[str, set[Parameters]]) -> list[str]:
    """Return the names with more than MAX_MEANINGS."""
    return sorted(name for name, each in found.items() if len(each) > MAX_MEANINGS)


def test_method_names_have_few_meanings() -> None:
    assert unlisted(vague(meanings(tree(path) for path in sources())), CONVENTIONAL) == []


def test_vague_method_names_are_detected() -> None:
    text = """
class Port(Protocol):
    def take(self, size: int) -> None: ...
class Implementation:
    async def take(self, size: int, *, whole: bool = False) -> None: ...
class Other:
    @classmethod
    def take(cls) -> None: ...
class Third:
    @staticmethod
    def take(rows: list[int]) -> None: ...
"""
    another = "class Fourth:\n    {}def {}(self, wanted, now_ms): ..."
    few = ast.parse(text)
    assert meanings([few]) == {"take": {("size",), (), ("rows",)}}
    assert vague(meanings([few])) == []
    assert vague(meanings([few, ast.parse(another.format("", "take"))])) == ["take"]
    assert vague(meanings([few, ast.parse(another.format("", "_take"))])) == []
    assert vague(meanings([few, ast.parse(another.format("@property\n    ", "take"))])) == []
    assert unlisted(["take", *CONVENTIONAL], CONVENTIONAL) == ["take"]
    assert unlisted([*CONVENTIONAL][1:], CONVENTIONAL) == ["abort"]


# References in prose.

TOPS = ("kafkawire", "kafkawire_spark", "tests", "bench")
_SUFFIXES = r"(?!(?:py|md|json|toml|db|png|properties)\b)"
MODULE = re.compile(
    rf"(?<![\w./@:\"'$-])((?:{'|'.join(TOPS)})(?:\.{_SUFFIXES}[A-Za-z_]\w*)+)(?![\w*-])"
)
WITHIN = re.compile(rf"`([a-z_]\w*(?:\.{_SUFFIXES}[A-Za-z_]\w*)+)(?:\(\))?`")
MEMBER = re.compile(rf"(?<![\w./])([A-Z]\w*[a-z]\w*\.{_SUFFIXES}[a-z_][a-z0-9_]*)(?![\w/*-])")
"""Members of classes, whose names are not in camel case as those of Kafka's classes."""
PATH = re.compile(
    r"(?<![\w./:{}~$<-])((?:kafkawire|spark/kafkawire_spark|tests|bench(?!/out\b)|docs)/[\w./-]*\w"
    r"|(?:[a-z_][\w-]*/)+[\w.-]*\w\.py)\b"
)
"""Paths of files and folders, from the root; those of modules also from any folder. What bench
writes is not there."""
NO_REFERENCES = {
    "kafkawire.offset_storages": "a group of entry points",
    "kafkawire.stores": "a group of entry points",
    "security.protocol": "a setting of clients",
    "spark.dataSource.register": "a method of Spark's session",
    "spark.python.daemon.module": "a setting of Spark",
    "spark.read": "a property of Spark's session",
}
"""Names in prose that look like a reference and are none, and what they are."""
HISTORY = ("CHANGELOG.md", "bench/notes/")
"""Documents that tell what was: what they name may be gone."""


@cache
def _tracked_paths() -> tuple[str, ...]:
    return tuple(str(file.relative_to(ROOT)) for file in _tracked("*.py", "*.md"))


@cache
def _modules() -> dict[str, str]:
    """Return the file of each module; "" for a folder without one."""
    found: dict[str, str] = {}
    for path in _tracked_paths():
        name = dotted(path).removesuffix(".__init__")
        if path.endswith(".py") and name.partition(".")[0] in TOPS:
            found[name] = path
            while "." in name:
                name = name.rpartition(".")[0]
                found.setdefault(name, "")
    return found


@cache
def _tails() -> frozenset[str]:
    """Return the paths of all modules, from each of their folders."""
    parts = [path.split("/") for path in _tracked_paths() if path.endswith(".py")]
    return frozenset("/".join(each[at:]) for each in parts for at in range(len(each)))


def _defined(statements: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield what the statements of a module or class define, conditional ones too."""
    for node in statements:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name, node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((each.asname or each.name.partition(".")[0], node) for each in names)
            case ast.Assign(targets=targets):
                every = [each for target in targets for each in ast.walk(target)]
                yield from ((each.id, node) for each in every if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case ast.If(body=body, orelse=orelse) | ast.Try(body=body, orelse=orelse):
                yield from _defined([*body, *orelse])
                for handler in getattr(node, "handlers", ()):
                    yield from _defined(handler.body)


@cache
def _globals(path: str) -> dict[str, ast.stmt]:
    return dict(_defined(tree(path).body))


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for path in sources():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def _has_member(node: ast.ClassDef, name: str) -> bool:
    """Whether a class, or one of its bases, has a member. Those of other packages may have any."""
    if name in dict(_defined(node.body)):
        return True
    for each in ast.walk(node):
        match each:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if attr == name:
                return True
    bases = {ast.unparse(each).partition("[")[0].rpartition(".")[2] for each in node.bases}
    for base in bases - {"ABC", "Generic", "NamedTuple", "Protocol", node.name}:
        known = _classes().get(base)
        if known is None or any(_has_member(each, name) for each in known):
            return True
    return False


@cache
def is_module_name(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module or one of its classes has."""
    parts = name.split(".")
    at = next((at for at in range(len(parts), 0, -1) if ".".join(parts[:at]) in _modules()), 0)
    path, rest = _modules().get(".".join(parts[:at]), ""), parts[at:]
    if not at or not rest:
        return bool(at)
    if not path or rest[0] not in _globals(path):
        return False
    found = _globals(path)[rest[0]]
    return len(rest) == 1 or not isinstance(found, ast.ClassDef) or _has_member(found, rest[1])


@cache
def is_member(name: str) -> bool:
    """Whether a class of this name has the member; True for names that no class here has."""
    owner, _, member = name.partition(".")
    known = _classes().get(owner)
    return known is None or any(_has_member(each, member) for each in known)


@cache
def is_within(name: str, package: str) -> bool:
    """Whether a name is one of this package, or of one around it; True if its first part is no
    module there."""
    around = [package.rsplit(".", at)[0] for at in range(package.count(".") + 1)]
    first = name.partition(".")[0]
    modules = [each for each in (*around, "kafkawire") if f"{each}.{first}" in _modules()]
    return not modules or any(is_module_name(f"{each}.{name}") for each in modules)


def is_path(path: str) -> bool:
    """Whether a file or folder exists."""
    return path in _tails() or (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def broken(text: str, package: str = "") -> list[str]:
    """Return the references of a text to what does not exist. `package`: that of a module of the
    product, "" for other texts, whose names within a package are settings."""
    found = [each for each in MODULE.findall(text) if not is_module_name(each)]
    found += [each for each in PATH.findall(text) if not is_path(each)]
    if package:
        found += [each for each in MEMBER.findall(text) if not is_member(each)]
        found += [each for each in WITHIN.findall(text) if not is_within(each, package)]
    settings = BROKER_CONFIGS.keys() | TOPIC_CONFIGS.keys() | NO_REFERENCES.keys()
    return [each for each in dict.fromkeys(found) if each not in settings]


def prose(source: str) -> Iterator[str]:
    """Yield the docstrings of a module, also those of attributes, and its comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


CODE = re.compile(r"^\s*(?:from|import) .*$", re.MULTILINE)


def broken_in_code(source: str, package: str = "") -> list[str]:
    """Return the broken references of docstrings and comments. A file without any is not parsed,
    which takes longer."""
    if not broken(CODE.sub("", source), package):
        return []
    found = [each for text in prose(source) for each in broken(text, package)]
    # `log.written` in a comment is a variable's, if the code has it too.
    parsed = ast.walk(ast.parse(source))
    used = {ast.unparse(node) for node in parsed if isinstance(node, ast.Attribute)}
    return [each for each in found if each not in used]


def _package(path: str) -> str:
    """Return the package of a module of the product, "" for other files."""
    if not path.startswith(("kafkawire/", "spark/kafkawire_spark/")) or path.endswith(".md"):
        return ""
    return dotted(path.rpartition("/")[0])


@pytest.mark.slow
def test_references_in_prose_exist() -> None:
    found, every = {}, ""
    for path in _tracked_paths():
        check = broken if path.endswith(".md") else broken_in_code
        text = (ROOT / path).read_text(encoding="utf-8")
        every += text if _package(path) else ""
        if not path.startswith(HISTORY) and (names := check(text, _package(path))):
            found[path] = names
    assert not found
    assert [name for name in NO_REFERENCES if f"`{name}" not in every] == []


def test_broken_references_are_detected() -> None:
    package = "kafkawire.log.append"
    for name, gone in (
        ("kafkawire.log.append.commit_log", "kafkawire.log.append.gone"),
        ("kafkawire.log.append.commit_log.CommitLog", "kafkawire.log.append.commit_log.Gone"),
        ("kafkawire.reading.plan.plan_tasks", "kafkawire.reading.plan.gone"),
        ("kafkawire_spark.watch.run_with_progress", "kafkawire_spark.watch.watching"),
        ("CommitLog.sinks", "CommitLog.gone"),
        ("`append.commit_log`", "`append.gone`"),
        ("tests.kit.wiring", "tests.kit.gone"),
        ("tests/kit/wiring.py", "tests/kit/gone.py"),
        ("append/commit_log.py", "append/gone.py"),
        ("kafkawire/log/append", "kafkawire/log/gone"),
    ):
        for line in ('"""See {}."""', "at = 1  # as {}", 'AT = 1\n"""As {} says."""'):
            assert broken_in_code(line.format(gone), package) == [gone.strip("`")], gone
            assert not broken_in_code(line.format(name), package), name
        assert not broken_in_code(f"print({gone!r})", package)
    assert not broken_in_code("# not `log.gone`\nf(log.gone)", package)
    assert broken_in_code("# not `log.gone`\nf(log.other)", package)
    for text in ("`log.segment.bytes`", "Kafka's UnifiedLog.append", "FetchRequest.json"):
        assert not broken(text, package), text
