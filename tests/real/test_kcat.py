"""kcat: the commands of the README."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests.real.conftest import MakeTopic


@pytest.fixture(scope="module")
def kcat() -> str:
    """The program. `make test` installs it; in CI its absence is a failure, not a skip."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        assert os.environ.get("CI") != "true", "kcat is not installed"
        pytest.skip("kcat is not installed (apt install kcat)")
    return found


def run(kcat: str, bootstrap: str, *arguments: str, data: str = "") -> str:
    done = subprocess.run(
        [kcat, "-b", bootstrap, *arguments],
        input=data,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_produced_records_are_consumed(kcat: str, bootstrap: str, name: str) -> None:
    """Also creates the topic."""
    run(kcat, bootstrap, "-P", "-t", name, data="one\ntwo\nthree\n")
    assert run(kcat, bootstrap, "-C", "-t", name, "-e", "-q") == "one\ntwo\nthree\n"


def test_keys_headers_and_offsets(kcat: str, bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    run(kcat, bootstrap, "-P", "-t", topic, "-p", "1", "-K:", "-H", "h=1", data="k:v\nk2:v2\n")
    form = "%p %o %k %s %h\n"
    found = run(kcat, bootstrap, "-C", "-t", topic, "-p", "1", "-o", "1", "-e", "-q", "-f", form)
    assert found == "1 1 k2 v2 h=1\n"


def test_list_metadata(kcat: str, bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    found = json.loads(run(kcat, bootstrap, "-L", "-J", "-t", topic))
    assert [len(t["partitions"]) for t in found["topics"]] == [3]
    assert [broker["name"] for broker in found["brokers"]] == [bootstrap]


def test_offsets_by_time(kcat: str, bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    run(kcat, bootstrap, "-P", "-t", topic, data="a\nb\n")
    assert f"{topic} [0] offset 2" in run(kcat, bootstrap, "-Q", "-t", f"{topic}:0:-1")
    assert f"{topic} [0] offset 0" in run(kcat, bootstrap, "-Q", "-t", f"{topic}:0:1000")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_produce_with_each_codec(
    kcat: str, bootstrap: str, make_topic: MakeTopic, codec: str
) -> None:
    topic = make_topic()
    lines = "".join(f"a line that repeats itself, number {i}\n" for i in range(500))
    run(kcat, bootstrap, "-P", "-t", topic, "-z", codec, data=lines)
    assert run(kcat, bootstrap, "-C", "-t", topic, "-e", "-q") == lines


def test_a_group_reads_every_record_once(
    kcat: str, bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(4)
    lines = [f"{i}" for i in range(100)]
    run(kcat, bootstrap, "-P", "-t", topic, data="\n".join(lines) + "\n")
    options = ["-X", "auto.offset.reset=earliest", "-e", "-q", "-G", name, topic]
    assert sorted(run(kcat, bootstrap, *options).split(), key=int) == lines
    run(kcat, bootstrap, "-P", "-t", topic, data="more\n")
    assert run(kcat, bootstrap, *options) == "more\n"
