"""Histograms of late data: how much older each record is than the newest one before it in its
partition, and how old it was when its segment was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm

from kafkawire_spark.measures import duration, lateness_labels, number
from kafkawire_spark.reports.plots import common

ROWS = 40
"""Partitions in the map: those with the most late records, because by share tiny ones would come
first."""
SHADES = LinearSegmentedColormap.from_list("late", ["#eef3f8", "#56a0d3", "#0b3c68"])


def draw(
    partitions: Sequence[Mapping[str, Any]],
    arrivals: Sequence[int] | None,
    subtitle: str,
) -> bytes:
    """Return the PNG. `partitions`: topic, partition, records, late, max_late_ms, counts (one
    for each class); `arrivals`: records by class of their age when they were uploaded, None if
    unknown."""
    worst = sorted(
        partitions,
        key=lambda row: (
            -row["late"],
            -row["max_late_ms"],
            row["topic"],
            row["partition"],
        ),
    )
    shown = worst[:ROWS]
    lower = max(len(shown), 3) * 0.24
    height = 1.2 + 2.9 + 1.2 + lower + 0.8
    made = common.figure("Late data", subtitle, height)
    base = (lower + 0.8 + 1.2) / height
    counts = np.sum([row["counts"] for row in partitions], axis=0)
    wide = 0.42 if arrivals is not None else 0.9
    left = common.axes_at(made, 0.06, base, wide, 2.7 / height)
    _histogram(left, counts, "Lateness after the newest earlier record of its partition")
    if arrivals is not None:
        right = common.axes_at(made, 0.55, base, 0.42, 2.7 / height)
        _histogram(right, np.asarray(arrivals), "Age when its segment was there", ordered=False)
    _map(made.add_axes((0.24, 0.55 / height, 0.5, lower / height)), shown, len(partitions))
    return common.png(made)


def _histogram(axes: Any, counts: Any, title: str, ordered: bool = True) -> None:
    labels = lateness_labels()
    if not ordered:
        labels[0] = "at once"
    total = int(counts.sum()) or 1
    colours = ["#9fb3c8" if ordered and not i else common.COLOURS[0] for i in range(len(labels))]
    axes.bar(range(len(labels)), np.maximum(counts, 0.1), color=colours, width=0.8)
    axes.set_yscale("log")
    axes.set_ylim(0.5, max(int(counts.max()), 1) * 8)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor")
    for place, count in enumerate(counts):
        if count:
            words = f"{number(int(count))}\n{_percent(100 * count / total)}"
            axes.annotate(words, (place, count), xytext=(0, 3), textcoords="offset points",
                          ha="center", va="bottom", fontsize=7.5, color=common.GREY)  # fmt: skip
    common.plain(axes, title)
    common.format_counts(axes.yaxis)
    axes.set_ylabel("records", fontsize=9, color=common.GREY)
    axes.grid(axis="y", color=common.PALE)
    axes.minorticks_off()


def _percent(share: float) -> str:
    if share >= 99.95:
        return "100 %"
    return f"{share:.2g} %" if share >= 0.01 else ""


def _map(axes: Any, rows: Sequence[Mapping[str, Any]], of: int) -> None:
    labels = lateness_labels()[1:]
    shares = np.array([[100 * count / max(row["records"], 1) for count in row["counts"][1:]]
                       for row in rows])  # fmt: skip
    shown = np.ma.masked_less_equal(shares, 0)
    axes.imshow(shown, aspect="auto", cmap=SHADES, norm=LogNorm(1e-3, 100),
                extent=(0, len(labels), len(rows), 0), interpolation="nearest")  # fmt: skip
    which = (
        f"the {len(rows)} of {of} partitions with the most" if of > len(rows) else "all partitions"
    )
    axes.set_title(f"Late records, % of a partition ({which})", fontsize=11, color=common.INK,
                   loc="left", pad=8)  # fmt: skip
    axes.set_xticks([i + 0.5 for i in range(len(labels))], labels)
    names = [common.shorten_label(f"{row['topic']}-{row['partition']}") for row in rows]
    axes.set_yticks([index + 0.5 for index in range(len(rows))], names)
    axes.tick_params(colors=common.GREY, labelsize=8.5, length=0)
    axes.tick_params(axis="y", labelcolor=common.INK)
    axes.tick_params(axis="x", labelsize=7.5)
    for side in axes.spines.values():
        side.set_color(common.PALE)
    for index, row in enumerate(rows):
        for place, share in enumerate(shares[index]):
            if share > 0:
                axes.text(place + 0.5, index + 0.5, f"{share:.2g}", ha="center", va="center",
                          fontsize=7.5, color="white" if share > 1 else common.INK)  # fmt: skip
        late = 100 * row["late"] / max(row["records"], 1)
        words = (
            f"{late:.3g} % of {number(row['records'])} late, at most {duration(row['max_late_ms'])}"
            if row["late"]
            else "in order"
        )
        axes.annotate(words, (len(labels), index + 0.5), xytext=(6, 0), textcoords="offset points",
                      va="center", fontsize=8.5, color=common.GREY,
                      annotation_clip=False)  # fmt: skip
