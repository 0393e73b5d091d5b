"""Writes the events of groups to the log, at a bounded rate, and counts them for the metrics.

Above the rate, lines are left out and their number is reported. A group that rebalances again and
again, or is stuck, gets one warning in a while instead.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from kafkawire.groups.model.events import (
    Event,
    GroupStuck,
    MemberEvicted,
    RebalanceCompleted,
    RebalanceStarted,
    TargetComputed,
)
from kafkawire.hooks import GroupRebalanced, HookRunner
from kafkawire.log_lines import LineLimit, shorten_for_log
from kafkawire.metric_counters import Histogram

logger = logging.getLogger(__name__)

BURST = 200
"""Lines at once: a group of a hundred members that starts or stops."""
LINES_PER_S = 2.0
"""Lines per second after a burst: 20 MB a day."""
WINDOW_S = 600.0
"""Time in which the rebalances of a group are counted, and after which it is reported again."""
MANY_REBALANCES = 10
"""Rebalances in WINDOW_S from which on a group is reported: a deployment of ten members one after
the other has as many; a healthy group has none for days."""
STUCK_EVERY_S = 60.0
"""Minimum time between two lines about the same stuck group."""
MAX_GROUPS = 1_000
"""Groups that are watched for repeated rebalances at a time, some 200 bytes each."""


class _Window:
    """The rebalances of one group since `begun`."""

    __slots__ = ("begun", "count", "reported")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.count = 0
        self.reported = False


class GroupEventLog:
    """Reports events of all groups of a broker. `rebalances`: number of rebalances that began;
    `evictions` by reason; `durations` of complete rebalances in seconds."""

    def __init__(self, now: Callable[[], float], hooks: HookRunner | None = None) -> None:
        self._now = now
        self._hooks = hooks
        self._limit = LineLimit(now, BURST, LINES_PER_S)
        self._windows: dict[str, _Window] = {}
        self._stuck: dict[str, float] = {}
        self.rebalances = 0
        self.evictions: Counter[str] = Counter()
        self.durations = Histogram()

    def report(self, group_id: str, events: Iterable[Event]) -> None:
        """Count and log the events of a decision that was carried out."""
        for event in events:
            # It has its own interval, so that it is not left out among many others.
            if isinstance(event, GroupStuck):
                self._report_stuck(group_id, event)
                continue
            self._count(group_id, event)
            if self._hooks is not None and isinstance(event, RebalanceCompleted | TargetComputed):
                self._hooks.emit(GroupRebalanced(group_id, event.members, str(event)))
            warns = isinstance(event, MemberEvicted)
            self._write(logging.WARNING if warns else logging.INFO, group_id, event)

    def _count(self, group_id: str, event: Event) -> None:
        if isinstance(event, MemberEvicted):
            self.evictions[event.why.value] += 1
        elif isinstance(event, RebalanceCompleted):
            self.durations.add(max(event.took_ms, 0) / 1000)
        elif isinstance(event, RebalanceStarted):
            self.rebalances += 1
            self._watch(group_id, event)
        # Not watched: members keep reading their other partitions meanwhile.
        elif isinstance(event, TargetComputed):
            self.rebalances += 1

    def _watch(self, group_id: str, event: RebalanceStarted) -> None:
        now = self._now()
        window = self._windows.get(group_id)
        if window is None or now - window.begun > WINDOW_S:
            # Removed first: windows are in the order of their beginning, the oldest is dropped.
            self._windows.pop(group_id, None)
            if len(self._windows) >= MAX_GROUPS:
                del self._windows[next(iter(self._windows))]
            window = self._windows[group_id] = _Window(now)
        window.count += 1
        if window.count >= MANY_REBALANCES and not window.reported:
            window.reported = True
            logger.warning(
                "group %s: %d rebalances within %.0f s, its consumers read nothing during each; "
                "the last because %s. `kafkawire groups why` shows its members",
                shorten_for_log(group_id),
                window.count,
                now - window.begun,
                event.reason,
            )

    def _report_stuck(self, group_id: str, event: GroupStuck) -> None:
        now = self._now()
        last = self._stuck.pop(group_id, None)
        due = last is None or now - last >= STUCK_EVERY_S
        if len(self._stuck) >= MAX_GROUPS:
            del self._stuck[next(iter(self._stuck))]
        self._stuck[group_id] = now if last is None or due else last
        if due:
            logger.warning("group %s %s", shorten_for_log(group_id), event)

    def _write(self, level: int, group_id: str, event: Event) -> None:
        if not logger.isEnabledFor(level):
            return
        # A group of thousands of members, or one whose members crash in a loop, must not fill the
        # log.
        omitted = self._limit.admit()
        if omitted is None:
            return
        if omitted:
            logger.warning("%d events of groups were not logged: too many in a short time", omitted)
        logger.log(level, "group %s: %s", shorten_for_log(group_id), event)
