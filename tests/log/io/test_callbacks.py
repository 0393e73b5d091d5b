"""Callbacks are called in order, whatever one of them raises."""

from __future__ import annotations

import pytest

from kafkawire.log.io.callbacks import call_all


def test_failing_callback_does_not_keep_others_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[BaseException | None] = []

    def broken(_: BaseException | None) -> None:
        raise RuntimeError("a defect")

    why = OSError("disk")
    call_all([called.append, broken, called.append], why)
    assert called == [why, why]
    assert "a callback of the commit log failed" in caplog.text
