"""The map of partitions: a strip for each from its first to its last offset, coloured by the state
of the offsets. Readable with one partition and with five hundred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Patch

from kafkawire_spark.measures import CELLS, number, several
from kafkawire_spark.reports.plots import common

STRIPS = 500
"""Maximum number of strips; partitions with problems come first, then the largest."""
LABELLED = 48
"""Up to this many strips each has a name and its figures; beyond, each topic has."""

PRESENT, EXPLAINED, WRONG, EMPTY = "#2a9d7c", "#c9d6e8", common.RED, "#e2e2e2"
WRONG_COUNTS = ("lost", "damaged", "unexplained", "duplicates")


def cell_sizes(span: int) -> Any:
    """Return how many of `span` offsets fall in each cell: offset i in cell i * CELLS // span."""
    edges = -(-np.arange(CELLS + 1, dtype=np.int64) * span // CELLS)
    return np.diff(edges)


def shares(span: int, present: Sequence[int]) -> Any:
    """Return the share of each cell's offsets with a record, [CELLS] of 0..1. If a partition has
    fewer offsets than cells, an empty cell repeats the previous one."""
    sizes = cell_sizes(span)
    filled = sizes > 0
    last = np.maximum.accumulate(np.where(filled, np.arange(CELLS), 0))
    share = np.divide(present, sizes, out=np.zeros(CELLS), where=filled)
    return np.clip(share[last], 0, 1)


def wrong(row: Mapping[str, Any]) -> int:
    """Return the number of offsets with a problem."""
    return sum(int(row[name]) for name in WRONG_COUNTS)


def choose_partitions(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the partitions to draw, by topic: all or, if there are many, those that are not empty,
    and at most STRIPS."""
    some = list(rows)
    if len(some) > LABELLED:
        some = [row for row in rows if row["end"] > row["start"]]
    if len(some) > STRIPS:
        some = sorted(some, key=lambda row: (-wrong(row), row["start"] - row["end"]))[:STRIPS]
    return sorted(some, key=lambda row: (row["topic"], row["partition"]))


def _rgb(colour: str) -> Any:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=float) / 255


def _image(
    rows: Sequence[Mapping[str, Any]],
    cells: Mapping[tuple[str, int], Sequence[int]],
    bad: Mapping[tuple[str, int], Sequence[tuple[int, int]]],
) -> Any:
    """Return [partitions, CELLS, 3]: green for records, pale for explained gaps, red for
    problems."""
    image = np.empty((len(rows), CELLS, 3))
    for index, row in enumerate(rows):
        place = row["topic"], row["partition"]
        span = row["end"] - row["start"]
        if span <= 0:
            image[index] = _rgb(EMPTY)
            continue
        share = shares(span, cells.get(place, [0] * CELLS))[:, None]
        image[index] = share * _rgb(PRESENT) + (1 - share) * _rgb(EXPLAINED)
        for base, end in bad.get(place, ()):
            first = (base - row["start"]) * CELLS // span
            last = (end - 1 - row["start"]) * CELLS // span
            image[index, max(first, 0) : last + 1] = _rgb(WRONG)
    return image


def draw(
    rows: Sequence[Mapping[str, Any]],
    cells: Mapping[tuple[str, int], Sequence[int]],
    bad: Mapping[tuple[str, int], Sequence[tuple[int, int]]],
    subtitle: str,
) -> bytes:
    """Return the PNG. `rows`: the table of partitions; `cells`: records in each cell of a
    partition; `bad`: ranges of offsets that are lost, damaged, unexplained or duplicates."""
    shown = choose_partitions(rows)
    if len(shown) < len(rows):
        subtitle += f"; drawn are {len(shown):,} partitions"
        subtitle += " that are not empty" if len(shown) < STRIPS else ""
    labelled = len(shown) <= LABELLED
    height = 2.0 + (max(len(shown), 2) * 0.26 if labelled else min(len(shown) * 0.028, 16))
    made = common.figure("Offset continuity", subtitle, height)
    left = 0.24 if labelled else 0.2
    bottom = 0.75 / height
    axes = common.axes_at(made, left, bottom, 0.76 - left, common.top(height) - bottom)
    image = _image(shown, cells, bad)
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, 100, len(shown), 0))
    axes.set_xlabel("from the first to the end offset, %", fontsize=9, color=common.GREY)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=common.GREY, labelsize=9, length=0)
    if labelled:
        _name_strips(axes, shown)
    else:
        _name_topics(axes, shown)
        _mark(axes, shown, bad)
    colours = {"a record for every offset": PRESENT, "compacted, control, aborted": EXPLAINED,
               "lost, damaged, twice": WRONG, "empty": EMPTY}  # fmt: skip
    made.legend(
        handles=[Patch(color=colour, label=word) for word, colour in colours.items()],
        loc="upper right", bbox_to_anchor=(0.985, 1 - 0.14 / height), frameon=False, ncols=2,
        fontsize=9, labelcolor=common.INK,
    )  # fmt: skip
    return common.png(made)


def _name_strips(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [common.shorten_label(f"{row['topic']}-{row['partition']}") for row in rows]
    axes.set_yticks([index + 0.5 for index in range(len(rows))], names)
    axes.tick_params(axis="y", labelcolor=common.INK)
    axes.hlines(range(1, len(rows)), 0, 100, colors="white", linewidth=2)
    for index, row in enumerate(rows):
        amiss = wrong(row)
        text = f"{several(row['records'])}, [{row['start']:,}, {row['end']:,})"
        axes.annotate(
            f"{amiss:,} wrong; {text}" if amiss else text, (100, index + 0.5), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=8.5, annotation_clip=False,
            color=common.RED if amiss else common.GREY,
        )  # fmt: skip


def _mark(
    axes: Any,
    rows: Sequence[Mapping[str, Any]],
    bad: Mapping[tuple[str, int], Sequence[tuple[int, int]]],
) -> None:
    """Draw a dot at problems of strips that are too thin to be visible."""
    places = []
    for index, row in enumerate(rows):
        span = row["end"] - row["start"]
        for base, end in bad.get((row["topic"], row["partition"]), ()):
            places.append((100 * ((base + end) / 2 - row["start"]) / max(span, 1), index + 0.5))
        if wrong(row) and not bad.get((row["topic"], row["partition"])):
            places.append((0, index + 0.5))
    if places:
        axes.scatter(*zip(*places, strict=True), s=34, color=common.RED, edgecolors="white",
                     linewidths=0.8, zorder=3, clip_on=False)  # fmt: skip


def _name_topics(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw one name for the strips of a topic, if there is room for it, and the topic's figures.
    Topics with problems come first."""
    starts = [i for i, row in enumerate(rows) if not i or row["topic"] != rows[i - 1]["topic"]]
    room = max(len(rows) / 70, 5)  # strips per line of text
    for start in starts:
        axes.axhline(start, color="white", linewidth=1.2)
    spans = list(zip(starts, [*starts[1:], len(rows)], strict=True))
    spans.sort(key=lambda span: -sum(wrong(row) for row in rows[slice(*span)]))
    said: dict[float, str] = {}
    for start, end in spans:
        middle = (start + end) / 2
        if any(abs(middle - other) < room for other in said):
            continue
        of_topic = rows[start:end]
        said[middle] = f"{common.shorten_label(of_topic[0]['topic'], 24)} ({len(of_topic)})"
        amiss = [row for row in of_topic if wrong(row)]
        text = several(sum(row["records"] for row in of_topic))
        if amiss:
            which = "partition " if len(amiss) == 1 else "partitions "
            which += ", ".join(str(row["partition"]) for row in amiss[:3])
            which += ", ..." if len(amiss) > 3 else ""
            text += f", {number(sum(map(wrong, amiss)))} wrong: {which}"
        axes.annotate(
            text, (100, middle), xytext=(6, 0), textcoords="offset points", va="center",
            fontsize=8.5, annotation_clip=False, color=common.RED if amiss else common.GREY,
        )  # fmt: skip
    axes.set_yticks(sorted(said), [said[middle] for middle in sorted(said)])
    axes.tick_params(axis="y", labelcolor=common.INK)
