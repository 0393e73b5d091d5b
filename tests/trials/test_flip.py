"""The flip trial in short, and tests that it detects wrong reactions to damage."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.trials.context import Context
from tests.trials.flip.base import Base
from tests.trials.flip.case import Case, Seen, covers, unnamed
from tests.trials.flip.damage import Damage, draw, hit_batches
from tests.trials.flip.kinds import kind_of
from tests.trials.flip.trial import round_, sort_out
from tests.trials.kill.world import Topic
from tests.trials.process import Outcome
from tests.trials.records import Outgoing, build

SHORT = "journal flip,segment cut,metadata empty,object remove"
"""Four of the hundred cases of `make trials`, each with another expected reaction."""
SOUND, DAMAGED = Outcome(0, "", ""), Outcome(1, "", "")
JOURNAL = "data/brokers/1/journals/0000000002.journal"


def batch(uid: int) -> bytes:
    return build([Outgoing(uid, b"k", b"v" * 50)], timestamp_ms=1)


FILE = b"head" * 8 + batch(1) + batch(2) + b"head" * 8 + batch(3) + bytes(900)
ONE = len(batch(1))


def case(tmp_path: Path, path: str = JOURNAL, at: int = 33) -> Case:
    """Damage to the first of two frames: of records 1 and 2, at offsets 0 and 1; 2 has 3."""
    pristine = tmp_path / "pristine"
    (pristine / path).parent.mkdir(parents=True)
    (pristine / path).write_bytes(FILE)
    base = Base(tmp_path / "work", {}, stopped=True)
    topic = Topic("t", b"i" * 16, 1, compacted=False, tiered=False)
    topic.ledgers[0].acked = {0: 1, 1: 2, 2: 3}
    base.topics.append(topic)
    kind = kind_of(path)
    assert kind is not None
    context = Context("flip", 1, 0, tmp_path, time.monotonic() + 9, short=True)
    return Case(context, base, pristine, path, kind, Damage("flip", at, at + 1, b""))


def lost(*offsets: int, output: str = "") -> Seen:
    return Seen(unreadable={("t", 0): set(offsets)}, output=output)


NAMED = "CRITICAL kafkawire.log.recovery.recover: t-0: offsets 0-1 are damaged"


def judged(one: Case, seen: Seen, checked: Outcome = DAMAGED) -> str:
    one._judge(seen, checked)
    return "; ".join(seen.faults)


def test_loss_reported_in_log_and_within_one_frame_passes(tmp_path: Path) -> None:
    assert judged(case(tmp_path), lost(0, 1, output=NAMED)) == ""
    assert judged(case(tmp_path / "again"), Seen(), SOUND) == ""


@pytest.mark.parametrize(
    ("seen", "checked", "noticed"),
    [
        (lost(0, 1), DAMAGED, "the log does not name what is lost of t-0: 0-1"),
        (lost(0, 1, output=NAMED), SOUND, "fsck found nothing"),
        (lost(0, 1, 2, output=NAMED), DAMAGED, "1 records outside the damaged bytes"),
        (Seen(refused="kafkawire: no", code=2), DAMAGED, "refused to start"),
        (Seen(commits=["partition 0: -1, 7 was acked"]), DAMAGED, "commits outside"),
    ],
)
def test_wrong_reaction_is_reported(
    tmp_path: Path, seen: Seen, checked: Outcome, noticed: str
) -> None:
    assert noticed in judged(case(tmp_path), seen, checked)


def test_loss_by_harmless_damage_is_reported(tmp_path: Path) -> None:
    one = case(tmp_path, "data/brokers/1/journals/0000000002.index")
    assert "records are lost" in judged(one, lost(0, output=NAMED))


def test_hit_batches_finds_records_in_damaged_bytes() -> None:
    def hit(start: int, end: int, frames: bool) -> set[int]:
        return set(hit_batches(FILE, Damage("flip", start, end, b""), frames=frames).uids)

    last = 32 + 2 * ONE + 32 + ONE
    assert hit(33 + ONE, 34 + ONE, True) == {1, 2}
    assert hit(73 + ONE, 74 + ONE, False) == {2}
    assert hit(33 + ONE, 34 + ONE, False) == {1, 2, 3}  # its base offset: any of the block
    assert hit(3, 4, True) == {1, 2}  # the frame's head
    assert hit(3, 4, False) == set()
    assert hit(last, last + 5, True) == set()
    assert hit(last, last + 5, False) == {1, 2, 3}  # the index of a segment


def test_damage_stays_within_written_part_of_file() -> None:
    from random import Random

    for how in ("flip", "cut", "zero", "empty", "remove"):
        for seed in range(20):
            damage = draw(Random(seed), how, FILE)
            assert damage.content != FILE
            assert damage.start < len(FILE.rstrip(b"\0"))


def test_unknown_file_kind_is_reported(tmp_path: Path) -> None:
    for name in (JOURNAL, "data/brokers/1/journals/0000000002.jrnl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    context = Context("flip", 1, 0, tmp_path, time.monotonic() + 9)
    assert [kind.name for kind in sort_out(context, tmp_path)] == ["journal"]
    assert "0000000002.jrnl" in context.findings[0].text


def test_covers_parses_offset_ranges_in_log_lines() -> None:
    assert covers("t-0: offsets 3-7 are damaged", 5)
    assert not covers("t-0: offsets 3-7 are damaged", 8)
    assert unnamed(lost(9, output="CRITICAL t-0: offset 9 is gone")) == []


@pytest.mark.real
@pytest.mark.slow
async def test_short_flip_trial_passes(tmp_path: Path) -> None:
    context = Context("flip", 6, 0, tmp_path, time.monotonic() + 30, short=True, say=print)
    context.match = SHORT
    await round_(context)
    assert context.findings == []
    assert context.counts["fsck runs"] >= 4
