"""docs/tiering.md names commands, options and settings that exist; its figures, and the sizes in
docs/operate.md, can be computed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import GROUPS, app
from kafkawire.codec.configs.settings import BROKER_CONFIGS, TOPIC_CONFIGS, TierLevel
from kafkawire.tiering.cost.prices import TABLES, parse_prices
from kafkawire.tiering.upload.scheduler import Reason
from tests.kit.cli import commands_of

DOCS = Path(__file__).parent.parent.parent / "docs"
TEXT = (DOCS / "tiering.md").read_text(encoding="utf-8")


def test_settings_exist() -> None:
    named = re.findall(r"`((?:tier|tiering|remote|local|journal)\.[a-z.]+[a-z])[`=]", TEXT)
    known = {*TOPIC_CONFIGS, *BROKER_CONFIGS, "remote.log.storage.system.enable"}
    assert len(set(named)) > 15
    assert sorted(set(named) - known) == []
    for level in TierLevel:
        assert f"`{level.name.lower().replace('_', '-')}`" in TEXT


def test_commands_and_their_options_exist() -> None:
    commands = commands_of(GROUPS["tier"])
    named = set(re.findall(r"kafkawire\s+tier\s+([a-z]+)", TEXT))
    assert named == set(commands)
    for name, words in re.findall(r"\$ kafkawire tier ([a-z]+)(.*)", TEXT):
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", words)) <= known, name


def test_every_reason_and_price_table_is_documented() -> None:
    for reason in Reason:
        assert f"| {reason.value} |" in TEXT
    for name in TABLES:
        assert f"`{name}`" in TEXT
    (own,) = re.findall(r"`(PUT=[^`]+)`", TEXT)
    assert parse_prices(own).currency == "EUR"


def printed(line: str) -> list[str]:
    """The lines that a command prints, with single spaces."""
    shown = CliRunner().invoke(app, line.split()).stdout
    return [" ".join(row.split()) for row in shown.splitlines()]


@pytest.mark.parametrize(
    ("page", "command"), [("tiering.md", "tier estimate --rate"), ("operate.md", "estimate --rate")]
)
def test_documented_estimate_is_computed(page: str, command: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    line, output = re.findall(
        rf"\$ kafkawire ({command} [^|\n]*)(?: \|.*?)?\n(.*?)```", text, re.DOTALL
    )[0]
    lines = printed(line)
    assert len(output.splitlines()) >= 5
    for row in output.splitlines():
        assert " ".join(row.split()) in lines


def test_examples_of_sizes_are_computed() -> None:
    text = (DOCS / "operate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(--rate .*?)` \| (.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    assert len(rows) >= 4
    for words, disk, metadata, memory in rows:
        lines = printed(f"estimate {words}")
        for title, figure in (("disk to plan", disk), ("metadata", metadata), ("memory", memory)):
            assert f"{title} {figure}" in lines, words


def test_links_have_targets() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT):
        assert (DOCS / target).exists(), target
    titles = re.findall(r"^## (.+)$", TEXT, re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors
