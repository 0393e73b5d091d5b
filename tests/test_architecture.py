"""The house rules that a machine can check, over every source file of the repository.

Floors are import-linter's (pyproject.toml, `make check`), banned calls mostly ruff's (TID251);
what neither of them sees is here: sizes, docstrings, annotations, `open` and `loop.time()`, which
modules may touch the machine, and that the documents name what exists.
"""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kafkawire.codec.compression import CODEC_NAMES
from tests.kit import wiring

ROOT = Path(__file__).parent.parent
PACKAGES = ("kafkawire", "spark/kafkawire_spark")

# The only modules that touch the machine: everything else is passed a clock, a disk, threads.
DEVICES = {
    "kafkawire/__main__.py", "kafkawire/childprocess/parent_end.py",
    "kafkawire/childprocess/process_thread.py", "kafkawire/extras.py",
    "kafkawire/metadata/completion.py",
    "kafkawire/metadata/generated.py", "kafkawire/metadata/sqlite.py",
    "kafkawire/offsets/catalog/kv/transaction_count.py",
    "kafkawire/security/sasl/tokens.py", "kafkawire/security/secret_files.py",
    "kafkawire/security/tls/contexts.py", "kafkawire/server/backups.py",
    "kafkawire/server/console_process.py",
    "kafkawire/server/descriptors.py", "kafkawire/server/file_sender.py",
    "kafkawire/server/listener.py", "kafkawire/log/io/disk.py",
    "kafkawire/log/io/worker_process.py", "kafkawire/tiering/store/process_main.py",
    "kafkawire/objectstore/file_ranges.py", "kafkawire/objectstore/folder.py",
    "kafkawire/objectstore/staging.py", "kafkawire/replication/machine.py",
    "kafkawire/tiering/store/process.py",
    "kafkawire/objectstore/azure_blob.py", "kafkawire/objectstore/s3.py",
}  # fmt: skip
# The one place that makes tasks: it is what `env.spawn` is.
SPAWN = ("kafkawire/log/io/ports.py", "asyncio.get_running_loop().create_task()")
# Commands, client, fixture, supervisor and Spark's side run beside a broker, in other processes.
OUTSIDE = ("kafkawire/cli/", "kafkawire/client/", "kafkawire/console/", "kafkawire/reading/",
           "kafkawire/supervisor/", "kafkawire/testing/", "spark/")  # fmt: skip

# Pure: no loop, no clock, no disk, no network, so a test drives them with plain calls.
PURE = (
    "kafkawire/codec/",
    "kafkawire/manifest/",
    "kafkawire/objectstore/backoff.py",
    "kafkawire/objectstore/errors.py",
    "kafkawire/objectstore/overlap.py",
    "kafkawire/objectstore/url.py",
    "kafkawire/messages/",
    "kafkawire/replication/messages.py",
    "kafkawire/replication/wire.py",
    "kafkawire/reading/model/columns.py",
    "kafkawire/reading/commits.py",
    "kafkawire/reading/limits.py",
    "kafkawire/reading/model/source.py",
    "kafkawire/reading/plan.py",
    "spark/kafkawire_spark/source/options.py",
    "spark/kafkawire_spark/pipeline/jobs/job.py",
    "spark/kafkawire_spark/pipeline/jobs/layout.py",
    "spark/kafkawire_spark/pipeline/planning.py",
    "spark/kafkawire_spark/pipeline/jobs/state.py",
    "spark/kafkawire_spark/pipeline/jobs/section.py",
    "spark/kafkawire_spark/pipeline/values/framing.py",
    "spark/kafkawire_spark/pipeline/values/json.py",
    "spark/kafkawire_spark/pipeline/values/spec.py",
    "spark/kafkawire_spark/measures.py",
    "spark/kafkawire_spark/audit/continuity.py",
    "spark/kafkawire_spark/audit/counts.py",
    "spark/kafkawire_spark/audit/coverage.py",
    "spark/kafkawire_spark/audit/verdict.py",
    "spark/kafkawire_spark/replay/record.py",
    "kafkawire/metadata/catalog.py",
    "kafkawire/metadata/directory.py",
    "kafkawire/metadata/checkpoint.py",
    "kafkawire/metadata/rows.py",
    "kafkawire/broker/new_topics.py",
    "kafkawire/broker/options.py",
    "kafkawire/broker/overrides.py",
    "kafkawire/broker/resources.py",
    "kafkawire/security/sasl/bearer.py",
    "kafkawire/security/sasl/machine.py",
    "kafkawire/security/sasl/plain.py",
    "kafkawire/security/sasl/replies.py",
    "kafkawire/security/sasl/scram.py",
    "kafkawire/server/connection.py",
    "kafkawire/server/memory.py",
    "kafkawire/offsets/catalog/kv/store.py",
    "kafkawire/offsets/catalog/kv/layout.py",
    "kafkawire/offsets/catalog/kv/objects.py",
    "kafkawire/offsets/catalog/kv/storage.py",
    "kafkawire/offsets/catalog/kv/store.py",
    "kafkawire/offsets/catalog/kv/swap.py",
    "kafkawire/offsets/manager.py",
    "kafkawire/offsets/registry.py",
    "kafkawire/offsets/catalog/sql/",
    "kafkawire/offsets/registry.py",
    "kafkawire/offsets/catalog/port.py",
    "kafkawire/offsets/subscription.py",
    "kafkawire/offsets/types.py",
    "kafkawire/log/journal/dump.py",
    "kafkawire/log/partition/index_eviction.py",
    "kafkawire/log/journal/format.py",
    "kafkawire/log/journal/index_columns.py",
    "kafkawire/log/partition/hot_index.py",
    "kafkawire/log/partition/read_plan.py",
    "kafkawire/log/partition/stored_rows.py",
    "kafkawire/log/partition/producers.py",
    "kafkawire/log/journal/scan.py",
    "kafkawire/log/segments/compact/offset_map.py",
    "kafkawire/log/segments/compact/retain.py",
    "kafkawire/log/journal/write_batch.py",
    "kafkawire/log/objects/format.py",
    "kafkawire/tiering/read/hedging.py",
    "kafkawire/tiering/read/batch_stream.py",
    "kafkawire/tiering/read/readahead.py",
    "kafkawire/restore/choose_segments.py",
    "kafkawire/groups/classic/",
    "kafkawire/groups/consumer/",
    "kafkawire/groups/model/",
    "kafkawire/groups/offsets.py",
    "kafkawire/groups/pending.py",
    "kafkawire/groups/shard.py",
    "kafkawire/share/counts.py",
    "kafkawire/share/partition.py",
    "kafkawire/share/persister.py",
    "kafkawire/share/runs.py",
    "kafkawire/share/sessions.py",
    "kafkawire/share/states.py",
    "kafkawire/supervisor/joined_pages.py",
    "kafkawire/supervisor/plan.py",
    "kafkawire/supervisor/shares.py",
    "kafkawire/transactions/machine/",
)
IMPURE_IMPORTS = {
    "asyncio", "socket", "ssl", "threading", "subprocess", "concurrent", "mmap", "select",
    "signal", "time", "random", "secrets", "tempfile", "shutil", "sqlite3", "sqlalchemy",
    "uvloop", "logging",
}  # fmt: skip


@cache
def sources() -> tuple[str, ...]:
    """Every Python file of the packages, as a path from the root."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return tuple(sorted(str(path.relative_to(ROOT)) for path in found))


def dotted(path: str) -> str:
    """The name by which a file or folder of the sources is imported."""
    return path.removeprefix("spark/").removesuffix(".py").replace("/", ".")


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), path)


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """All of a file's tree, walked once for all tests."""
    return tuple(ast.walk(tree(path)))


def functions(path: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports(path: str) -> Iterator[tuple[int, str]]:
    """Line and name of every imported module."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module


def test_there_are_sources() -> None:
    assert len(sources()) > 100  # a check over nothing would pass for ever


def test_every_module_has_a_docstring() -> None:
    silent = [path for path in sources() if not ast.get_docstring(tree(path))]
    assert not silent


def _unannotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    named = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
    return named + (["return"] if node.returns is None and node.name != "__init__" else [])


def test_every_function_is_annotated() -> None:
    bare = {
        f"{path}:{node.lineno} {node.name}": missing
        for path in sources()
        for node in functions(path)
        if (missing := _unannotated(node))
    }
    assert not bare


def test_no_type_is_asserted() -> None:
    """A value of an unknown type is checked with an error, or its type is declared."""
    asserted = [
        f"{path}:{node.lineno}"
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.Assert) and ast.unparse(node.test).startswith("isinstance(")
    ]
    assert not asserted


def _touches(node: ast.AST) -> str | None:
    """Uses that ruff's banned-api cannot name: the builtin `open`, the loop's clock and helpers."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Name) and called.id == "open":
        return "open()"
    if not isinstance(called, ast.Attribute):
        return None
    if called.attr in ("read_text", "write_text", "read_bytes", "write_bytes"):
        return f".{called.attr}()"
    owner = ast.unparse(called.value)
    if called.attr in ("time", "create_task", "run_in_executor") and "loop" in owner:
        return f"{owner}.{called.attr}()"
    return None


def test_only_devices_touch_the_machine() -> None:
    found = [
        f"{path}:{getattr(node, 'lineno', 0)} {what}"
        for path in sources()
        if path not in DEVICES and not path.startswith(OUTSIDE)
        for node in nodes(path)
        if (what := _touches(node)) and (path, what) != SPAWN
    ]
    assert not found


def test_the_event_loop_is_yielded_in_one_way() -> None:
    """By the queue of kafkawire.log.io.slices: a sleep of no time takes part in no queue."""
    assert _sleeps_of_no_time(ast.parse("await env.sleep(0)")) == 1
    found = {path: count for path in sources() if (count := _sleeps_of_no_time(tree(path)))}
    assert not found


def _sleeps_of_no_time(module: ast.AST) -> int:
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
        and [ast.unparse(argument) for argument in node.args] in (["0"], ["0.0"])
        for node in ast.walk(module)
    )


def test_touching_the_machine_is_detected() -> None:
    """A check that never fires proves nothing."""
    lines = ["open('x')", "loop.time()", "self._loop.run_in_executor(None, f)", "p.read_text()"]
    for line in lines:
        assert [_touches(node) for node in ast.walk(ast.parse(line)) if _touches(node)], line
    for line in ["os.open('x', 0)", "clock.time()", "fs.open('x')", "opener()"]:
        assert not [_touches(node) for node in ast.walk(ast.parse(line)) if _touches(node)], line


def test_devices_exist_and_are_excused_by_ruff_alone() -> None:
    missing = sorted(path for path in DEVICES if not (ROOT / path).is_file())
    assert not missing
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    excused = config["tool"]["ruff"]["lint"]["per-file-ignores"]
    allowed = DEVICES | {"tests/**", "bench/**"} | {f"{folder}**" for folder in OUTSIDE}
    assert {path for path, rules in excused.items() if "TID251" in rules} <= allowed


def test_devices_are_not_excused_line_by_line() -> None:
    found = [
        path
        for path in sources()
        if re.search(r"noqa:.*TID251", (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found


def test_pure_modules_exist() -> None:
    missing = [path for path in PURE if not any(known.startswith(path) for known in sources())]
    assert not missing


def test_pure_modules_import_nothing_impure() -> None:
    found = [
        f"{path}:{line} {module}"
        for path in sources()
        if path.startswith(PURE)
        for line, module in imports(path)
        if module.split(".")[0] in IMPURE_IMPORTS
    ]
    assert not found


def test_one_module_builds_object_stores() -> None:
    found = {
        path
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"S3Provider", "FolderProvider"}
    }
    assert found == {"kafkawire/objectstore/open.py"}


CODEC_IDS = {"GZIP", "SNAPPY", "LZ4", "ZSTD"}
CODEC_PLACES = {"kafkawire/codec/compression.py", "kafkawire/codec/configs/table.py"}
PARQUET = "spark/kafkawire_spark/pipeline/jobs/job.py"
"""It names the codecs of Parquet, which are others."""


def _lists_codecs(node: ast.AST) -> bool:
    """Whether a node is a list of codecs, or compares a codec with a number."""
    if isinstance(node, ast.Compare):
        return any(
            ast.unparse(one).rpartition(".")[2] == "codec"
            and isinstance(other, ast.Constant)
            and type(other.value) is int
            for one, other in itertools.permutations([node.left, *node.comparators], 2)
        )
    if isinstance(node, ast.Dict):
        names = [each for each in [*node.keys, *node.values] if each is not None]
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        names = node.elts
    else:
        return False
    texts = [each.value for each in names if isinstance(each, ast.Constant)]
    codes = [ast.unparse(each).rpartition(".")[2] for each in names]
    return len({*CODEC_NAMES[1:]}.intersection(texts)) > 1 or len(CODEC_IDS.intersection(codes)) > 1


def test_codecs_are_listed_in_two_places() -> None:
    """Adding one changes these two files. A format with one codec imports its id."""
    found = {path for path in sources() for node in nodes(path) if _lists_codecs(node)}
    assert found == CODEC_PLACES | {PARQUET}


def test_lists_of_codecs_are_detected() -> None:
    for code in (
        '("gzip", "zstd")', '{"gzip": 1, "lz4": 3}', "{GZIP: 1, compression.LZ4: 2}", "codec == 4",
        "4 == head.codec",
    ):  # fmt: skip
        assert any(map(_lists_codecs, ast.walk(ast.parse(code)))), code
    assert not any(map(_lists_codecs, ast.walk(ast.parse('codec == ZSTD; f("zstd")'))))


def test_every_logger_is_called_logger() -> None:
    """Not `log`: in this project that is a package and an instance of Log."""
    found = [
        f"{path}:{node.lineno} {ast.unparse(node.targets[0])}"
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("logging.getLogger")
        if ast.unparse(node.targets[0]) not in ("logger", "root")
    ]
    assert not found


def _tracked(*patterns: str) -> list[Path]:
    """Files of the repository, committed or not yet, without what is ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(?:work|root|home/\w+|Users/\w+)/|\.pyenv|file:///(?:root|home|work)"
)


def test_no_file_contains_machine_paths() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _tracked()
        if path != Path(__file__)
        and (match := MACHINE_PATHS.search(path.read_text(encoding="utf-8", errors="ignore")))
    ]
    assert not found


def _linted_floors() -> list[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    return [name.strip("() ") for layer in layers for name in layer.split("|")]


def test_every_package_is_in_a_layer() -> None:
    """import-linter ignores packages that no contract lists."""
    floors = set(_linted_floors())
    folders = [path for path in (ROOT / "kafkawire").iterdir() if (path / "__init__.py").is_file()]
    own = {f"kafkawire.{path.name}" for path in folders}
    assert own <= floors


def test_architecture_names_only_existing_things() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    names = {Path(path).name for path in sources()} | {p.name for p in _tracked("*.py")}
    named = {Path(name).name for name in re.findall(r"`([\w/.]+\.py)`", text)}
    assert sorted(named - names) == []


"""Modules in one package: more are not seen at a glance."""


def test_public_class_names_are_unique() -> None:
    """Messages are not counted: their names are Kafka's."""
    modules: dict[str, set[str]] = {}
    for path in sources():
        if path.startswith("kafkawire/messages/"):
            continue
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, set()).add(path)
    colliding = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert len(modules) > 500
    assert not colliding


# State of one partition, journal, segment, request or connection, written by the few modules that
# work on it: they are hot, or one algorithm in several files. None of it is a collaborator that has
# to be set before the object works.
SHARED_STATE = {
    "CachedBlock": "a block of the remote cache: loaded, pinned and checked by its readers",
    "AppendLog.batch_bytes": "the write batch that Partition.append adds to; hot",
    "CommitLog.batch_bytes": "the same",
    "Connection.client_port": "copied to a part of a request, in test brokers",
    "Connection.opened_at": "copied to a part of a request, in test brokers",
    "Connection.redirects": "copied to a part of a request, in test brokers",
    "Connection.software": "copied to a part of a request, in test brokers",
    "Connection.withheld": "copied to a part of a request, in test brokers",
    "Counts": "plain counters of the metrics page; hot",
    "Exchange": "a request: the handler that serves it sets its response and what it holds",
    "Frame": "the newest frame of a partition, which Partition.append extends; hot",
    "Journal": "a file of the commit log: appended, committed, recovered and verified",
    "ObjectColumns": "columns of a manifest while it is folded",
    "LoadedPartition": "the same as Partition",
    "Partition": "offsets and sizes of a partition: appended, committed, loaded and truncated",
    "Peer": "a connection: what the hot handlers remember between its requests",
    "ProduceExchange": "a Produce request, whose results the handler sets",
    "TopicTraffic": "plain counters of the metrics page; hot",
    "Segment": "a segment file: pinned by its readers, replaced by swaps",
}


@cache
def _classes() -> dict[str, wiring.ClassInfo]:
    return wiring.classes({path: tree(path) for path in sources()})


def _wiring(extra: dict[str, str] | None = None) -> list[str]:
    """The forbidden assignments in the sources, or in these other modules."""
    trees = {path: ast.parse(text) for path, text in (extra or {}).items()}
    checked = wiring.Assignments(_classes() | wiring.classes(trees), SHARED_STATE)
    trees = trees or {path: tree(path) for path in sources()}
    return [found for path, module in trees.items() for found in checked.of(path, module)]


def test_collaborators_come_through_constructors() -> None:
    """No object is completed, and no service's state is changed, by assignment from outside."""
    assert not _wiring()


def test_assignment_from_outside_is_detected() -> None:
    text = """
@dataclass
class MadeUpRow:
    count: int
    changed: Callable[[], None]

class MadeUpPart:
    def __init__(self, row: MadeUpRow) -> None:
        self.reader: Reader | None = None
        self.row = row
"""
    other = """
def wire(part: MadeUpPart, row: MadeUpRow) -> None:
    part.reader = Reader()
    row.changed = print
    part.row.changed = print
    made = MadeUpPart(row)
    made.reader, row.count = None, 1
    row.count += 1

class Owner:
    def __init__(self, part: MadeUpPart) -> None:
        self._part = part
        self._part.reader = None
"""
    found = _wiring({"kafkawire/made_up.py": text, "kafkawire/other.py": other})
    assert [each.split()[1] for each in found] == [
        "part.reader",
        "row.changed",
        "part.row.changed",
        "made.reader",
        "self._part.reader",
    ]


def _modules() -> dict[str, ast.Module]:
    return {dotted(path).removesuffix(".__init__"): tree(path) for path in sources()}


def test_no_import_cycles_at_run_time() -> None:
    assert not wiring.import_circles(_modules(), ("top", "late"))


def test_no_modules_refer_to_each_others_types_in_a_circle() -> None:
    """Modules in a circle are one machine in several files, and can be read only together."""
    assert not wiring.import_circles(_modules(), ("top", "late", "types"))


def test_only_the_pipeline_imports_spark() -> None:
    """The readers of buckets and folders, `kafkawire sql` and `find` work without Spark."""
    users = ("spark/kafkawire_spark/", "kafkawire/spark.py")
    found = [
        (path, line, name)
        for path in sources()
        if not path.startswith(users)
        for line, name in imports(path)
        if name.startswith(("kafkawire_spark", "pyspark", "py4j"))
    ]
    assert not found


OPEN_TO_SPARK = {
    "kafkawire.client",
    "kafkawire.codec.batches",  # encode writes batches, as kafkawire.reading.decode reads them
    "kafkawire.codec.compiled",  # loops over memory, compiled by numba
    "kafkawire.codec.compression",
    "kafkawire.codec.errors",  # the codes in the client's errors
    "kafkawire.codec.format_errors",  # that of sealed_json
    "kafkawire.codec.varint",  # the message indexes of Protobuf values
    "kafkawire.manifest.sealed_json",  # the form of the files in which jobs keep what they did
    "kafkawire.objectstore.s3",  # the type of a place's credentials
    "kafkawire.plural",
    "kafkawire.progress",
    "kafkawire.reading",
}
"""All that kafkawire-spark imports of kafkawire, and what is below it."""
OPEN_TO_SPARKS_COMMANDS = {"kafkawire.cli.shared"}
"""The same for kafkawire_spark.cli."""


def test_the_spark_distribution_imports_little_of_kafkawire() -> None:
    """Each of its imports is an interface between two distributions."""
    used, wrong = set(), []
    for path in sources():
        if not path.startswith("spark/"):
            continue
        commands = path.startswith("spark/kafkawire_spark/cli/")
        allowed = OPEN_TO_SPARK | (OPEN_TO_SPARKS_COMMANDS if commands else set())
        for line, name in imports(path):
            if name.partition(".")[0] == "kafkawire":
                found = {each for each in allowed if f"{name}.".startswith(f"{each}.")}
                used |= found
                if not found:
                    wrong.append((path, line, name))
    assert not wrong
    assert used == OPEN_TO_SPARK | OPEN_TO_SPARKS_COMMANDS


def test_import_cycles_are_detected() -> None:
    late = "def f() -> None:\n    g(import_module('made.a').x)\n"
    typed = "if TYPE_CHECKING:\n    from made.c import y\n"
    trees = {
        "made.a": ast.parse("from made.b import x"),
        "made.b": ast.parse(late),
        "made.c": ast.parse("import made.d"),
        "made.d": ast.parse(typed),
        "made.e": ast.parse("from made import a"),
    }
    assert wiring.import_circles(trees, ("top",)) == []
    assert wiring.import_circles(trees, ("top", "late")) == [["made.a", "made.b"]]
    every = wiring.import_circles(trees, ("top", "late", "types"))
    assert every == [["made.a", "made.b"], ["made.c", "made.d"]]


MAX_LOG_IMPORTS = 82
"""Pairs of packages of kafkawire.log, of which one imports the other."""
MAX_LOG_FOLDER_IMPORTS = 50
"""The same between its folders, each with all that lies in it."""


def _subpackages(package: str) -> list[str]:
    """A package and all packages below it."""
    named = [path.rpartition("/")[0] for path in sources() if path.endswith("/__init__.py")]
    names = map(dotted, named)
    return [name for name in names if name == package or name.startswith(f"{package}.")]


def _package_imports(packages: list[str]) -> dict[str, set[str]]:
    return wiring.package_imports(_modules(), packages)


def test_packages_import_in_one_direction() -> None:
    """No subpackages import each other in a circle. To remove a circle, move a module to where all
    of its users may import it, or pass what it needs to its constructor."""
    tops = sorted({".".join(name.split(".")[:2]) for name in _modules() if "." in name})
    found = {top: wiring.circles(_package_imports(_subpackages(top))) for top in tops}
    assert not {top: groups for top, groups in found.items() if groups}
    assert {"kafkawire.groups", "kafkawire.log", "kafkawire.tiering"} <= set(tops)


def test_packages_of_the_log_import_few_others() -> None:
    """Fewer is better: lower the bound with what has been removed."""
    graph = _package_imports(_subpackages("kafkawire.log"))
    assert sum(map(len, graph.values())) <= MAX_LOG_IMPORTS, graph


def test_folders_of_the_log_import_in_one_direction() -> None:
    folders = [name for name in _subpackages("kafkawire.log") if name.count(".") <= 2]
    graph = _package_imports(folders)
    assert not wiring.circles(graph)
    assert sum(map(len, graph.values())) <= MAX_LOG_FOLDER_IMPORTS, graph


def test_the_rules_above_see_imports_between_packages() -> None:
    typed = "if TYPE_CHECKING:\n    from made.b.y import y\n"
    late = "def f() -> None:\n    from made.a.x import x\n"
    trees = {
        "made.a": ast.parse(""),
        "made.a.x": ast.parse("from made.b.y import y"),
        "made.b": ast.parse(""),
        "made.b.y": ast.parse(late),
        "made.c.z": ast.parse(typed + "import made.b"),
        "made.c.low.w": ast.parse("from made.a import x"),
        "other": ast.parse("import made.a.x"),
    }
    packages = ["made.a", "made.b", "made.c", "made.c.low"]
    graph = wiring.package_imports(trees, packages)
    assert graph == {
        "made.a": {"made.b"},
        "made.b": {"made.a"},
        "made.c": {"made.b"},
        "made.c.low": {"made.a"},
    }
    assert wiring.circles(graph) == [["made.a", "made.b"]]
    folders = wiring.package_imports(trees, ["made.a", "made.b", "made.c"])
    assert folders["made.c"] == {"made.a", "made.b"}
