"""The audit command without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kafkawire_spark import session
from kafkawire_spark.audit import job
from kafkawire_spark.cli import audit as pipeline_audit
from tests.kit.spark.inline import in_process


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`kafkawire pipeline audit`, without Spark."""
    monkeypatch.setattr(session, "open_session", lambda *a, **k: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(job, "through_spark", lambda spark, progress: in_process)
    return pipeline_audit.audit
