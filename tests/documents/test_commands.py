"""Every console line of the documents is run: here, by a test that is named, or not, with a reason.

The lines of a section run in their order, against a broker that has what they name: topics with
records, groups with offsets, a transactional id, a remote tier.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from kafkawire.cli.app import app
from kafkawire.testing import TEST_SETTINGS, BrokerProcess
from tests.documents.pages import ROOT, Line, lines, pages, sections, text_of
from tests.kit.cli import run
from tests.kit.waiting import wait_until

ELSEWHERE = {
    "docs/console.md#": "tests/cli/test_console.py",
    "docs/getting-started.md#Cold records in S3": "tests/documents/test_sessions.py",
    "docs/console.md#HTTP API": "tests/console/api/test_openapi.py",
    "docs/pipeline.md": "tests/spark/pipeline/test_docs.py",
    "docs/spark-options.md": "tests/spark/pipeline/test_docs.py",
    "docs/schema-registry.md": "tests/spark/pipeline/test_schema_registry.py",
    "README.md#Install": "tests/documents/test_readme.py",
    "README.md#Run, produce, consume": "tests/documents/test_readme.py",
}
"""Pages and sections whose lines another test runs."""

NOT_RUN = {
    "KAFKAWIRE_COMPILE=3 make dist": "tests/packaging/test_compiled.py compiles them",
    "pip install './kafkawire[console]'": "it installs from package registries",
    "kafkawire console": "it serves until it is ended: tests/cli/test_console.py starts it",
    "kafkawire dev": "it runs until Ctrl-C: tests/cli/test_dev.py does it",
    "make check": "it runs the fast tests of which this is one",
    "make test": "it runs all tests of which this is one",
    "make run": "it installs from package registries; the session after it is run",
    "docker ": "it needs a Docker daemon; tests/deploy checks the files and the kafkawire commands",
    "python3 -m venv /opt": "it installs from package registries",
    "install -": "it needs root; tests/deploy/test_systemd.py checks the files",
    "systemd-sysusers": "it needs systemd as process 1",
    "systemctl": "it needs systemd as process 1",
    "sudo -u kafkawire": "it needs the user of the service; tests/deploy/test_systemd.py has its "
    "steps",
    "helm install": "it needs a cluster; tests/deploy/test_chart.py renders the same lines",
    "helm test": "it needs a cluster",
    "kubectl": "it needs a cluster",
    "make sim SEEDS": "make test runs the simulations with fewer seeds",
    ".venv/bin/python -c": "make test runs the simulations with other seeds",
    "kafkawire pipeline query": "it starts Spark: tests/spark/pipeline/test_docs.py runs one",
    "kafkawire sql --source": "it needs a bucket with records: tests/sql/test_sources.py reads one",
    "kafkawire cluster decommission": "it needs two brokers: tests/real/test_decommission.py has "
    "them",
    "kafkawire cluster drain": "it needs two brokers: tests/real/test_cluster_moves.py has them",
    "kafkawire cluster remove": "it needs two brokers: tests/real/test_cluster_removal.py has them",
    "kafkawire tier estimate --rate": "tests/tiering/test_docs.py compares its output",
    "kafkawire transactions abort": "it needs a hanging transaction: "
    "tests/cli/test_transactions.py aborts one",
    "kafkawire consume orders:0,2 --follow": "it reads until Ctrl-C",
    "kafkawire topics copy orders orders --to-server": "it needs a second cluster: "
    "tests/cli/topics/test_copy.py copies to one",
    "kafkawire restore s3://bucket": "it needs a scheduled backup: tests/cli/test_backup.py "
    "restores from a location",
    "kafkawire restore /var/lib/kafkawire/replicas/1": "it needs a lost machine: "
    "tests/restore/test_follower_copies.py restores its broker",
    "kafkawire restore saved --security": "it needs a backup with users: "
    "tests/cli/test_security_restore.py restores one",
    "kafkawire restore /backups/today --security": "it needs a backup with users: "
    "tests/cli/test_security_restore.py restores one",
}
"""The beginnings of lines that are not run, with the reason."""

SETTINGS = {
    "Access rules": {"authorizer": "acl", "super.users": "User:ANONYMOUS"},
}
"""Settings of the broker of a section."""

STOPPED = ("fsck", "offsets convert", "restore --from-log")
"""Commands on the folder of a stopped broker; they get a copy."""


def skipped(line: Line) -> bool:
    where = {line.page, f"{line.page}#{line.section}"} & set(ELSEWHERE)
    return bool(where) or any(line.command.startswith(each) for each in NOT_RUN)


def every_line() -> list[Line]:
    return [line for page in pages() for line in lines(page)]


def run_here() -> list[tuple[str, str]]:
    """Page and section of the lines that this test runs."""
    found = {(line.page, line.section): True for line in every_line() if not skipped(line)}
    return list(found)


def test_documents_have_commands() -> None:
    assert len(every_line()) > 120
    assert len([line for line in every_line() if not skipped(line)]) > 50


def test_every_line_that_is_run_here_is_a_command_of_kafkawire() -> None:
    """Another one is run by a test of its own, or has a reason in NOT_RUN."""
    others = [
        line for line in every_line()
        if not skipped(line) and not re.search(r"(^|\| )kafkawire ", line.command)
    ]  # fmt: skip
    assert not others


def test_reasons_are_needed_and_their_tests_exist() -> None:
    commands = [line.command for line in every_line()]
    assert not [each for each in NOT_RUN if not any(c.startswith(each) for c in commands)]
    for where in ELSEWHERE:
        page, _, section = where.partition("#")
        assert lines(page, section or None), where
    named = re.findall(r"tests/[\w/.]+\.py", " ".join([*NOT_RUN.values(), *ELSEWHERE.values()]))
    assert len(named) > 5
    assert not [name for name in named if not (ROOT / name).is_file()]


OF_OTHERS = {"--build-arg", "--cascade", "--help", "--keep"}
"""Options of other programs that a page names alone."""


def options_of(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


def every_option(command: Any) -> set[str]:
    """The options of a command and of all below it."""
    below = [command.get_command(None, each) for each in getattr(command, "commands", ())]
    return options_of(command).union(*map(every_option, below))


def code_of(text: str) -> list[str]:
    """The lines of shell blocks and the code within sentences."""
    blocks = re.findall(r"^```(?:console|sh)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    code = [re.sub(r"\\\n\s*", "", block).splitlines() for block in blocks]
    return [*chain(*code), *(" ".join(each.split()) for each in re.findall(r"`([^`]+)`", rest))]


def unknown_options(text: str) -> list[str]:
    """The options in the code of a page that the command before them, or any, does not have."""
    root: Any = typer.main.get_command(app)
    known, found = every_option(root) | OF_OTHERS, []
    for code in code_of(text):
        for typed in re.findall(r"(?:^|[\s(])kafkawire ((?:(?!\s[|>&;#]).)*)", code):
            command, used = root, set(options_of(root)) | {"--help"}
            for word in typed.split():
                name = word.partition("=")[0]
                if word in getattr(command, "commands", ()):
                    command = command.get_command(None, word)
                    used |= options_of(command)
                elif re.fullmatch(r"--[a-z][a-z-]*", name) and name not in used:
                    found += [code] if command is not root else []
        alone = re.match(r"--[a-z][a-z-]*", code)
        found += [code] if alone and alone[0] not in known else []
    return found


def test_options_in_the_documents_exist() -> None:
    wrong = {
        page: found
        for page in pages()
        if not page.startswith(("bench/", "CHANGELOG"))
        and (found := unknown_options(text_of(page)))
    }
    assert not wrong


def test_unknown_options_are_found() -> None:
    assert unknown_options("Tables are written to `--outt`.") == ["--outt"]
    assert unknown_options("```sh\nkafkawire topics list --colour red\n```\n")
    assert not unknown_options("`kafkawire topics list --json`, as with `--server`.")


class World:
    """A broker, in a folder of its own, with what the documents name."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.broker = BrokerProcess(
            folder / "kafkawire-data",
            settings=TEST_SETTINGS | settings,
            arguments=["--tier", str(folder / "tier")],
        )
        self.broker.start()

    def prepare(self) -> None:
        """Make topics, records, committed offsets and a finished transaction, where missing."""
        server = ("--server", self.broker.bootstrap)
        (self.folder / "lines.txt").write_text("key:value\n")
        for folder in (".zfunc", ".config/fish/completions"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        for topic in ("copy", "old-orders", "orders-copy"):
            run(app, ["topics", "create", topic, "--partitions", "6", *server])
        for topic in ("orders", "clicks"):
            run(app, ["topics", "create", topic, "--partitions", "6", *server])
            producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5})
            for number in range(1200):
                producer.produce(topic, b"value", str(number).encode(), partition=number % 6)
            assert producer.flush(60) == 0
        for group in ("kitchen", "billing"):
            consumer = KafkaConsumer(bootstrap_servers=self.broker.bootstrap, group_id=group)
            at = OffsetAndMetadata(150, "", -1)
            consumer.commit({TopicPartition("orders", n): at for n in range(6)})
            consumer.close()
        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": "kitchen-1"}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("orders", b"in a transaction")
        producer.commit_transaction(60)

    def here(self, command: str) -> list[str]:
        """The words after `kafkawire`, with this broker's folders in place of the documents'."""
        text = command.removeprefix("kafkawire ")
        for name in ("s3://BUCKET/PREFIX", "s3://OTHER/PREFIX"):
            text = text.replace(name, str(self.folder / name[5:].partition("/")[0].lower()))
        text = text.replace(str(self.folder / "bucket"), str(self.folder / "tier"))
        text = text.replace("/backups/", f"{self.folder}/backups/")
        return shlex.split(text)

    def run(self, line: Line) -> None:
        if not line.command.startswith("kafkawire ") or {"|", ">"} & set(line.command.split()):
            self.run_in_shell(line)
            return
        words = self.here(line.command)
        if words[0] == "serve":
            words.append("--show-config")  # it validates all options, and ends
        elif any(" ".join(words).startswith(each) for each in STOPPED):
            words = [word.replace("kafkawire-data", "copy") for word in words]
            self.copy()
            if "--from-log" in words:
                (self.folder / "copy" / "metadata.db").unlink()
        elif words[:2] in (["tier", "restore"], ["restore", str(self.folder / "tier")]):
            words += [] if "--dry-run" in words else ["--yes"]
            trial = ["tier", "restore", "--tier", "tier", "--data", "none", "--dry-run"]
            wait_until(lambda: run(app, trial).exit_code == 0, "the first upload")
        environ = {"KAFKAWIRE_SERVER": self.broker.bootstrap}
        if words[:2] == ["topics", "create"]:
            run(app, ["topics", "delete", words[2]], env=environ)
        elif words[:2] == ["topics", "copy"] and "--resume" not in words:
            run(app, ["topics", "delete", words[3]], env=environ)
        done = run(app, words, env=environ, catch_exceptions=False)
        assert done.exit_code == 0, f"{line.command}\n{done.output}"
        if words[:2] == ["topics", "create"]:
            self.prepare()  # the lines after it name its records and groups

    def run_in_shell(self, line: Line) -> None:
        """Run a line with pipes or files as it is; `kafkawire` is the one of this environment."""
        found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        home = {"PATH": found, "HOME": str(self.folder)}
        environ = os.environ | home | {"KAFKAWIRE_SERVER": self.broker.bootstrap}
        done = subprocess.run(
            ["sh", "-c", line.command],
            cwd=self.folder, env=environ, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{line.command}\n{done.stdout}\n{done.stderr}"

    def copy(self) -> None:
        """Copy the data folder while the broker is stopped."""
        self.broker.stop()
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        shutil.copytree(self.folder / "kafkawire-data", self.folder / "copy")
        self.broker.restart()


@pytest.fixture
def world(
    page: str, section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    settings = {"tiering.max.lag.ms": "5000"} if "tiering" in page else {}
    made = World(tmp_path, settings | SETTINGS.get(section, {}))
    try:
        yield made
    finally:
        if made.broker.running:
            made.broker.stop()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("page", "section"), run_here())
def test_commands_of_section(page: str, section: str, world: World) -> None:
    assert section in sections(page)
    world.prepare()
    for line in lines(page, section):
        if not skipped(line):
            world.run(line)
