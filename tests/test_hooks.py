"""Hooks that raise, are slow or never return: events are lost and counted, nothing is held."""

from __future__ import annotations

import logging
import threading

import pytest

from kafkawire.hooks import METHODS, BrokerHooks, Event, HookRunner, TopicCreated, TopicDeleted
from tests.kit.waiting import wait_until


class Recorder(BrokerHooks):
    """Keeps events. `gate`: a created topic waits for it."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = False

    def topic_created(self, event: TopicCreated) -> None:
        self.entered.set()
        self.gate.wait(60)
        self.seen.append(event)

    def topic_deleted(self, event: TopicDeleted) -> None:
        raise RuntimeError(f"not {event.name}\nplease")

    def close(self) -> None:
        self.closed = True


def test_each_event_has_its_method() -> None:
    assert set(METHODS) == set(Event.__args__)
    assert all(callable(getattr(BrokerHooks, name)) for name in METHODS.values())


def test_events_are_passed_in_order_outside_of_the_caller() -> None:
    first, second = Recorder(), Recorder()
    runner = HookRunner({"first": first, "second": second})
    events = [TopicCreated(f"t{number}", 1) for number in range(100)]
    for event in events:
        runner.emit(event)
    runner.close()
    assert first.seen == second.seen == events
    assert first.closed
    assert runner.calls == {"first": 101, "second": 101}


def test_exception_is_one_sentence_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    hook = Recorder()
    runner = HookRunner({"log": hook})
    runner.emit(TopicDeleted("t"))
    runner.emit(TopicCreated("t", 1))
    runner.close()
    assert caplog.messages == ["the hook log failed in topic_deleted: RuntimeError: not t please"]
    assert (runner.failures["log"], len(hook.seen)) == (1, 1)


def test_slow_hook_loses_events_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hook = Recorder()
    hook.gate.clear()
    runner = HookRunner({"slow": hook}, max_queued=3)
    runner.emit(TopicCreated("t", 1))
    hook.entered.wait(60)  # the queue is empty now, and the hook busy
    for _ in range(10):
        runner.emit(TopicCreated("t", 1))
    assert runner.dropped["slow"] == 7
    hook.gate.set()
    wait_until(lambda: len(hook.seen) == 4, "the hook has caught up")
    wait_until(lambda: len(caplog.messages) == 2, "it is reported")
    assert caplog.messages[0].startswith("the hook slow is too slow: 3 events wait for it")
    assert caplog.messages[1] == "the hook slow has caught up"
    runner.close()


def test_hook_that_never_returns_does_not_hold_the_end(caplog: pytest.LogCaptureFixture) -> None:
    hook = Recorder()
    hook.gate.clear()
    runner = HookRunner({"stuck": hook}, max_queued=2)
    for _ in range(2):
        runner.emit(TopicCreated("t", 1))
    hook.entered.wait(60)
    runner.close(within_s=0.05)
    assert "the hook stuck has not returned in time: 1 events are dropped" in caplog.messages
    hook.gate.set()
