"""Effects leave after the commit that covers all that was applied before them."""

from __future__ import annotations

from typing import Any

from kafkawire.coordination.settling import CommitQueue
from tests.kit.transactions.bench import TransactionLog


class Queue:
    def __init__(self) -> None:
        self.log = TransactionLog()
        log: Any = self.log
        self.left: list[str] = []
        self.failures: list[BaseException] = []
        self.dones = 0
        self.queue = CommitQueue(log, self.done, self.failures.append)

    def done(self) -> None:
        self.dones += 1

    def release(self, *names: str, appended: bool) -> None:
        effects = [lambda name=name: self.left.append(name) for name in names]
        self.queue.release([*effects], appended=appended)


def test_effects_wait_for_their_commit() -> None:
    at = Queue()
    at.release("nothing before it", appended=False)
    assert at.left.pop() == "nothing before it"
    at.release("a", "b", appended=True)
    at.release("c", appended=True)
    assert not at.left
    at.log.commit()
    assert at.left == ["a", "b", "c"]
    assert at.dones == 2


def test_effects_of_queries_join_the_last_append() -> None:
    at = Queue()
    at.release("a", appended=True)
    at.release("read", appended=False)
    at.release("b", appended=True)
    assert not at.left
    at.log.commit()
    assert at.left == ["a", "read", "b"]


def test_a_read_waits_for_an_append_without_effects() -> None:
    at = Queue()
    at.release(appended=True)
    at.release("read", appended=False)
    assert not at.left
    at.log.commit()
    assert at.left == ["read"]


def test_an_expected_write_waits_for_no_commit() -> None:
    at = Queue()
    commits: list[object] = []
    at.log.after_commit = commits.append  # type: ignore[method-assign, assignment]
    at.queue.expect_write()
    assert not commits
    assert not at.queue.unsettled
    at.release("read", appended=False)
    assert at.left == ["read"]
    at.log.commit()
    assert at.dones == 1


def test_a_failure_is_reported_once_and_drops_the_rest() -> None:
    at = Queue()
    at.release("a", appended=True)
    at.release("b", appended=True)
    at.queue.expect_write()
    at.log.fail()
    assert not at.left
    assert len(at.failures) == 1
    at.release("c", appended=True)
    at.log.commit()
    assert at.left == ["c"]


def test_a_failed_write_without_effects_is_reported() -> None:
    at = Queue()
    at.queue.expect_write()
    at.log.fail()
    assert len(at.failures) == 1


def test_commits_of_an_earlier_life_do_nothing() -> None:
    at = Queue()
    at.release("a", appended=True)
    at.queue.expect_write()
    at.queue.clear()
    at.log.commit()
    assert not at.left
    assert at.dones == 0
