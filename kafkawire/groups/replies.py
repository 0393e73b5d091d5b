"""Replies on their way out: each leaves after the commit that covers all that was applied first.

A coordinator says what it has appended and which replies belong to it; commits settle these
batches in order. A reply without a batch of its own joins the last one that is not settled, so
that no one is notified of state that could still be lost; with nothing unsettled it leaves at once,
which is what makes heartbeats cheap. What else depends on a commit (tombstones that are owed)
can ask for the number of the batch that it waits for.

Shell; one Settling per kafkawire.groups.coordinator, one Waiting per request. Knows nothing of
groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.decision import Reply
from kafkawire.groups.request import GroupRequest, RequestT, Response, ResponseT

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog


class Waiting(Generic[RequestT, ResponseT]):
    """A request that has no answer yet: `future` gets it."""

    __slots__ = ("_ask", "future")

    def __init__(self, ask: GroupRequest[RequestT, ResponseT]) -> None:
        self._ask = ask
        self.future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

    def answer(self, body: Response) -> None:
        """Answer the request; does nothing if its connection has closed. TypeError for the response
        of another kind of request."""
        if not isinstance(body, self._ask.kind.response):
            raise TypeError(f"{type(body).__name__} is no answer to {self._ask.request}")
        if not self.future.done():
            self.future.set_result(body)

    def fail(self, code: ErrorCode) -> None:
        """Answer the request with an error code alone."""
        self.answer(self._ask.error(code))


class Settling:
    """The batches of one coordinator: `unsettled` has the replies of each that waits for its
    commit, `settled` counts the others.

    `answer` is called for each reply whose time has come, `done` after each settled batch,
    `failed` once when a commit failed: by then everything unsettled has been forgotten.
    """

    __slots__ = ("_answer", "_commit_log", "_done", "_failed", "_life", "settled", "unsettled")

    def __init__(
        self,
        commit_log: CommitLog,
        answer: Callable[[Reply], None],
        done: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._commit_log = commit_log
        self._answer = answer
        self._done = done
        self._failed = failed
        self.unsettled: deque[list[Reply]] = deque()
        self._life = 0  # one more each time it is cleared: commits of an earlier life do nothing
        self.settled = 0

    @property
    def due(self) -> int:
        """`settled` will be this when everything appended so far is committed."""
        return self.settled + len(self.unsettled)

    def release(self, replies: list[Reply], *, appended: bool) -> None:
        """Let replies go when everything appended so far is committed. `appended`: something
        has just been, and these replies tell of it."""
        if appended:
            self.unsettled.append(replies)
            self._commit_log.after_commit(partial(self._committed, self._life))
        elif self.unsettled:
            self.unsettled[-1].extend(replies)
        else:
            for reply in replies:
                self._answer(reply)

    def clear(self) -> None:
        """Forget what is unsettled; its replies belong to another caller now."""
        self._life += 1
        self.unsettled.clear()

    def _committed(self, life: int, failure: BaseException | None) -> None:
        if life != self._life:
            return
        if failure is not None:
            self.clear()
            self._failed(failure)
            return
        self.settled += 1
        for reply in self.unsettled.popleft():
            self._answer(reply)
        self._done()
