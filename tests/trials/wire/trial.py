"""One round of the wire trial: extreme requests under the rules of 5 ms and of memory, garbage.

After each request a small one of another client must be answered; nothing that is due an answer
may wait for ever, and the broker's log may have no traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from pathlib import Path

from kafkawire.codec.compile import encode
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.metadata import MetadataRequest
from tests.kit.extremes import TOPIC, Case, cases, frame, served
from tests.trials.context import Context, Trial
from tests.trials.link import LOST, Unanswered, link
from tests.trials.process import Victim, usage
from tests.trials.wire import stretches
from tests.trials.wire.garbage import WAITING, key_of, mutated, whole
from tests.trials.wire.stretches import extreme_cases, topics

MEMORY_MULTIPLE = 8
"""Bytes of memory a request may take for each of its bytes."""
MEMORY_SLACK = 48 << 20
"""Modules imported at first use, buffers of the answer, what an allocator keeps."""
ANSWER_WITHIN_S = 60.0
SHORT_EXTREMES, SHORT_GARBAGE, SHORT_STRETCHES = 25, 200, 30
WORTH_MEASURING = 256 << 10
"""Smaller frames cannot break the rule of memory with the slack there is."""
SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}


async def exchange(port: int, raw: bytes, within_s: float) -> int | None:
    """Send bytes and read one answer: its size, 0 where the connection was closed, None where
    neither came in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(raw)
        await writer.drain()
        head = await asyncio.wait_for(reader.readexactly(4), within_s)
        (size,) = struct.unpack(">i", head)
        left = size
        while left > 0:
            piece = await asyncio.wait_for(reader.read(min(left, 1 << 20)), within_s)
            if not piece:
                return 0
            left -= len(piece)
        return int(size)
    except TimeoutError:
        return None
    except LOST:
        return 0
    finally:
        writer.close()
        with contextlib.suppress(*LOST):
            await writer.wait_closed()


class Round:
    """The parts of a round against one broker process."""

    def __init__(self, context: Context, victim: Victim) -> None:
        self.context, self.victim = context, victim

    async def extremes(self, until: float, most: int) -> None:
        """Each request is answered or refused, in bounded memory, and others are served."""
        ids = await topics(self.victim.port)
        for done, case in enumerate(extreme_cases(self.context.rng, ids[TOPIC][0], False)):
            if done >= most or time.monotonic() >= until:
                return
            if len(case.frame) <= stretches.MAX_FRAME_BYTES and self.context.match in case.name:
                await self._extreme(case)

    async def _extreme(self, case: Case) -> None:
        before = self._forget_peak()
        size = await exchange(self.victim.port, case.frame, ANSWER_WITHIN_S)
        if size is None:
            self.context.broken(f"{case.name}: not answered in {ANSWER_WITHIN_S:g} s")
        grown = usage(self.victim.process.pid).peak_rss - before
        allowed = MEMORY_MULTIPLE * (len(case.frame) + (size or 0)) + MEMORY_SLACK
        if len(case.frame) >= WORTH_MEASURING:
            self.context.check(
                grown <= allowed,
                "extreme requests under the rule of memory",
                f"{case.name}: {len(case.frame):,} bytes (answer {size or 0:,}) took "
                f"{grown >> 20} MiB, {allowed >> 20} are allowed",
            )
        await self._others_are_served(case.name)

    def _forget_peak(self) -> int:
        """Begin a new peak of the broker's memory; what it has now."""
        Path(f"/proc/{self.victim.process.pid}/clear_refs").write_text("5")
        return self.victim.usage().rss

    async def _others_are_served(self, after: str) -> None:
        """A small request of another client is answered."""
        try:
            async with link(self.victim.port, "small") as client:
                await client.call(MetadataRequest(topics=[]), 12)
            self.context.tried("small requests served after each")
        except (Unanswered, *LOST) as why:
            self.context.broken(f"after {after} a small request is not served: {why!r}")
            if not self.victim.process.running:
                raise

    async def garbage(self, until: float, most: int) -> None:
        """Frames that nothing would send: answered or refused, with nobody else harmed."""
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
        """One frame on a connection of its own, with a valid request after it."""
        ping = frame(18, 0, encode(ApiVersionsRequest(), 0))
        due = whole(raw) and key_of(raw) not in WAITING
        size = await exchange(self.victim.port, raw + ping, 20.0 if due else 0.02)
        self.context.tried("frames of garbage")
        if due and size is None:
            self.context.broken(f"{name}: neither answered nor refused in 20 s")


async def round_(context: Context) -> None:
    """See the module."""
    third = context.left_s / 3
    begun = time.monotonic()
    short = context.short
    many = 1 << 30
    await asyncio.to_thread(
        stretches.run, context, begun + third, SHORT_STRETCHES if short else many
    )
    victim = Victim(context.folder / "data", SETTINGS)
    try:
        await victim.start()
        round_ = Round(context, victim)
        await round_.extremes(begun + 2 * third, SHORT_EXTREMES if short else many)
        await round_.garbage(begun + 3 * third, SHORT_GARBAGE if short else many)
        await victim.stop()
    finally:
        await asyncio.to_thread(victim.process.kill)
        context.outputs["broker.log"] = victim.output
        for text in (*victim.complaints(), *unanswerable(victim.output)):
            context.broken(f"the broker logged: {text}")


def unanswerable(output: str) -> list[str]:
    """Lines that say a request failed where it must not."""
    return [line for line in output.splitlines() if "no way to say so" in line]


TRIAL = Trial("wire", "extreme requests of every API and version, and garbage", round_)
