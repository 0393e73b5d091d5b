"""One round of the wire trial: extreme requests under the rules of 5 ms and of memory, garbage.

After each request a small one of another client must be answered. Where a response is due, one
arrives that can be decoded, or the connection is closed with a reason in the log; no traceback is
logged.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from kafkawire.codec.compile import encode
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.metadata import MetadataRequest
from tests.kit.codec.extremes import TOPIC, Case, cases, frame, served
from tests.trials.context import Context, Trial
from tests.trials.link import LOST, Unanswered, link
from tests.trials.process import Victim, report_log, usage
from tests.trials.wire import stretches
from tests.trials.wire.answers import Answer, exchange, fault
from tests.trials.wire.garbage import WAITING, key_of, mutated, whole
from tests.trials.wire.stretches import extreme_cases, topics

MEMORY_MULTIPLE = 8
"""Bytes of memory a request may take for each of its bytes."""
MEMORY_SLACK = 48 << 20
"""Memory of modules imported at first use, buffers of the response, reserves of the allocator."""
ANSWER_WITHIN_S = 60.0
GARBAGE_WITHIN_S = 20.0
LOGGED_WITHIN_S = 60.0
SHORT_EXTREMES, SHORT_GARBAGE, SHORT_STRETCHES = 25, 200, 30
SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}


class Round:
    """The parts of a round against one broker process."""

    def __init__(self, context: Context, victim: Victim) -> None:
        self.context, self.victim = context, victim

    async def extremes(self, until: float, most: int) -> None:
        """Check that each request is answered or refused, in bounded memory, and others are
        served."""
        ids = await topics(self.victim.port)
        for done, case in enumerate(extreme_cases(self.context.rng, ids[TOPIC][0], False)):
            if done >= most or time.monotonic() >= until:
                return
            if len(case.frame) <= stretches.MAX_FRAME_BYTES and self.context.match in case.name:
                await self._extreme(case)

    async def _extreme(self, case: Case) -> None:
        before, closings = self._forget_peak(), self.victim.log.closings
        answer = await exchange(self.victim.port, case.frame, ANSWER_WITHIN_S)
        if not (answer.complete or answer.closed):
            self.context.broken(f"{case.name}: not answered in {ANSWER_WITHIN_S:g} s")
        grown = usage(self.victim.process.pid).peak_rss - before
        allowed = MEMORY_MULTIPLE * (len(case.frame) + answer.size) + MEMORY_SLACK
        self.context.check(
            grown <= allowed,
            "extreme requests under the rule of memory",
            f"{case.name}: {len(case.frame):,} bytes (answer {answer.size:,}) took "
            f"{grown >> 20} MiB, {allowed >> 20} are allowed",
        )
        await self._judge(case.name, case.frame, answer, closings)
        await self._others_are_served(case.name)

    async def _judge(self, name: str, frame: bytes, answer: Answer, closings: int) -> None:
        """Check that a response can be decoded, and that a closed connection has a reason in the
        log, where there were `closings` such lines before."""
        if answer.complete:
            wrong = fault(frame, answer)
            self.context.check(not wrong, "answers decoded", f"{name}: {wrong}")
        if answer.closed:
            logged = await self._closing_logged(closings)
            words = f"{name}: the connection was closed without a reason in the log"
            self.context.check(logged, "connections closed with a reason", words)

    async def _closing_logged(self, before: int) -> bool:
        """Whether the log has one more reason; its lines arrive through a pipe, a little later."""
        end = time.monotonic() + LOGGED_WITHIN_S
        while self.victim.log.closings <= before:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.002)
        return True

    def _forget_peak(self) -> int:
        """Reset the peak of the broker's memory; return the memory it uses now."""
        Path(f"/proc/{self.victim.process.pid}/clear_refs").write_text("5")
        return self.victim.usage().rss

    async def _others_are_served(self, after: str) -> None:
        """Check that a small request of another client is answered."""
        try:
            async with link(self.victim.port, "small") as client:
                await client.call(MetadataRequest(topics=[]), 12)
            self.context.tried("small requests served after each")
        except (Unanswered, *LOST) as why:
            self.context.broken(f"after {after} a small request is not served: {why!r}")
            if not self.victim.process.running:
                raise

    async def garbage(self, until: float, most: int) -> None:
        """Check that invalid frames are answered or refused, and no other client is affected."""
        rng = self.context.rng
        ids = await topics(self.victim.port)
        valid = [
            case
            for row, version in served()
            for case in list(cases(row, version, 2, ids[TOPIC][0], ("same",)))[:2]
        ]
        for done in range(most):
            if time.monotonic() >= until:
                return
            case = rng.choice(valid)
            how, raw = mutated(rng, case.frame)
            await self._garbage(f"{case.name}, {how}: {raw[:80].hex()}", raw)
            if done % 20 == 0:
                await self._others_are_served(f"{case.name}, {how}")

    async def _garbage(self, name: str, raw: bytes) -> None:
        """Send one frame on a connection of its own, with a valid request after it."""
        ping = frame(18, 0, encode(ApiVersionsRequest(), 0))
        due = whole(raw) and key_of(raw) not in WAITING
        closings = self.victim.log.closings
        answer = await exchange(self.victim.port, raw + ping, GARBAGE_WITHIN_S if due else 0.02)
        self.context.tried("frames of garbage")
        if due and not (answer.complete or answer.closed):
            self.context.broken(f"{name}: neither answered nor refused in {GARBAGE_WITHIN_S:g} s")
        if due or answer.closed:
            await self._judge(name, raw, answer, closings)


async def round_(context: Context) -> None:
    """Run one round."""
    third = context.left_s / 3
    begun = time.monotonic()
    short = context.short
    many = 1 << 30
    await asyncio.to_thread(
        stretches.run, context, begun + third, SHORT_STRETCHES if short else many
    )
    victim = Victim(context.folder / "data", SETTINGS, ("--log-level", "debug"))
    try:
        await victim.start()
        round_ = Round(context, victim)
        await round_.extremes(begun + 2 * third, SHORT_EXTREMES if short else many)
        await round_.garbage(begun + 3 * third, SHORT_GARBAGE if short else many)
        await victim.stop()
    finally:
        await asyncio.to_thread(victim.process.kill)
        context.outputs["broker.log"] = victim.output
        report_log(context, victim.log)


TRIAL = Trial("wire", "extreme requests of every API and version, and garbage", round_)
