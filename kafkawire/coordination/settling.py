"""Effects that wait: each leaves after the commit that covers all that was applied before it.

A coordinator says what it has appended and which effects (answers, markers) belong to it; commits
settle these in order. Each coordinator has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

Effect = Callable[[], None]


class CommitQueue:
    """The appends of one coordinator that wait for their commits, with their effects.

    `done` is called after each settled append, `failed` once when a write or a commit failed: by
    then everything unsettled has been forgotten.
    """

    __slots__ = ("_commit_log", "_done", "_failed", "_life", "_partition", "unsettled")

    def __init__(
        self,
        commit_log: CommitLog,
        done: Callable[[], None],
        failed: Callable[[BaseException], None],
        partition: Partition | None = None,
    ) -> None:
        """`partition`: the one that it appends to; once resigned, each of its commits has
        failed."""
        self._commit_log = commit_log
        self._partition = partition
        self._done = done
        self._failed = failed
        self.unsettled: deque[list[Effect]] = deque()
        self._life = 0  # one more each time it is cleared: commits from before that do nothing

    def release(self, effects: list[Effect], *, appended: bool) -> None:
        """Perform `effects` when everything appended so far is committed. `appended`: something has
        just been, and these effects belong to it."""
        if appended:
            self.unsettled.append(effects)
            wait = self._commit_log if self._partition is None else self._partition
            wait.after_commit(partial(self._note_end, self._life, True))
        # It may show what was appended before: no client is notified of state that may be lost.
        elif self.unsettled:
            self.unsettled[-1].extend(effects)
        # At once, which makes requests that only read cheap.
        else:
            for effect in effects:
                effect()

    def expect_write(self) -> None:
        """Note an append without effects that may wait for a commit that others ask for; effects
        released after it do not wait for it."""
        self._commit_log.after_write(partial(self._note_end, self._life, False))

    def clear(self) -> None:
        """Forget what is unsettled; the caller answers the clients."""
        self._life += 1
        self.unsettled.clear()

    def _note_end(self, life: int, committed: bool, failure: BaseException | None) -> None:
        """Note that an append is written, or `committed`: the oldest one that is unsettled."""
        if life != self._life:
            return
        partition = self._partition
        # It was resigned before that: the next leader may not have the record.
        if failure is None and partition is not None and partition.resigned:
            failure = partition.refusal()
        if failure is not None:
            self.clear()
            self._failed(failure)
            return
        if committed:
            for effect in self.unsettled.popleft():
                effect()
        self._done()
