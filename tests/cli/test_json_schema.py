"""The JSON of every command: one document, or a line for each item of a stream; one schema.

Commands that need a broker or its folder are run here. A test fails if a command with --json is
neither among them nor named with the test that checks it (PIPELINE, ELSEWHERE).

Covers: kafkawire.cli.shared.output.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafkawire.cli.app import app
from kafkawire.testing.process import BrokerProcess
from tests.cli.test_wrong_arguments import COMMANDS
from tests.kit.cli import no_environment, produce, run  # noqa: F401  (a fixture, by name)
from tests.kit.json_schema import check_document, check_lines

CASES: dict[str, str] = {
    "topics create": "made",
    "topics add-partitions": "made --total 2",
    "topics list": "",
    "topics describe": "t",
    "topics copy": "t copied",
    "topics delete-records": "copied --before-offset 1 --yes",
    "topics delete": "made",
    "configs set": "retention.ms=86400000 --topic t",
    "configs describe": "--topic t",
    "configs unset": "retention.ms --topic t",
    "cluster describe": "",
    "cluster balance": "--dry-run",
    "cluster moves": "",
    "cluster why": "",
    "users list": "",
    "quotas list": "",
    "consume": "t --group g",
    "find": "t --from @0",
    "schedule list": "",
    "sql": "'SELECT value FROM t'",
    "groups list": "",
    "groups describe": "g",
    "groups lag": "--partitions",
    "groups why": "g --observe 0s",
    "groups reset-offsets": "g --topic t --to-earliest",
    "offsets describe": "t --group g",
    "offsets validate": "t",
    "offsets stats": "t",
    "offsets delete": "g --topic t:0",
    "groups delete": "g",
    "transactions list": "",
    "transactions describe": "x",
    "transactions hanging": "--broker 1",
    "transactions abort": "t:0 --start-offset 7",
    "tier pause": "",
    "tier resume": "",
    "tier status": "--all",
    "tier why": "--all",
    "tier cost": "",
    "tier estimate": "--rate 1000",
    "estimate": "--rate 1000",
    "tier scrub": "",
    "tier move": "--to {folder}/other",
    "backup": "{folder}/saved --data {data}",
    "doctor": "--data {data}",
    "version": "",
}
"""Arguments of each command, in an order in which each succeeds, while a broker runs."""
STOPPED = {
    "metadata version": "--data {data}",
    "offsets metrics": "--source {data}",
    "fsck": "--data {data}",
    "offsets convert": "--data {data} --to sql",
    "dump": "{journal}",
    "restore": "{folder}/saved --data {folder}/restored",
}
"""Those that read the folder of a stopped broker."""
INPUT = {"produce"}
"""Commands whose --json is the form of their input."""
PIPELINE = {f"pipeline {name}" for name in ("audit", "compact", "query", "replay", "report", "run")}
"""Checked in tests/cli/test_pipeline_json.py without Spark; some in tests/spark with it, too."""
ELSEWHERE = {
    "tier restore", "security restore", "acls list", "acls explain",
    "schedule show", "schedule why", "schedule cancel",
}  # fmt: skip
"""Needs a manifest in the tier, which is written later: checked in tests/restore. Access
rules need an authorizer: tests/cli/acls. Users of a backup: tests/cli/test_security_restore.py.
Schedule topics: tests/cli/test_schedule.py."""
STREAMS = {"consume", "find", "sql", "dump"}
FAILING = {"groups delete", "tier scrub"}
"""Commands that report something wrong here, in JSON and by exit code 1."""


def with_json() -> set[str]:
    return {
        " ".join(path)
        for path, command in COMMANDS.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }


def test_every_command_with_json_has_a_case() -> None:
    assert {*CASES, *STOPPED, *INPUT, *PIPELINE, *ELSEWHERE} == with_json()


def check(name: str, words: str, server: str | None) -> None:
    """Run a command, and check its JSON."""
    line = [*name.split(), *shlex.split(words), "--json"]
    if server is not None and any(p.name == "server" for p in COMMANDS[tuple(name.split())].params):
        line += ["--server", server]
    result = run(app, line)
    about = f"{line}: {result.stdout}{result.stderr}{result.exception!r}"
    assert result.exit_code in ((0, 1) if name in FAILING else (0,)), about
    if name in STREAMS:
        check_lines(result.stdout)
    else:
        check_document(result.stdout)


@pytest.mark.real
def test_json_has_one_schema(tmp_path: Path) -> None:
    data = tmp_path / "data"
    names = {"folder": str(tmp_path), "data": str(data)}
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "tier.url": f"{tmp_path}/tier",
        "journal.roll.ms": "100",
    }
    with BrokerProcess(data, settings=settings) as broker:
        produce(broker.bootstrap, "t", {0: 5})
        transaction = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
        transaction.init_transactions(30)
        transaction.begin_transaction()
        transaction.produce("t", b"v", partition=0)
        transaction.commit_transaction(30)
        transaction.begin_transaction()
        transaction.produce("t", b"open", partition=0)
        transaction.flush(30)
        for name, words in CASES.items():
            check(name, words.format(**names), broker.bootstrap)
    names["journal"] = str(min((data / "brokers" / "1" / "journals").glob("*.journal")))
    for name, words in STOPPED.items():
        check(name, words.format(**names), None)
