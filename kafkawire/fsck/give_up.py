"""Offsets given up by `--skip-lost`: those in no segment and no journal.

It only writes their list (kafkawire.log.recovery.given_up): the next start cuts past the ranges,
with the broker's cutter, and moves the damaged journals into the quarantine. A range that was given
up before and is not cut yet is harmless.
"""

from __future__ import annotations

from kafkawire.codec.segment.lost import DAMAGED, LostRange
from kafkawire.fsck.report import Fix
from kafkawire.log.io.ports import Env
from kafkawire.log.journal.scan import Gap
from kafkawire.log.recovery.given_up import GivenUp, read_given_up, write_given_up


class GiveUp:
    """Collects the lost ranges that a check finds; `fix` gives all of them up."""

    def __init__(self, env: Env, home: str) -> None:
        self._env = env
        self._home = home
        self._before = read_given_up(env.fs, home)
        self._now_ms = env.clock.now_ms()
        self._found = GivenUp()
        self.fix: Fix = self._write

    def damage(self, gap: Gap) -> bool:
        """Note damaged or missing bytes of a journal; return whether they were given up before."""
        found = gap.journal, gap.start, gap.end
        self._found.damage.add(found)
        return found in self._before.damage

    def offsets(self, number: int, topic_id: bytes, first: int, end: int) -> bool:
        """Note offsets [first, end) that the journals should contain, rising for one partition;
        return whether they were given up before."""
        before = self._before.of(number, topic_id)
        known = next((one for one in before if one.first <= first and end <= one.end), None)
        noticed_ms = known.noticed_ms if known else self._now_ms
        reason = known.reason if known else DAMAGED
        _, ranges = self._found.ranges.setdefault(number, (topic_id, []))
        ranges.append(LostRange(first, end, noticed_ms, reason))
        return known is not None

    async def _write(self) -> None:
        write_given_up(self._env.fs, self._home, self._found)
