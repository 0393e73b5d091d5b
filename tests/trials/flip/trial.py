"""One round of the flip trial: one folder, and as many damages to copies of it as time allows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.trials.context import Context, Trial
from tests.trials.flip.base import make
from tests.trials.flip.case import Case
from tests.trials.flip.damage import HOW, draw
from tests.trials.flip.kinds import Kind, kind_of

SHORT_CASES = 4
MIN_CASE_S = 10.0
"""No case is begun with less than this left."""


def sort_out(context: Context, folder: Path) -> dict[Kind, list[str]]:
    """Group the files of a folder by kind; an unknown one is a finding."""
    found: dict[Kind, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(folder))
        kind = kind_of(name)
        if kind is None:
            context.broken(f"a file of no known kind: {name}; tests/trials/flip/kinds.py says more")
        else:
            found.setdefault(kind, []).append(name)
    return found


def cases(context: Context, files: dict[Kind, list[str]]) -> Iterator[tuple[Kind, str, str]]:
    """Kind, file and way of damage: each pair of kind and way once, in random order, then again."""
    wanted = context.match.split(",")
    pairs = [(k, how) for k in files for how in HOW if any(w in f"{k.name} {how}" for w in wanted)]
    while True:
        context.rng.shuffle(pairs)
        for kind, how in pairs:
            yield kind, context.rng.choice(files[kind]), how


async def round_(context: Context) -> None:
    """Run one round."""
    base = await make(context)
    pristine = context.folder / "pristine"
    shutil.move(base.folder, pristine)
    files = sort_out(context, pristine)
    for done, (kind, path, how) in enumerate(cases(context, files)):
        if done >= SHORT_CASES if context.short else done and context.left_s < MIN_CASE_S:
            return
        data = (pristine / path).read_bytes()
        case = Case(context, base, pristine, path, kind, draw(context.rng, how, data))
        context.say(str(case))
        await case.run()
        context.tried(f"damaged: {kind.name}")


TRIAL = Trial("flip", "damage to every kind of file, one at a time", round_, weight=2.0)
