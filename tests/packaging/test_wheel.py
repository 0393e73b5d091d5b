"""Build the sdist and the wheel, install the wheel outside of the repository, and use it there.

The project that uses it has packages named `log` and `groups`, which earlier versions of kafkawire
installed as well: neither may hide the other. No network is needed: the build uses the setuptools
of this environment, and the new environment finds kafkawire's dependencies here.

Covers: kafkawire.__main__, kafkawire.cli.version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 120
"""Time limit of one child process; each takes seconds on a quiet machine."""

PROJECT = {
    "log/__init__.py": "MINE = 'log'\n",
    "log/loader.py": "MINE = 'log.loader'\n",
    "groups/__init__.py": "MINE = 'groups'\n",
    "round_trip.py": """
import sys

import log.loader
from kafkawire.client.cluster import Cluster
from kafkawire.client.fetching import fetch, sound_records
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import produce

partition = ("greetings", 0)
with Cluster(sys.argv[1]) as cluster:
    node = leaders(cluster, ["greetings"])[partition]
    assert produce(cluster, node, partition, [(None, b"one"), (None, b"two")], 1) == 0
    got = fetch(cluster, node, partition, 0, wait_ms=5000)
print(log.loader.MINE, *(record.value.decode() for record in sound_records(got, 0)))
""",
    "tests/test_it.py": """
import groups
import kafkawire
import log
from log import loader


def test_own_packages():
    assert (log.MINE, loader.MINE, groups.MINE) == ("log", "log.loader", "groups")


def test_a_broker(kafkawire_broker):
    assert kafkawire_broker.running
    assert "site-packages" in kafkawire.__file__
""",
}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a child process outside of the repository and return what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Built:
    """The files that `make dist` builds of one distribution in a folder of the repository."""

    folder: Path
    sdist: Path
    wheel: Path

    def metadata(self) -> Message:
        """The wheel's metadata, which a package index would show."""
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            return Parser().parsestr(archive.read(name).decode())


def build(folder: Path, source: Path) -> Built:
    """Build an sdist and a wheel from a copy: a build leaves files in its source folder."""
    made = source.parent / "dist"
    words = ("build", "--no-isolation", "--outdir", made, source)
    run(sys.executable, "-m", *words, cwd=source.parent)
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    return Built(folder, sdist, wheel)


IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """kafkawire."""
    source = tmp_path_factory.mktemp("source") / "kafkawire"
    source.mkdir()
    for name in ("kafkawire", "spark", "docs", "deploy"):
        shutil.copytree(ROOT / name, source / name, ignore=IGNORED)
    (source / "tests").mkdir()
    (source / "tests" / "test_something.py").touch()  # setuptools would take it into the sdist
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    return build(ROOT, source)


@pytest.fixture(scope="module")
def built_spark(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """kafkawire-spark."""
    source = tmp_path_factory.mktemp("source") / "spark"
    shutil.copytree(ROOT / "spark", source, ignore=IGNORED)
    return build(ROOT / "spark", source)


@pytest.fixture(scope="module")
def python(built: Built, built_spark: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with both wheels, and these tests' dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = ("install", "--quiet", "--no-index", "--no-deps", built.wheel, built_spark.wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run(python, "-c", ask, cwd=folder).strip())
    # Written last, or pip would find this environment's kafkawire installed. It is only a path:
    # the .pth files at its end, of which one names this repository, are not read.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Another project, whose packages are named as kafkawire's once were."""
    for name, text in PROJECT.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "project"


def check_modules(of: Built, *packages: str) -> None:
    """The wheel has every file of these packages, and no other package."""
    with zipfile.ZipFile(of.wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(of.folder))
        for package in packages
        for path in (of.folder / package).rglob("*")
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
    }
    assert inside == wanted


def test_wheels_have_every_module_and_no_other_package(built: Built, built_spark: Built) -> None:
    check_modules(built, "kafkawire")
    check_modules(built_spark, "kafkawire_spark", "pyspark_kafkawire")


def check_metadata(of: Built, name: str) -> Message:
    """The metadata of the wheel is complete; return it."""
    found = of.metadata()
    assert found["Name"] == name
    assert found["License-Expression"] == "Apache-2.0"
    assert found["License-File"] == "LICENSE"
    assert found["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    readme = (of.folder / "README.md").read_text(encoding="utf-8")
    assert str(found.get_payload()).strip() == readme.strip()
    with zipfile.ZipFile(of.wheel) as archive:
        (license,) = (n for n in archive.namelist() if n.endswith("licenses/LICENSE"))
        assert archive.read(license) == (ROOT / "LICENSE").read_bytes()
    return found


def test_metadata_is_complete(built: Built, built_spark: Built) -> None:
    found = check_metadata(built, "kafkawire")
    spark = check_metadata(built_spark, "kafkawire-spark")
    assert found["Version"] == spark["Version"]
    extra = [row for row in found.get_all("Requires-Dist", []) if "kafkawire-spark" in row]
    assert extra == [f'kafkawire-spark=={spark["Version"]}; extra == "spark"']
    needs = [row for row in spark.get_all("Requires-Dist", []) if row.startswith("kafkawire")]
    assert needs == [f"kafkawire[reading,s3]=={found['Version']}"]


def test_sdists_have_required_files(built: Built, built_spark: Built) -> None:
    with tarfile.open(built_spark.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "kafkawire_spark/README.md"} <= inside
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "docs/tiering.md", "pyproject.toml"} <= inside
    assert {"Dockerfile", "docker-compose.yml", "docs/alerts.rules.yml"} <= inside
    assert {"deploy/docker/health", "deploy/helm/kafkawire/Chart.yaml"} <= inside
    assert {name.partition("/")[0] for name in inside}.isdisjoint(
        {"tests", "bench", "log", "spark"}
    )


def test_installed_version(python: Path, project: Path) -> None:
    printed = run(python, "-m", "kafkawire", "version", cwd=project)
    assert printed.startswith("kafkawire 0.")
    assert run(python.with_name("kafkawire"), "version", cwd=project) == printed


def test_every_console_script_runs(python: Path, project: Path) -> None:
    names = [name for name, _ in _console_scripts()]
    assert "kafkawire" in names
    for name in names:
        assert "Usage:" in run(python.with_name(name), "--help", cwd=project)


def test_every_group_of_commands_runs(python: Path, project: Path) -> None:
    """Its modules are in the wheel: a group is imported when it is named."""
    printed = run(python.with_name("kafkawire"), "--help", cwd=project)
    commands = re.findall(r"^  ([a-z]+)  ", printed.partition("Commands:")[2], re.MULTILINE)
    assert {"serve", "topics", "pipeline"} <= set(commands)
    for command in commands:
        assert "Usage:" in run(python.with_name("kafkawire"), command, "--help", cwd=project)


def _console_scripts() -> list[tuple[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["scripts"].items())


@contextmanager
def _served(python: Path, project: Path) -> Iterator[tuple[str, Path]]:
    """The address of a broker that the installed wheel runs in a project, and its output."""
    output = project / "broker.log"
    serve = [str(python), "-m", "kafkawire", "serve", "--listen", "127.0.0.1:0"]
    serve += ["--data", "data", "--tier", str(project / "tier")]
    environ = {**os.environ, "PYTHONPATH": ""}
    with output.open("w") as log:
        child = subprocess.Popen(serve, cwd=project, env=environ, stdout=log, stderr=log)
    try:
        address = wait_until(lambda: _listens(output.read_text()), "the address of the broker")
        yield address, output
    finally:
        child.terminate()
        assert child.wait(60) == 0, output.read_text()


def _listens(output: str) -> str:
    """The address in the broker's output; empty: it is not there yet."""
    found = re.search(r"listens on PLAINTEXT://(\S+);", output)
    return found[1] if found else ""


def test_serve_next_to_packages_of_same_names(python: Path, project: Path) -> None:
    """`python -m kafkawire serve` puts the working folder first on the path, also in the child
    processes of the broker: this one has a remote tier, so it starts a storage process."""
    with _served(python, project) as (address, output):
        server = ("--server", address)
        run(python, "-m", "kafkawire", "topics", "create", "greetings", *server, cwd=project)
        printed = run(python, "round_trip.py", address, cwd=project)
        status = run(python, "-m", "kafkawire", "tier", "status", *server, cwd=project)
    assert printed == "log.loader one two\n"
    assert "greetings" in status
    assert "Traceback" not in output.read_text()


def test_pytest_plugin_of_installed_wheel(python: Path, project: Path) -> None:
    printed = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=project)
    assert "2 passed" in printed
