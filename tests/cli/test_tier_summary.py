"""`kafkawire tier status` and `pipeline audit` print a line for each topic.

Covers: kafkawire.cli.tier.commands, kafkawire_spark.cli.audit.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.cli.tier.commands import by_topic
from kafkawire_spark.audit.verdict import AuditProblem, PartitionReport, TableReport
from kafkawire_spark.cli.audit import show


def status(topic: str, lag: int, wait_s: float, **changed: Any) -> dict[str, Any]:
    row = {"topic": topic, "tiered": "yes", "lag_records": lag, "lag_bytes": 10 * lag}
    return {**row, "lag_s": wait_s, "last_upload_ms": None, "error": None, **changed}


def test_partitions_are_summed_by_topic() -> None:
    rows = by_topic(
        [
            status("a", 1, 5.0, last_upload_ms=7),
            status("a", 2, 3.0, last_upload_ms=9, error="AccessDenied"),
            status("b", 0, 0.0),
        ]
    )
    assert [row["topic"] for row in rows] == ["a", "b"]
    first = rows[0]
    assert (first["partitions"], first["lag"], first["lag_bytes"]) == (2, 3, 30)
    assert (first["lag_s"], first["last_upload_ms"], first["error"]) == (5.0, 9, "AccessDenied")


def audited(wrong: int) -> TableReport:
    partitions = [
        PartitionReport("t", n, 0, 9, 10, 10, gaps={"compacted": 1}, notes=["it was compacted"])
        for n in range(12)
    ]
    for each in partitions[:wrong]:
        each.problems.append(AuditProblem("missing rows", "2 records have no row", 2))
    return TableReport("lake/t", "parquet", 1, 12, 1000, partitions)


def test_audit_prints_topics_and_partitions_that_are_not_clean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(audited(wrong=0), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] == ["t"]]
    assert rows == [["t", "12", "120", "12", "0", "ok"]]
    assert "Note: t-0, t-1, t-2 and 9 more: it was compacted." in lines

    show(audited(wrong=1), as_json=False)
    out = capsys.readouterr()
    rows = [line.split() for line in out.out.splitlines() if line.split()[:1] == ["t"]]
    assert rows[0][-5:] == ["NOT", "CLEAN:", "1", "of", "12"]
    assert rows[1][:2] == ["t", "0"]
    assert len(rows) == 2
    assert "t-0: 2 records have no row" in out.err

    show(audited(wrong=0), as_json=False, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.split()[:1] == ["t"]]) == 12
