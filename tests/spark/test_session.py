"""Starting Spark for the commands: missing software is reported in a sentence, settings are passed
through."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkawire.reading.limits import SourceOptionError
from kafkawire.reading.model.source import Unreachable
from kafkawire_spark.session import (
    InvalidSetup,
    SessionError,
    check_master,
    find_java,
    open_session,
    sentence,
)
from tests.kit.spark.session import need_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java(folder: Path, says: str, code: int = 0) -> Path:
    """A home with a bin/java that prints this where Java prints its version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    "says",
    ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19', 'x version "25"'],
)
def test_new_java_is_used(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == str(home / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert find_java() == str(home / "bin" / "java")


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ('openjdk version "1.8.0_292"', "is Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ("something else", "does not say its version"),
    ],
)
def test_old_java_is_refused(
    says: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, says)))
    with pytest.raises(SessionError, match=f"{words}: install one .*openjdk-17"):
        find_java()


def test_missing_java_is_reported_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SessionError, match=f"JAVA_HOME={tmp_path} has no bin/java: install"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(SessionError, match="no java on PATH: install"):
        find_java()


@pytest.mark.parametrize(
    "master",
    [
        "nonsense",
        "spark://",
        "spark://host",
        "spark://a:1,b",
        "local[2",
        "local[x]",
        "host:7077",
        "",
    ],
)
def test_invalid_master_is_refused_before_java_starts(master: str) -> None:
    with pytest.raises(InvalidSetup, match=rf"master '{re.escape(master)}' is none of local\[N\]"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4,2]", "yarn", "k8s://https://a"])
def test_valid_masters_are_left_to_spark(master: str) -> None:
    check_master(master)


def test_unreachable_master_is_named() -> None:
    with socket.socket() as bound:  # it refuses connections: nothing listens
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(Unreachable, match=rf"master at spark://{address},.*: Connection refu"):
            check_master(f"spark://{address},{address}")
        bound.listen()
        check_master(f"spark://127.0.0.1:1,{address}")


def test_error_message_is_extracted_from_spark_exception() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan:\nTraceback (most recent call last):\n"
        '  File "/x.py", line 5, in read\n    raise SourceOptionError(\n'
        f"{SourceOptionError.__module__}.OptionError: no topic 'x' in /data\n SQLSTATE: 38000"
    )
    assert sentence(RuntimeError(text)) == "no topic 'x' in /data"
    assert sentence(RuntimeError("first line\nsecond")) == "first line"


@pytest.mark.real
def test_fork_server_has_imported_kernels_and_one_thread() -> None:
    """A lock held by a thread that does not exist after a fork would be held for ever."""
    script = (
        "import os, sys\n"
        "from kafkawire_spark import daemon\n"
        "daemon.preload()\n"
        "missing = [name for name in daemon.PRELOADED if name not in sys.modules]\n"
        "print(missing, len(os.listdir('/proc/self/task')))\n"
    )
    if not Path("/proc/self/task").exists():
        pytest.skip("only Linux lists the threads of a process")
    environ = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS",)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environ, timeout=600
    )
    assert (done.stdout.strip(), done.stderr) == ("[] 1", "")


@pytest.mark.real
def test_fork_server_objects_are_excluded_from_collection() -> None:
    """pyspark collects garbage after each task; everything imported before the fork is excluded."""
    code = (
        "import gc\n"
        "from kafkawire_spark import daemon\n"
        "daemon.preload()\n"
        "print(len(gc.get_objects()), gc.get_freeze_count())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    watched, frozen = map(int, ran.stdout.split())
    assert frozen > 50_000 > 50 * watched


BROKEN = """
import sys
from kafkawire_spark import daemon
sys.path.insert(0, sys.argv[1])
daemon.PRELOADED = ("broken", "colorsys")
daemon.preload()
print("broken" in sys.modules, "colorsys" in sys.modules)
"""


@pytest.mark.real
def test_fork_server_ignores_failed_import(tmp_path: Path) -> None:
    """The task imports it again, and reports the error."""
    (tmp_path / "broken.py").write_text("raise NameError('half written')")
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    assert ran.stdout.split() == ["False", "True"]


KEEPS = """
from kafkawire_spark import daemon
daemon.preload()
import time
from resource import RUSAGE_SELF, getrusage
import pyarrow as pa
def use():
    for buffer in [pa.allocate_buffer(8 << 20) for _ in range(8)]:
        memoryview(buffer).cast("B")[::4096] = bytes(2048)
    time.sleep(0.05)  # longer than mimalloc waits by itself
    pa.allocate_buffer(64)
for _ in range(3):
    before = getrusage(RUSAGE_SELF).ru_minflt
    use()
print(pa.default_memory_pool().backend_name, getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.real
def test_fork_server_keeps_memory_freed_by_arrow() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("MIMALLOC", "ARROW"))}
    ran = subprocess.run(
        [sys.executable, "-c", KEEPS],
        capture_output=True, text=True, check=True, timeout=600, env=environ,
    )  # fmt: skip
    pool, faults = ran.stdout.split()
    if pool != "mimalloc":
        pytest.skip(f"this pyarrow has {pool}")
    assert int(faults) < 100, "every page was obtained from the kernel again"


@pytest.mark.real
def test_active_session_is_reused(spark: SparkSession) -> None:
    assert open_session("spark://nowhere:7077", conf={"spark.ui.enabled": "true"}) is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.master == "local[2]"


QUIET = """
import sys
from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.session import SessionError, open_session
spark = open_session("local[1]", conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
assert map_in_arrow(spark.range(5).toDF("a"), lambda batches: batches, "a bigint").count() == 5
assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
assert spark.conf.get("spark.python.daemon.module") == "kafkawire_spark.daemon"
spark.stop()
try:
    open_session("local[1]", conf={"spark.driver.port": "nonsense"})
except SessionError as reason:
    print(reason)
"""


@pytest.mark.real
def test_start_is_quiet_and_failure_is_reported(tmp_path: Path) -> None:
    need_java()
    done = subprocess.run(
        [sys.executable, "-c", QUIET], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark does not start with master 'local[1]': ")
    assert "spark.driver.port" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    # Spark logs only errors, such as the invalid setting.
    output = done.stderr
    assert "WARN" not in output.upper(), output
    assert "INFO" not in output, output
    assert list(tmp_path.iterdir()) == []  # and it leaves no file in the working folder


SUBMITTED = """
from kafkawire_spark.session import open_session
spark = open_session("local[7]", conf={"spark.sql.shuffle.partitions": "3"})
context, settings = spark.sparkContext, spark.conf
print("FOUND", context.master, context.appName, settings.get("spark.sql.session.timeZone"),
      settings.get("spark.python.daemon.module"), settings.get("spark.sql.shuffle.partitions"))
spark.stop()
"""


@pytest.mark.real
def test_settings_of_spark_submit_take_precedence(tmp_path: Path) -> None:
    need_java()
    import pyspark

    script = tmp_path / "job.py"
    script.write_text(SUBMITTED)
    arguments = [
        "--master",
        "local[1]",
        "--name",
        "mine",
        "--conf",
        "spark.sql.session.timeZone=Japan",
    ]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [str(submit), *arguments, str(script)], capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert found == ["FOUND local[1] mine Japan kafkawire_spark.daemon 3"]
