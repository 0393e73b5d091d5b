"""The OpenAPI document: complete, and true of what the API answers; the commands of the guide.

Covers: kafkawire.console.api.declared, kafkawire.console.api.pages, kafkawire.console.api.topics.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.testing import InProcessBroker
from tests.console.api.conftest import curl

pytestmark = pytest.mark.real
GUIDE = Path(__file__).parents[3] / "docs" / "console.md"


def check(document: dict[str, Any], path: str, method: str, status: int, answer: Any) -> None:
    """Check an answer against its schema in the document."""
    declared = document["paths"][path][method]["responses"][str(status)]
    schema = declared["content"]["application/json"]["schema"]
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(answer)


def test_answers_are_as_declared(running: InProcessBroker, url: str, topic: str) -> None:
    document = curl(f"{url}/api/openapi.json")
    assert document["openapi"].startswith("3.1.")
    new = {"name": "declared", "partitions": 2, "configs": {"retention.ms": "100000"}}
    assert curl(f"{url}/api/topics", data=new, status=201) is None
    curl(f"{url}/api/topics", data=new, status=409)
    described = curl(f"{url}/api/topics/declared")
    check(document, "/api/topics/{topic}", "get", 200, described)
    assert described["configs"] == {"retention.ms": "100000"}
    assert described["partition_count"] == len(described["partitions"]) == 2
    assert curl(f"{url}/api/topics/declared", "-X", "DELETE", status=204) is None
    curl(f"{url}/api/topics/declared", status=404)
    records = f"/api/topics/{topic}/records"
    declared = "/api/topics/{topic}/records"
    body = {"records": [{"key": "k", "value": "v", "partition": 0,
                         "headers": [{"key": "h", "value_base64": "/w=="}]}] * 3}  # fmt: skip
    schema = document["paths"][declared]["post"]["requestBody"]["content"]["application/json"]
    Draft202012Validator(schema["schema"]).validate(body)
    check(document, declared, "post", 200, curl(url + records, data=body))
    check(document, declared, "get", 200, curl(f"{url}{records}?where=oldest"))
    with Cluster(running.bootstrap) as cluster:
        call_coordinator(lambda: commit(cluster, "a/..", {(topic, 0): 1}))
    check(document, "/api/topics", "get", 200, curl(f"{url}/api/topics?sort=records"))
    check(document, "/api/groups", "get", 200, curl(f"{url}/api/groups?q=a/"))
    group = curl(f"{url}/api/group?name=a%2F..")
    check(document, "/api/group", "get", 200, group)
    assert group["lag"] == 2
    reset = f"{url}/api/group/offsets?name=a%2F.."
    path = "/api/group/offsets"
    for where, at, offset in (("newest", "", 3), ("offset", "2", 2), ("oldest", "", 0),
                              ("offset", "99", 3), ("time", "@0", 0)):  # fmt: skip
        asked = {"topic": topic, "where": where, "partition": 0, **({"at": at} if at else {})}
        answer = curl(reset, data=asked)
        check(document, path, "post", 200, answer)
        assert answer["committed"] == [{"partition": 0, "offset": offset}]
    assert curl(f"{url}/api/group?name=a%2F..")["lag"] == 3
    curl(reset, data={"topic": topic, "where": "somewhere"}, status=400)
    check(document, "/api/tier", "get", 200, curl(f"{url}/api/tier"))


def test_page_lists_every_operation(url: str) -> None:
    page = subprocess.run(
        ["curl", "-sS", f"{url}/api"], capture_output=True, check=True, timeout=60
    ).stdout.decode()
    for path, methods in curl(f"{url}/api/openapi.json")["paths"].items():
        assert f"<code>{path}</code>" in page
        assert methods
        for declared in methods.values():
            assert declared["summary"] in page.replace("&#39;", "'")


def test_commands_of_the_guide_work(url: str, tmp_path: Path) -> None:
    section = GUIDE.read_text().partition("## HTTP API")[2]
    block = re.search(r"```console\n(.*?)```", section, re.DOTALL)
    assert block is not None
    commands = re.sub(r"\\\n\s*", "", block[1]).replace("http://127.0.0.1:8080", url)
    ran = [line[2:] for line in commands.splitlines() if line.startswith("$ ")]
    assert len(ran) >= 4
    for command in ran:
        assert shutil.which(command.split()[0])
        # A stream has no end; it is read until curl's time is over.
        stream = " -N" in command
        found = subprocess.run(
            ["sh", "-c", command + (" --max-time 3" if stream else " --fail-with-body")],
            capture_output=True, text=True, cwd=tmp_path, timeout=90,
        )  # fmt: skip
        assert found.returncode == (28 if stream else 0), (command, found.stdout, found.stderr)
        assert not stream or "data: {" in found.stdout
