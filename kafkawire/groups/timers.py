"""Keyed timers of a coordinator on the event loop.

Used by kafkawire.groups.coordinator only. Scopes are group ids.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkawire.log.io.ports import Env, Timer


class _Entry:
    __slots__ = ("due_s", "handle", "handle_s")

    def __init__(self, due_s: float) -> None:
        self.due_s = due_s  # when it is due, monotonic
        self.handle_s = due_s  # when the loop timer fires
        self.handle: Timer | None = None


class Timers:
    """Timers by (scope, key); `fire(scope, key)` is called once when one is due."""

    __slots__ = ("_entries", "_env", "_fire", "_now")

    def __init__(self, env: Env, fire: Callable[[str, str], None]) -> None:
        self._env = env
        self._fire = fire
        # Monotonic: a jump of the wall clock must expire no session.
        self._now = env.clock.monotonic
        self._entries: dict[tuple[str, str], _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def set(self, scope: str, key: str, delay_ms: int) -> None:
        """Fire `delay_ms` from now, always from the event loop; moves an existing timer."""
        due_s = self._now() + delay_ms / 1000
        entry = self._entries.get((scope, key))
        if entry is None:
            entry = self._entries[(scope, key)] = _Entry(due_s)
        # Every heartbeat moves a session timer to a later time, so that must be cheap: the timer of
        # the event loop stays, and is set again when it fires too early.
        elif due_s >= entry.handle_s:
            entry.due_s = due_s
            return
        elif entry.handle is not None:
            entry.handle.cancel()
        entry.due_s = due_s
        self._arm(scope, key, entry)

    def cancel(self, scope: str, key: str) -> None:
        """Cancel a timer; no effect if it is not set."""
        entry = self._entries.pop((scope, key), None)
        if entry is not None and entry.handle is not None:
            entry.handle.cancel()

    def clear(self) -> None:
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            if entry.handle is not None:
                entry.handle.cancel()

    def _arm(self, scope: str, key: str, entry: _Entry) -> None:
        entry.handle_s = entry.due_s
        delay_s = max(entry.due_s - self._now(), 0.0)
        entry.handle = self._env.call_later(delay_s, self._scan, scope, key, entry)

    def _scan(self, scope: str, key: str, entry: _Entry) -> None:
        if self._entries.get((scope, key)) is not entry:
            return
        # Moved meanwhile.
        if self._now() < entry.due_s:
            self._arm(scope, key, entry)
            return
        # Removed first: `_fire` may set the same timer again.
        del self._entries[(scope, key)]
        self._fire(scope, key)
