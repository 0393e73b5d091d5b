"""The size of an installation without extras, and the errors of commands that need an extra.

Covers: kafkawire.extras, kafkawire.cli.certs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from kafkawire import extras
from kafkawire.extras import EXTRAS, MissingExtra, explain, install_line, need
from tests.kit.bare import ROOT, bare_environment, required, size_bytes
from tests.kit.tls import certificates
from tests.kit.waiting import wait_until

MOST_BYTES = 120_000_000
"""A broker for tests is installed for each project."""

SWEEP = """
import json, runpy, sys
from typer.testing import CliRunner
from kafkawire.cli.app import app

kit = runpy.run_path(sys.argv[1])
said = {}
for path, command in kit["all_commands"]().items():
    words = ["--show-config"] if path == ("serve",) else kit["words_of"](command)
    result = CliRunner().invoke(app, [*path, *words])
    ended = result.exception is None or isinstance(result.exception, SystemExit)
    said[" ".join(path)] = [result.exit_code, result.stderr if ended else repr(result.exception)]
print(json.dumps(said))
"""

NEEDS: dict[str, tuple[str, str]] = {
    "serve --metadata postgresql://u@127.0.0.1:1/d": ("postgres", "asyncpg"),
    "serve --tier s3://bucket/prefix": ("s3", "boto3"),
    "serve --set backup.url=s3://bucket/prefix": ("s3", "boto3"),
    "serve --tier azure://account/container": ("azure", "azure.storage.blob"),
    "serve --set offset.storage=rocksdb": ("rocksdb", "rocksdict"),
    "serve --set replication.security.protocol=SSL --set replication.listener=127.0.0.1:9": (
        "certs",
        "cryptography",
    ),
    "serve --listen SASL_PLAINTEXT://127.0.0.1:0 --set sasl.enabled.mechanisms=OAUTHBEARER": (
        "oauth",
        "joserfc",
    ),
    "fsck --data data --metadata postgresql://u@127.0.0.1:1/d": ("postgres", "asyncpg"),
    "tier restore --tier s3://bucket/prefix --data empty": ("s3", "boto3"),
    "find t --source s3://bucket/prefix --key k": ("reading", "numpy"),
    "find t --source tier --key k": ("reading", "numpy"),
    "sql SELECT": ("sql", "duckdb and numba and pyarrow"),
    "pipeline": ("spark", "kafkawire-spark"),
    "pipeline --help": ("spark", "kafkawire-spark"),
    "pipeline query SELECT": ("spark", "kafkawire-spark"),
    "pipeline report lag --source 127.0.0.1:1 --out o": ("spark", "kafkawire-spark"),
    "certs make new": ("certs", "cryptography"),
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_environment(tmp_path_factory.mktemp("bare") / "venv")


def run(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-P", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )


KAFKAWIRE = ("-m", "kafkawire")
PRINTED = "printed"


def printed(folder: Path) -> str:
    """Return the output of the broker so far."""
    return (folder / PRINTED).read_text()


@contextmanager
def serving(python: Path, folder: Path, *more: str) -> Iterator[list[str]]:
    """Run a broker of this environment; yields the options of commands that use it."""
    words = ("serve", "--listen", "127.0.0.1:0", "--data", "data", *more)
    with (folder / PRINTED).open("w") as output:
        command = [str(python), "-P", *KAFKAWIRE, *words]
        with subprocess.Popen(command, cwd=folder, stdout=output, stderr=output) as broker:
            try:
                serves = re.compile(r"listens on PLAINTEXT://([^;,]+)")
                found = wait_until(lambda: serves.findall(printed(folder)), "the broker serves")
                yield ["--server", found[0]]
            finally:
                broker.terminate()


@pytest.mark.slow
def test_no_command_ends_in_a_traceback(python: Path, tmp_path: Path) -> None:
    done = run(python, tmp_path, "-c", SWEEP, str(ROOT / "tests/kit/commands.py"))
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert len(said) > 60
    for path, (code, text) in said.items():
        assert code in (0, 1, 2), (path, text)
        assert "Traceback" not in text, (path, text)
        assert "No module named" not in text, (path, text)


@pytest.mark.slow
@pytest.mark.parametrize("words", NEEDS)
def test_missing_extra_is_one_sentence_with_the_command(
    python: Path, tmp_path: Path, words: str
) -> None:
    extra, packages = NEEDS[words]
    (tmp_path / "tier").mkdir()
    (tmp_path / "data/brokers/1").mkdir(parents=True)
    (tmp_path / "job.toml").touch()
    done = run(python, tmp_path, "-m", "kafkawire", *words.split())
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert f" needs {packages}: " in line
    assert f"pip install 'kafkawire[{extra}]'" in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bare", "bare without uvloop", "all"])
def test_normal_start_prints_no_warning(kind: str, tmp_path: Path) -> None:
    python = Path(sys.executable)
    if kind != "all":
        python = bare_environment(tmp_path / "environment")
    if "without" in kind:
        for each in (tmp_path / "environment").glob("lib/python*/site-packages/uvloop*"):
            each.unlink()
    made = certificates()
    files = f"ssl.keystore.location={made}/server.pem", f"ssl.key.location={made}/server.key"
    encrypted = ("--listen", "TLS://127.0.0.1:0", "--listen", "SASL_TLS://127.0.0.1:0")
    tier = ("--tier", str(tmp_path / "tier"))
    starts = ((), (*tier, *encrypted, "--set", files[0], "--set", files[1]), tier)
    for words in starts:  # the second and third of a broker that was stopped
        with serving(python, tmp_path, *words) as server:
            assert run(python, tmp_path, *KAFKAWIRE, "topics", "list", *server).returncode == 0
        lines = printed(tmp_path).splitlines()
        assert lines[0].startswith("kafkawire listens on "), lines
        strange = [line for line in lines[1:] if not re.match(r"20\S+Z INFO +kafkawire\.", line)]
        assert strange == []


@pytest.mark.slow
def test_broker_needs_no_extra(python: Path, tmp_path: Path) -> None:
    """Neither do produce, consume and find, and an export whose format needs one says so."""
    with serving(python, tmp_path) as server:
        assert run(python, tmp_path, *KAFKAWIRE, "topics", "create", "t", *server).returncode == 0
        produce = [str(python), "-P", *KAFKAWIRE, "produce", "t", *server]
        subprocess.run(produce, input="one\n", text=True, check=True, timeout=120)
        consumed = run(python, tmp_path, *KAFKAWIRE, "consume", "t", *server)
        assert (consumed.returncode, consumed.stdout) == (0, "one\n")
        found = run(python, tmp_path, *KAFKAWIRE, "find", "t", "--from", "-1h", *server)
        assert (found.returncode, found.stdout[-5:]) == (0, " one\n"), found.stderr
        exported = run(python, tmp_path, *KAFKAWIRE, "export", "t", "t.parquet", *server)
        assert exported.returncode == 2, exported.stderr
        assert "Parquet needs pyarrow: " in exported.stderr


def test_bare_install_is_small() -> None:
    assert size_bytes() <= MOST_BYTES
    assert not required() & {"numpy", "boto3", "botocore", "cryptography"}


def test_packages_of_extras_are_those_of_the_project() -> None:
    for extra, modules in EXTRAS.items():
        names = {name.replace("-", "_").lower() for name in required(extra)}
        assert {module.replace(".", "_") for module in modules} <= names, extra


@pytest.mark.parametrize(
    ("origin", "command", "and_spark"),
    [
        ({}, "pip install 'kafkawire[sql]'", ""),
        ({"url": "file:///src/kw", "dir_info": {}}, "pip install '/src/kw[sql]'", " /src/kw/spark"),
        (
            {"url": "file:///my%20src/kw", "dir_info": {"editable": True}},
            "pip install --editable '/my src/kw[sql]'",
            " --editable '/my src/kw/spark'",
        ),
        (
            {"url": "https://host/kw.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'kafkawire[sql] @ git+https://host/kw.git'",
            " 'kafkawire-spark @ git+https://host/kw.git#subdirectory=spark'",
        ),
        (
            {"url": "file:///d/kafkawire-1-py3-none-any.whl", "archive_info": {}},
            "pip install 'kafkawire[sql] @ file:///d/kafkawire-1-py3-none-any.whl'",
            " --find-links=file:///d",
        ),
    ],
)
def test_command_is_the_one_for_the_installation(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any], command: str, and_spark: str
) -> None:
    monkeypatch.setattr(extras, "_origin", lambda: origin)
    assert install_line("sql").endswith(command)
    assert install_line("spark").endswith(command.replace("[sql]", "[spark]") + and_spark)


def test_pip_of_another_environment_is_not_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert " -m pip install " in install_line("sql")


def test_origin_is_that_of_this_installation() -> None:
    text = distribution("kafkawire").read_text("direct_url.json")
    assert extras._origin() == (json.loads(text) if text else {})


def test_failed_imports_are_explained() -> None:
    with pytest.raises(MissingExtra, match=r"^a feature needs nosuch: "):
        need("sql", "a feature", ("nosuch",))
    found = explain(ModuleNotFoundError("no", name="asyncpg.exceptions"))
    assert found is not None
    assert found.startswith("this needs asyncpg: ")
    found = explain(ModuleNotFoundError("no", name="pyspark"))
    assert found is not None
    assert found.startswith("this needs pyspark: ")
    assert explain(ModuleNotFoundError("no", name="kafkawire.nosuch")) is None
