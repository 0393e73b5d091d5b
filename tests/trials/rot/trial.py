"""One round of the rot trial: one folder, and flipped bits in copies of it while time allows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.trials.context import Context, Trial
from tests.trials.flip.base import make
from tests.trials.flip.kinds import Kind
from tests.trials.flip.trial import MIN_CASE_S, sort_out
from tests.trials.rot.base import RotBase
from tests.trials.rot.case import RotCase, case_of
from tests.trials.rot.damage import ROWS, SCHEDULED, Rot, draw_file, draw_page, draw_row

SHORT_CASES = 3
ROW_SHARE, PAGE_SHARE = 0.35, 0.15
"""Of the cases: rows and pages of databases. The others are of files, each kind as often."""
DATABASES = {"metadata": ROWS, "schedule index": SCHEDULED}


def draws(
    context: Context, pristine: Path, files: dict[Kind, list[str]]
) -> Iterator[tuple[Kind, str, Rot]]:
    """Choose kind, file and bit, again and again."""
    rng = context.rng
    wanted = context.match.split(",")
    scratch = context.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    databases = [
        (kind, path)
        for kind, paths in files.items()
        for path in paths
        if kind.name in DATABASES and path.endswith(".db")
    ]
    while True:
        rot: Rot | None
        chance = rng.random()
        if chance < ROW_SHARE + PAGE_SHARE:
            kind, path = rng.choice(databases)
            if chance < ROW_SHARE:
                rot, kind = draw_row(rng, pristine, path, scratch), DATABASES[kind.name]
            else:
                rot = draw_page(rng, pristine, path)
        else:
            kind = rng.choice(list(files))
            path = rng.choice(files[kind])
            rot = draw_file(rng, pristine, path)
        if rot is not None and any(each in f"{kind.name} {rot}" for each in wanted):
            yield kind, path, rot


async def round_(context: Context) -> None:
    """Run one round."""
    base = await make(context, RotBase)
    pristine = context.folder / "pristine"
    shutil.move(base.folder, pristine)
    files = sort_out(context, pristine)
    for done, (kind, path, rot) in enumerate(draws(context, pristine, files)):
        if done >= SHORT_CASES if context.short else done and context.left_s < MIN_CASE_S:
            return
        case: RotCase = case_of(context, base, pristine, path, kind, rot)
        context.say(str(case))
        await case.run()
        context.tried(f"flipped: {kind.name}")


TRIAL = Trial("rot", "one flipped bit of a file, a database page or a row", round_, weight=2.0)
