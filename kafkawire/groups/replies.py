"""Pending replies: each is sent after the commit that covers all changes applied before it.

A coordinator registers its appended batches and the replies that belong to them; commits settle
these batches in order. A reply without a batch joins the last unsettled one, so that no client
learns of state that may still be lost. If all batches are settled it is sent immediately, which
makes heartbeats cheap. Other work that depends on a commit (pending tombstones) uses the number of
the batch it waits for.

One Settling per kafkawire.groups.coordinator, one Waiting per request; independent of groups.
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


class UnansweredRequest(Generic[RequestT, ResponseT]):
    """A request that has no answer yet: `future` gets it."""

    __slots__ = ("_ask", "future")

    def __init__(self, ask: GroupRequest[RequestT, ResponseT]) -> None:
        self._ask = ask
        self.future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

    def answer(self, body: Response) -> None:
        """Answer the request; no effect if its connection has closed. Raises TypeError for a
        response of another request type."""
        if not isinstance(body, self._ask.kind.response):
            raise TypeError(f"{type(body).__name__} is no answer to {self._ask.request}")
        if not self.future.done():
            self.future.set_result(body)

    def fail(self, code: ErrorCode) -> None:
        """Answer the request with only an error code."""
        self.answer(self._ask.error(code))


class Settling:
    """The batches of one coordinator: `unsettled` has the replies of each batch that waits for its
    commit, `settled` counts the others.

    `answer` is called for each reply to be sent, `done` after each settled batch, `failed` once
    after a failed commit, when all unsettled batches have been discarded.
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
        self._life = 0  # incremented by each clear: earlier commits have no effect
        self.settled = 0

    @property
    def due(self) -> int:
        """The value of `settled` once everything appended so far is committed."""
        return self.settled + len(self.unsettled)

    def release(self, replies: list[Reply], *, appended: bool) -> None:
        """Send replies once everything appended so far is committed. `appended`: a batch was
        appended, and these replies belong to it."""
        if appended:
            self.unsettled.append(replies)
            self._commit_log.after_commit(partial(self._committed, self._life))
        elif self.unsettled:
            self.unsettled[-1].extend(replies)
        else:
            for reply in replies:
                self._answer(reply)

    def clear(self) -> None:
        """Discard unsettled batches; the caller answers their replies."""
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
