"""Which requests of a client instance are accepted: each stage, each request, in Kafka's order."""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.telemetry.instances import (
    NEW,
    Expected,
    InstanceProgress,
    Stage,
    TelemetryPush,
    decide_get,
    decide_push,
)

INTERVAL_S = 10.0
EXPECTED = Expected(subscription_id=7, interval_s=INTERVAL_S, max_bytes=100)
GOOD = TelemetryPush(bytes(16), 7, terminating=False, compression=4, metrics=bytes(100))
LAST = GOOD._replace(terminating=True)
NONE, THROTTLED = ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED


def at(stage: Stage) -> InstanceProgress:
    return NEW if stage is Stage.NEW else InstanceProgress(stage, 100.0)


@pytest.mark.parametrize(
    ("stage", "now", "get", "push", "last"),
    [
        (Stage.NEW, 105.0, Stage.SUBSCRIBED, Stage.PUSHED, Stage.PUSHED),
        (Stage.SUBSCRIBED, 110.0, Stage.SUBSCRIBED, Stage.PUSHED, Stage.PUSHED),
        (Stage.SUBSCRIBED, 109.9, None, Stage.PUSHED, Stage.PUSHED),
        (Stage.PUSHED, 110.0, Stage.SUBSCRIBED, Stage.PUSHED, Stage.PUSHED),
        (Stage.PUSHED, 109.9, None, None, Stage.PUSHED),
    ],
)
def test_transitions(
    stage: Stage, now: float, get: Stage | None, push: Stage | None, last: Stage | None
) -> None:
    """The table of the module; None: refused, and nothing changes but the error."""
    for wanted, (after, error) in (
        (get, decide_get(at(stage), INTERVAL_S, now)),
        (push, decide_push(at(stage), GOOD, EXPECTED, now)),
        (last, decide_push(at(stage), LAST, EXPECTED, now)),
    ):
        assert error == (THROTTLED if wanted is None else NONE)
        assert after.stage is (stage if wanted is None else wanted)


def test_refused_requests_do_not_extend_the_interval() -> None:
    progress, _ = decide_push(NEW, GOOD, EXPECTED, 100.0)
    for now in (103.0, 109.0):
        progress, error = decide_push(progress, GOOD, EXPECTED, now)
        assert error == THROTTLED
        progress, error = decide_get(progress, INTERVAL_S, now)
        assert error == THROTTLED
    assert decide_push(progress, GOOD, EXPECTED, 110.0)[1] == NONE


def test_early_last_push_does_not_extend_the_interval() -> None:
    progress, error = decide_push(InstanceProgress(Stage.PUSHED, 100.0), LAST, EXPECTED, 105.0)
    assert (progress.accepted_at, error) == (100.0, NONE)


def test_nothing_is_accepted_after_the_last_push_until_another_was_refused() -> None:
    progress, _ = decide_push(NEW, LAST, EXPECTED, 100.0)
    progress, error = decide_push(progress, LAST, EXPECTED, 200.0)
    assert error == ErrorCode.INVALID_REQUEST
    progress, error = decide_push(progress, GOOD, EXPECTED, 200.0)
    assert error == ErrorCode.INVALID_REQUEST
    assert decide_push(progress, GOOD, EXPECTED, 200.0)[1] == NONE


@pytest.mark.parametrize(
    ("push", "error"),
    [
        (GOOD._replace(subscription_id=8), ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        (GOOD._replace(compression=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ],
)
def test_client_with_a_stale_subscription_asks_again_at_once(
    push: TelemetryPush, error: ErrorCode
) -> None:
    progress, found = decide_push(NEW, push, EXPECTED, 100.0)
    assert found == error
    progress, found = decide_get(progress, INTERVAL_S, 100.1)
    assert found == NONE
    assert progress == InstanceProgress(Stage.PUSHED, 100.0)  # as in Kafka, without a new interval
    assert decide_get(progress, INTERVAL_S, 100.2)[1] == THROTTLED


def test_too_large_push_does_not_let_a_client_ask_again() -> None:
    progress, error = decide_push(NEW, GOOD._replace(metrics=bytes(101)), EXPECTED, 100.0)
    assert error == ErrorCode.TELEMETRY_TOO_LARGE
    assert decide_get(progress, INTERVAL_S, 100.1)[1] == THROTTLED


def test_errors_in_kafkas_order() -> None:
    """One more thing is wrong in each step: the error is that of the first check."""
    push, progress = GOOD, InstanceProgress(Stage.SUBSCRIBED, 100.0)
    steps = [
        ({"metrics": bytes(101)}, {}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"compression": -1}, {}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"subscription_id": 8}, {}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({}, {"stage": Stage.PUSHED}, THROTTLED),
        ({}, {"terminating": True}, ErrorCode.INVALID_REQUEST),
    ]
    for wrong, state, error in steps:
        push, progress = push._replace(**wrong), progress._replace(**state)  # type: ignore[arg-type]
        assert decide_push(progress, push, EXPECTED, 101.0)[1] == error
