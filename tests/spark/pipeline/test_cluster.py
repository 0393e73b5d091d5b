"""A pipeline on a real cluster of two workers, one of which ends in the middle of a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from kafkawire.reading.files.open import open_place
from kafkawire_spark.pipeline.jobs.job import parse
from kafkawire_spark.pipeline.jobs.state import TableState
from kafkawire_spark.pipeline.tables.port import open_table
from tests.kit.spark.cluster import CONF, ROOT, cluster
from tests.kit.spark.pipeline_topics import Tier, job_text
from tests.kit.spark.session import need_java

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

WITHIN_S = 600.0
COMMAND = (sys.executable, "-P", "-m", "kafkawire", "pipeline", "run")


def test_a_worker_that_ends_in_the_middle_of_a_run(tmp_path: Path) -> None:
    need_java()
    tier = Tier(open_place(str(tmp_path / "tier")))
    tier.grow(40_000)
    table, file = tmp_path / "table", tmp_path / "job.toml"
    spark = {**CONF, "spark.local.dir": str(tmp_path / "local")}
    file.write_text(job_text(tier.files.place.url, table, spark=spark))
    with cluster(tmp_path / "cluster") as made:
        child = psutil.Popen(
            [*COMMAND, str(file), "--master", made.url],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **made.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        results = table / "_kafkawire" / "runs" / f"{1:020}"
        end = time.monotonic() + WITHIN_S
        while len(list(results.glob("task-*"))) < 4:
            assert child.poll() is None, child.communicate()[0]
            assert time.monotonic() < end, f"no task is done:\n{made.logs()}"
            time.sleep(0.01)
        made.kill(1)
        assert not (table / "_kafkawire" / "commits").exists(), "it was too late"
        output, _ = child.communicate(timeout=WITHIN_S)
    assert child.returncode == 0, output
    job = parse(file.read_text())
    [record] = TableState(open_place(job.table.path)).read_records()
    assert all(share.missing == 0 for share in record.shares)
    found: Counter[tuple[int, int]] = Counter()
    for path in table.glob("*.parquet"):
        columns = pq.read_table(path).to_pydict()
        found.update(zip(columns["_partition"], columns["_offset"], strict=True))
    assert found == Counter(tier.offsets())
    assert len(list(table.glob("*.parquet"))) == len(open_table(job).files())
    assert not list(results.glob("*"))
