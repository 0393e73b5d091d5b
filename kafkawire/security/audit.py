"""The audit log: one JSON line for each authentication failure, denied request and change.

Changes are those of topics, settings, access rules, users, quotas, and of offsets by a client that
is no member of their group: an operator, or a consumer that works without a group. The setting
`audit.log` says where lines go: a file, to which they are appended, the broker's own log, or
nowhere. Lines wait in a bounded queue and are written by a thread, so a slow disk delays no
request; what does not fit is counted, and a line says how much was lost.
Denials and failures have a bounded rate, because clients repeat them.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from kafkawire.log.io.ports import Env
from kafkawire.log_lines import LineLimit

logger = logging.getLogger(__name__)

TO_LOG = "log"
"""The value of audit.log for the broker's own log."""
WAITING_MAX = 10_000
"""Lines that are not written yet: some 3 MB."""
WRITE_EVERY_S = 0.1
DENIED_BURST, DENIED_PER_S = 200, 20.0
FAILED_BURST, FAILED_PER_S = 1000, 100.0
OFFSETS_BURST, OFFSETS_PER_S = 100, 1.0
"""Lines at once, and per second after that."""
RECENT, RECENT_MS = 100, 3_600_000
"""Changes that are kept for the console, and for how long."""
MAX_TEXT = 1_000
"""Characters of a client's text in a line."""


class Caller(NamedTuple):
    """The origin of a request: principal as text, textual address, name of the listener."""

    principal: str
    host: str
    listener: str


NO_CALLER = Caller("", "", "")
"""The broker itself."""


class Sender(str):
    """A client as log lines name it, with what the audit log adds."""

    __slots__ = ("caller",)
    caller: Caller

    @classmethod
    def with_caller(cls, text: str, caller: Caller) -> Sender:
        """Return the text with its caller."""
        made = cls(text)
        made.caller = caller
        return made


def prefix_sender(prefix: str, sender: str) -> str:
    """Return the same client with a prefix in log lines."""
    return Sender.with_caller(f"{prefix}{sender}", caller_of(sender))


def caller_of(sender: str) -> Caller:
    """Return who sent something; NO_CALLER for the broker itself."""
    return sender.caller if isinstance(sender, Sender) else NO_CALLER


class Audit(Protocol):
    """The port. Calls never block or fail."""

    def authentication_failed(
        self, host: str, listener: str, mechanism: str, reason: str, user: str = ""
    ) -> None:
        """Record that a client could not log in. `user`: as it called itself; `mechanism`: of SASL,
        or "TLS"."""

    def record_denial(
        self, caller: Caller, request: str, operation: str, resource_type: str, name: str
    ) -> None:
        """Record that a request was refused a resource."""

    def record_change(self, caller: Caller, what: str, **details: object) -> None:
        """Record a change, for example `what` "topic created"."""

    def offsets_set(self, caller: Caller, group: str) -> None:
        """Record that offsets of a group were committed by a client that is no member: by an
        operator, or by a consumer that works without a group."""

    def list_changes(self) -> Sequence[Mapping[str, object]] | None:
        """Return the last changes of the last hour, the newest last; None without an audit log."""

    async def close(self) -> None:
        """Write what waits."""


class NoAudit:
    """`audit.log` is empty."""

    def authentication_failed(
        self, host: str, listener: str, mechanism: str, reason: str, user: str = ""
    ) -> None:
        """Record nothing."""

    def record_denial(
        self, caller: Caller, request: str, operation: str, resource_type: str, name: str
    ) -> None:
        """Record nothing."""

    def record_change(self, caller: Caller, what: str, **details: object) -> None:
        """Record nothing."""

    def offsets_set(self, caller: Caller, group: str) -> None:
        """Record nothing."""

    def list_changes(self) -> None:
        """Return None."""

    async def close(self) -> None:
        """Do nothing."""


class AuditLog:
    """The audit log in a file, or in the broker's log. `write` is called in a thread."""

    def __init__(self, env: Env, write: Callable[[Sequence[str]], None]) -> None:
        self._env = env
        self._write = write
        now = env.clock.monotonic
        self._denials = LineLimit(now, DENIED_BURST, DENIED_PER_S)
        self._failures = LineLimit(now, FAILED_BURST, FAILED_PER_S)
        self._offsets = LineLimit(now, OFFSETS_BURST, OFFSETS_PER_S)
        self._waiting: list[str] = []
        self._changes: deque[dict[str, object]] = deque(maxlen=RECENT)
        self._lost = 0
        self._failing = False
        self._due = False

    def authentication_failed(
        self, host: str, listener: str, mechanism: str, reason: str, user: str = ""
    ) -> None:
        """Record a failed log-in."""
        if (omitted := self._failures.admit()) is not None:
            caller = Caller(f"User:{user}" if user else "", host, listener)
            details: dict[str, object] = {"mechanism": mechanism, "reason": reason}
            self._add("authentication failed", caller, details, omitted)

    def record_denial(
        self, caller: Caller, request: str, operation: str, resource_type: str, name: str
    ) -> None:
        """Record a refusal, at a bounded rate."""
        if (omitted := self._denials.admit()) is not None:
            details: dict[str, object] = {
                "request": request,
                "operation": operation,
                "resource_type": resource_type,
                "resource": name,
            }
            self._add("denied", caller, details, omitted)

    def record_change(self, caller: Caller, what: str, **details: object) -> None:
        self._changes.append(self._add(what, caller, details, 0))

    def list_changes(self) -> Sequence[Mapping[str, object]]:
        begin = self._time(RECENT_MS)
        return [line for line in self._changes if str(line["time"]) >= begin]

    def offsets_set(self, caller: Caller, group: str) -> None:
        """Record offsets, at a bounded rate."""
        if (omitted := self._offsets.admit()) is not None:
            self._add("offsets set", caller, {"group": group}, omitted)

    def _add(
        self, event: str, caller: Caller, details: dict[str, object], omitted: int
    ) -> dict[str, object]:
        line: dict[str, object] = {"time": self._time(), "event": event}
        line.update(zip(Caller._fields, map(_cut, caller), strict=True))
        line.update((key, _cut(value)) for key, value in details.items())
        if omitted:
            line["omitted"] = omitted  # since the last line of this kind
        if len(self._waiting) >= WAITING_MAX:
            self._lost += 1
            return line
        self._waiting.append(json.dumps(line))
        if not self._due:
            self._due = True
            self._env.call_later(WRITE_EVERY_S, self._begin)
        return line

    def _begin(self) -> None:
        if self._waiting:
            self._env.spawn(self.flush(), "write the audit log")
        self._due = False

    async def flush(self) -> None:
        """Write the lines that wait."""
        lines, self._waiting = self._waiting, []
        if not lines:
            return
        lost = self._lost
        noted = [json.dumps({"time": self._time(), "event": "lines lost", "lost": lost})]
        try:
            await self._env.offload.submit("files", self._write, lines + noted[: bool(lost)])
            self._lost -= lost
            self._failing = False
        except OSError as failure:
            self._lost += len(lines)
            if not self._failing:
                self._failing = True
                logger.error(
                    "the audit log cannot be written: %s; its lines are lost until that is "
                    "repaired: see audit.log",
                    failure,
                )

    async def close(self) -> None:
        """Write what waits."""
        await self.flush()

    def _time(self, ago_ms: int = 0) -> str:
        moment = datetime.fromtimestamp((self._env.clock.now_ms() - ago_ms) / 1000, UTC)
        return moment.isoformat(timespec="milliseconds")


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}..."
    return value


def open_audit(env: Env, where: str) -> Audit:
    """Return the audit log of the setting `audit.log`. Raises OSError if the file cannot be
    written."""
    if not where:
        return NoAudit()
    if where == TO_LOG:
        return AuditLog(env, _to_log)
    file = env.fs.open(where, create=True)  # refused at start rather than at the first line
    file.close()
    return AuditLog(env, lambda lines: _append(env, where, lines))


def _to_log(lines: Sequence[str]) -> None:
    for line in lines:
        logger.info("%s", line)


def _append(env: Env, path: str, lines: Sequence[str]) -> None:
    """Append to the file; opened each time, so that it may be rotated by renaming it."""
    file = env.fs.open(path, create=True)
    try:
        text = "".join(f"{line}\n" for line in lines).encode()
        at = file.size()
        while text:
            written = file.pwritev([text], at)
            text, at = text[written:], at + written
    finally:
        file.close()
