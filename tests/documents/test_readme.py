"""README.md: its length, its picture, and every line of it, run in an environment of a newcomer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, block, lines, sections, text_of
from tests.kit.bare import add_packages, bare_environment
from tests.kit.ports import free_port

README_WORDS = 700
"""Longer texts belong to pages of docs/."""
GUIDES = (
    "getting-started", "testing", "command-line", "transactions", "schedule", "migrate",
    "differences", "deployment", "operate", "troubleshoot", "security", "cluster", "durability",
    "tiering", "metrics", "sql", "pipeline", "performance",
)  # fmt: skip
GUIDE_WORDS = 26_000
"""Of all guides together, without the series of metrics that are made from the code."""
ADDRESS = "127.0.0.1:9092"


def test_readme_is_short() -> None:
    assert len(text_of("README.md").split()) <= README_WORDS


def test_guides_are_short_enough_to_be_read() -> None:
    texts = (text_of(f"docs/{name}.md") for name in GUIDES)
    made = re.compile(r"<!-- families.*<!-- /families -->", re.DOTALL)
    assert sum(len(made.sub("", text).split()) for text in texts) <= GUIDE_WORDS


def test_readme_is_in_the_order_of_a_newcomer() -> None:
    titles = list(sections("README.md"))
    assert titles[1:6] == [
        "Is it for you?", "Install", "Run, produce, consume", "From Python", "In your tests",
    ]  # fmt: skip
    assert titles[-1] == "Work on it"
    commands = [line.command for line in lines("README.md", "Work on it")]
    assert commands == ["make run", "make check", "make test"]


def test_index_has_every_page() -> None:
    named = set(re.findall(r"\]\(([\w.-]+)\)", text_of("docs/README.md")))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert there <= named
    assert named <= {path.name for path in (ROOT / "docs").iterdir()}


def test_readme_leads_to_the_index() -> None:
    assert "](docs/README.md)" in text_of("README.md")


@pytest.mark.real
def test_picture_shows_what_the_commands_print(tmp_path: Path) -> None:
    made = tmp_path / "terminal.svg"
    subprocess.run([sys.executable, "docs/terminal.py", made], cwd=ROOT, check=True, timeout=120)
    assert made.read_text() == text_of("docs/terminal.svg"), "run python docs/terminal.py"


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a newcomer after "Install": a clone and an environment. Nothing is downloaded:
    the packages are those that pip would install."""
    commands = [line.command for line in lines("README.md", "Install")]
    assert commands == [
        "git clone URL kafkawire",
        "python3 -m venv venv && . venv/bin/activate",
        "pip install './kafkawire[console]'",
    ]
    folder = tmp_path_factory.mktemp("newcomer")
    clone = commands[0].replace("URL", str(ROOT))
    subprocess.run(["sh", "-c", clone], cwd=folder, check=True, capture_output=True, timeout=120)
    bare_environment(folder / "venv", wheel_of=folder / "kafkawire")
    return folder


@contextmanager
def serving(folder: Path, address: str) -> Iterator[None]:
    """Run the first line of "Run, produce, consume" until it is ready; Ctrl-C ends it."""
    command = lines("README.md", "Run, produce, consume")[0].command
    assert command == "kafkawire serve"
    words = [str(folder / "venv/bin/kafkawire"), "serve", "--listen", address]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        try:
            assert "listens on" in broker.stdout.readline()
            yield
        finally:
            broker.send_signal(signal.SIGINT)
    assert broker.returncode in (0, 130)


def shell(folder: Path, command: str, address: str) -> str:
    """Run a command of the page in the activated environment; return what it prints."""
    path = f"{folder / 'venv/bin'}:/usr/bin:/bin"
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG")}
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**kept, "PATH": path, "KAFKAWIRE_SERVER": address},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.real
def test_every_line_runs_as_it_is_written(newcomer: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with serving(newcomer, address):
        for line in lines("README.md", "Run, produce, consume")[1:]:
            printed = shell(newcomer, line.command, address)
            if line.output:
                assert tuple(printed.splitlines()) == line.output, line.command
    with serving(newcomer, address):
        (consume,) = (one for one in lines("README.md", "Run, produce, consume") if one.output)
        printed = shell(newcomer, consume.command, address)
        assert tuple(printed.splitlines()) == consume.output, "the records are still there"

        assert "`pip install kafka-python`" in sections("README.md")["From Python"]
        add_packages(newcomer / "venv", "kafka-python")
        code = block("README.md", "From Python", "python").replace(
            'KafkaConsumer("orders", ', f'KafkaConsumer("orders", bootstrap_servers="{address}", '
        )
        (newcomer / "first.py").write_text(code.replace(ADDRESS, address))
        printed = shell(newcomer, "python first.py", address)
        assert sorted(row.split(" ", 2)[2] for row in printed.splitlines()) == [
            "b'four'", "b'one'", "b'three'", "b'two'",
        ]  # fmt: skip

    assert "`pip install pytest`" in sections("README.md")["In your tests"]
    add_packages(newcomer / "venv", "pytest")
    (newcomer / "test_orders.py").write_text(block("README.md", "In your tests", "python"))
    assert "1 passed" in shell(newcomer, "python -m pytest -q test_orders.py", address)
