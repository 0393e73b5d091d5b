"""One case of the flip trial: a copy, one damaged file, and how broker and fsck react."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from kafkawire.testing.control import BrokerFailed
from tests.trials.context import Context
from tests.trials.flip.base import GROUP, QUIET, Base, produce
from tests.trials.flip.damage import Damage, Hit, hit_batches
from tests.trials.flip.kinds import Answer, Kind
from tests.trials.kill.members import committed, find_coordinator
from tests.trials.kill.world import Topic
from tests.trials.ledger import Partition, some
from tests.trials.link import LOST, Link, Unanswered, link, topics_of
from tests.trials.process import Outcome, Victim, command
from tests.trials.reading import Full, read_all
from tests.trials.records import Outgoing

ENDED_WITH = re.compile(r"the broker ended with (-?\d+)")
COMMAND = re.compile(r"kafkawire (?:fsck|restore|tier|metadata) [^`;,\n]*?--[^`;,\n]*")
OFFSETS = re.compile(r"(\d+)(?:\s*(?:-|\.\.|to)\s*(\d+))?")
TRACEBACK = "Traceback (most recent call last)"


@dataclass(slots=True)
class Seen:
    """The behaviour of a broker on a damaged folder. `refused`: the reason why it did not start;
    `unreadable`: by (topic, partition), acknowledged offsets that a reader did not get; `commits`:
    partitions whose committed offset is below an acknowledged one."""

    refused: str = ""
    code: int = 0
    output: str = ""
    unreadable: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    scrub: Outcome | None = None

    @property
    def lost(self) -> set[tuple[str, int, int]]:
        return {(t, p, offset) for (t, p), many in self.unreadable.items() for offset in many}


@dataclass(slots=True)
class Case:
    """One damage. `pristine` is the undamaged folder; everything runs at `base.folder`, the path at
    which it was written."""

    context: Context
    base: Base
    pristine: Path
    path: str
    kind: Kind
    damage: Damage

    def __str__(self) -> str:
        return f"{self.kind.name} {self.path}: {self.damage}"

    async def run(self) -> None:
        """Damage, fsck, start, read, produce; then again after `fsck --repair`."""
        self._lay_out()
        checked = await self._fsck()
        seen = await self._start()
        self._judge(seen, checked)
        await self._repaired(seen)
        for text in seen.faults:
            self.context.broken(f"{self}: {text}")

    def _lay_out(self) -> None:
        """Copy the folder and apply the damage."""
        shutil.rmtree(self.base.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.base.folder)
        self._apply()

    def _apply(self) -> None:
        path = self.base.folder / self.path
        if self.damage.content is None:
            path.unlink()
        else:
            path.write_bytes(self.damage.content)

    def _hit(self) -> Hit:
        data = (self.pristine / self.path).read_bytes()
        return hit_batches(data, self.damage, frames=self.kind.frames)

    async def _fsck(self, *words: str) -> Outcome:
        line = ("fsck", "--data", str(self.base.data), *words)
        done = await asyncio.to_thread(command, *line)
        self.context.tried("fsck runs")
        if TRACEBACK in done.text or done.code not in (0, 1, 2):
            self.context.broken(f"{self}: fsck ended with {done.code}: {done.text[-1500:]}")
        return done

    def _judge(self, seen: Seen, checked: Outcome) -> None:
        """Compare the broker's behaviour with the answer that is right for this kind of file."""
        answer, hit = self.kind.answer, self._hit()
        if seen.refused:
            if Answer.REFUSED not in answer:
                seen.faults.append(f"refused to start ({self.kind.why}): {seen.refused}")
            if seen.code != 2:
                seen.faults.append(f"refused with exit code {seen.code}, not 2: {seen.refused}")
            if checked.code == 0:
                seen.faults.append("fsck found nothing, and the broker does not start")
            return
        self.context.tried("damaged folders served")
        if seen.lost and Answer.NAMED not in answer:
            seen.faults.append(f"records are lost: {ranges(seen)}")
        beyond = seen.lost - self._places(hit)
        if seen.lost and beyond:
            seen.faults.append(
                f"{len(beyond)} records outside the damaged bytes are lost: {ranges(seen)}"
            )
        if seen.lost or seen.commits:
            if checked.code == 0 and not self.kind.remote:
                seen.faults.append(f"fsck found nothing; lost: {ranges(seen)} {seen.commits}")
            if self.kind.remote and seen.scrub is not None and seen.scrub.code == 0:
                seen.faults.append(f"scrub --deep found nothing; lost: {ranges(seen)}")
            seen.faults += unnamed(seen)
        if seen.commits and not hit.internal:
            seen.faults.append(f"commits outside the damaged bytes are lost: {seen.commits}")

    def _places(self, hit: Hit) -> set[tuple[str, int, int]]:
        """The partitions and offsets under which the damaged records were acknowledged."""
        return {
            (topic.name, index, offset)
            for topic in self.base.topics
            for index, ledger in enumerate(topic.ledgers)
            for offset, uid in ledger.acked.items()
            if uid in hit.uids
        }

    async def _start(self) -> Seen:
        """Start a broker on the damaged folder, read everything, and produce to everything."""
        seen = Seen()
        settings = {**self.base.settings, **QUIET}
        victim = Victim(self.base.data, settings, self.base.arguments(self.base.folder))
        try:
            await victim.start()
        except BrokerFailed as why:
            found = ENDED_WITH.search(str(why))
            seen.code = int(found[1]) if found else -1
            seen.refused = victim.output.strip()[-1500:] or str(why)
        else:
            try:
                async with link(victim.port) as client:
                    await self._examine(client, seen, victim)
                await victim.stop()
            except (Unanswered, BrokerFailed, *LOST) as why:
                seen.faults.append(f"{why!r}"[-1500:])
        finally:
            await asyncio.to_thread(victim.process.kill)
            seen.output = victim.output
            self.context.outputs["case.log"] = victim.output
        if TRACEBACK in seen.output:
            seen.faults.append(f"a traceback: {'; '.join(victim.complaints())[:3000]}")
        return seen

    async def _examine(self, client: Link, seen: Seen, victim: Victim) -> None:
        there = await topics_of(client)
        for topic in self.base.topics:
            if there.get(topic.name) != (topic.id, topic.count):
                seen.faults.append(f"topic {topic.name} is {there.get(topic.name)}")
                continue
            for index, ledger in enumerate(topic.ledgers):
                full = await read_all(
                    client, topic.name, topic.id, index, self.base.starts(topic, index)
                )
                seen.faults += full.trouble
                self._compare(seen, topic, index, full)
                self.context.tried("records read back", len(full.records))
                if not full.trouble:
                    await self._append(client, seen, topic, index, ledger)
        await self._committed(client, seen)
        await self._more(client, seen, there)
        if self.kind.remote and seen.lost:
            words = ("tier", "scrub", "--deep", "--server", f"127.0.0.1:{victim.port}")
            seen.scrub = await asyncio.to_thread(command, *words)

    async def _more(self, client: Link, seen: Seen, there: dict[str, tuple[bytes, int]]) -> None:
        """Check what `Base.more` has written; other trials do."""

    def _compare(self, seen: Seen, topic: Topic, index: int, full: Full) -> None:
        """Classify each acknowledged record: there, compacted, deleted, or refused to the
        reader."""
        ledger = topic.ledgers[index]
        got = {record.offset: record for record in full.records}
        newest = {record.key: record.offset for record in full.records}
        for record in full.records:
            if ledger.acked.get(record.offset) != record.uid:
                seen.faults.append(f"{ledger.name}: offset {record.offset} has another record")
            elif ledger.sent[record.uid] != (record.key, record.digest):
                seen.faults.append(f"{ledger.name}: offset {record.offset} has other bytes")
        if not full.errors and full.log_start < ledger.delete_acked:
            seen.faults.append(f"{ledger.name}: deleted records are back: from {full.log_start}")
        skipped = []
        for offset, uid in ledger.acked.items():
            if offset in got or offset < ledger.delete_acked:
                continue
            if topic.compacted and newest.get(ledger.sent[uid][0], -1) > offset:
                continue
            seen.unreadable.setdefault((topic.name, index), set()).add(offset)
            if offset not in full.errors and not any(at < 0 for at in full.errors):
                skipped.append(offset)
        if skipped and not full.trouble:
            seen.faults.append(f"{ledger.name}: skipped without an error: {some(skipped)}")

    async def _append(
        self, client: Link, seen: Seen, topic: Topic, index: int, ledger: Partition
    ) -> None:
        """Check that a new record gets an offset that no record ever had, or is refused."""
        self.base.next_uid += 1
        row = Outgoing(self.base.next_uid, b"new", b"new")
        offset = await produce(client, topic, index, [row])
        self.context.tried("records appended to damaged folders")
        newest = max(ledger.acked)
        if 0 <= offset <= newest:
            seen.faults.append(f"{ledger.name}: offset {offset} given again, {newest} was acked")
        elif offset < 0:
            seen.faults.append(f"{ledger.name}: a new record is refused with {-1 - offset}")

    async def _committed(self, client: Link, seen: Seen) -> None:
        """Check committed offsets: as acknowledged, or counted as lost."""
        await find_coordinator(client, GROUP)
        keys = list(self.base.commits.acked)
        found = await committed(client, GROUP, keys)
        for key in keys:
            offset = found.get(key, -1)
            if self.base.commits.check(key, offset, ""):
                acked = self.base.commits.acked[key]
                seen.commits.append(f"partition {key[1]}: {offset}, {acked} was acked")

    async def _repaired(self, before: Seen) -> None:
        """Apply the same damage, then the offered repair: nothing more may be lost."""
        self._lay_out()
        for words in self._repairs(before):
            done = await asyncio.to_thread(command, *words)
            self.context.tried("repairs run")
            if done.code == 2 and (named := COMMAND.findall(done.text)):
                # Damage that the start did not read: fsck found it and names the repair.
                words = shlex.split(named[0])[1:]
                done = await asyncio.to_thread(command, *words)
                self.context.tried("repairs run")
            if done.code not in (0, 1) or TRACEBACK in done.text:
                line = f"kafkawire {' '.join(words)}"
                before.faults.append(f"`{line}` ended with {done.code}: {done.text[-1000:]}")
                return
        seen = await self._start()
        if seen.refused:
            before.faults.append(f"after its repair the broker does not start: {seen.refused}")
        more = seen.lost - before.lost
        if more and not before.refused:
            before.faults.append(f"the repair lost {len(more)} records: {ranges(seen)}")
        if before.refused and seen.lost - self._places(self._hit()):
            before.faults.append(f"after its repair records are lost: {ranges(seen)}")
        if len(seen.commits) > len(before.commits):
            before.faults.append(f"after the repair commits are lost: {seen.commits}")
        before.faults += [f"after the repair: {text}" for text in seen.faults]

    def _repairs(self, before: Seen) -> list[list[str]]:
        """The commands that the refusal names; `fsck --repair` if it names none."""
        if not before.refused:
            return [["fsck", "--data", str(self.base.data), "--repair"]]
        named = COMMAND.findall(before.refused)
        if not named:
            before.faults.append(f"the refusal names no command: {before.refused}")
            return []
        return [shlex.split(words)[1:] for words in named[:1]]


def ranges(seen: Seen) -> str:
    """The lost offsets as text."""
    return "; ".join(f"{t}-{p}: {some(offsets)}" for (t, p), offsets in seen.unreadable.items())


def unnamed(seen: Seen) -> list[str]:
    """Lost ranges that no line of the log names with topic, partition and offsets."""
    found = []
    lines = seen.output.splitlines()
    for (topic, partition), offsets in seen.unreadable.items():
        name = f"{topic}-{partition}"
        named = [line for line in lines if name in line]
        left = {offset for offset in offsets if not any(covers(line, offset) for line in named)}
        if left:
            found.append(f"the log does not name what is lost of {name}: {some(left)}")
    if seen.commits and not any("__consumer_offsets" in line for line in lines):
        found.append(f"the log does not name lost commits: {seen.commits}")
    return found


def covers(line: str, offset: int) -> bool:
    """Whether a line names a range of offsets that contains this one."""
    pairs = ((int(a), int(b or a)) for a, b in OFFSETS.findall(line))
    return any(first <= offset <= last for first, last in pairs)
