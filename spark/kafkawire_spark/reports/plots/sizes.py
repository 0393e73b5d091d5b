"""Sizes, rates and skew: the largest partitions, records over time, concentration of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from kafkawire_spark.measures import duration, lorenz, number, several, size
from kafkawire_spark.reports.plots import common

BARS = 12
STEPS = 10
"""Minimum width of the time axis in steps: a single step would fill the plot."""


class TimeSpan(NamedTuple):
    """Time axis: [first, end) in ms, by buckets of `width` ms."""

    first: int
    end: int
    width: int


def busiest(totals: Mapping[str, float]) -> list[str]:
    """Return the topics with a colour of their own, largest first; the rest are "others"."""
    ordered = sorted(totals, key=lambda name: (-totals[name], name))
    return ordered if len(ordered) <= common.SERIES else ordered[: common.SERIES - 1]


def draw(
    partitions: Sequence[Mapping[str, Any]],
    rates: Sequence[Mapping[str, Any]],
    skew: Mapping[str, Sequence[tuple[float, int]]],
    keys: Sequence[Mapping[str, Any]],
    span: TimeSpan,
    subtitle: str,
) -> bytes:
    """Return the PNG. `partitions`: the table (topic, partition, records, bytes); `rates`: topic,
    bucket (ms), records, bytes; `skew`: topic -> (records of a key, how many keys have so many);
    `keys`: the largest keys (topic, key, records, bytes), largest first; `span`: the shown part of
    `rates`."""
    height = 10.6
    made = common.figure("Sizes, rates and skew", subtitle, height)
    totals: dict[str, float] = {}
    for row in partitions:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["bytes"]
    named = busiest(totals)
    top = common.top(height)
    _rates(common.axes_at(made, 0.07, 0.68, 0.72, top - 0.68), rates, named, span)
    _partitions(common.axes_at(made, 0.2, 0.37, 0.27, 0.22), partitions)
    _spread(common.axes_at(made, 0.58, 0.37, 0.36, 0.22), partitions, named)
    _keys(common.axes_at(made, 0.2, 0.06, 0.27, 0.22), keys)
    _concentration(common.axes_at(made, 0.58, 0.06, 0.36, 0.22), skew, named)
    return common.png(made)


def _rates(
    axes: Any, rates: Sequence[Mapping[str, Any]], named: Sequence[str], span: TimeSpan
) -> None:
    inside = [row for row in rates if span.first <= row["bucket"] < span.end]
    if not inside:
        common.nothing(axes, "No record has a time.")
        return
    names, width = [*named, "others"], span.width
    steps = list(range(span.first, max(row["bucket"] for row in inside) + width, width))
    stacks = {name: [0.0] * len(steps) for name in names}
    for row in inside:
        name = row["topic"] if row["topic"] in stacks else "others"
        stacks[name][(row["bucket"] - steps[0]) // width] += row["records"] * 1000 / width
    shown = {name: values for name, values in stacks.items() if any(values)}
    colours = [
        common.GREY if name == "others" else common.COLOURS[names.index(name)] for name in shown
    ]
    edges = common.moments([*steps, steps[-1] + width])
    below = [0.0] * len(steps)
    for (name, values), colour in zip(shown.items(), colours, strict=True):
        above = [a + b for a, b in zip(below, values, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=colour, linewidth=0,
                    label=common.shorten_label(name, 26))  # fmt: skip
        below = above
    title = f"Records a second, by topic (each step {duration(width)})"
    strays = sum(row["records"] for row in rates) - sum(row["records"] for row in inside)
    if strays:
        title += f"; {number(strays)} records of other times are not shown"
    common.plain(axes, title)
    axes.set_ylim(0, max([*below, 1e-9]) * 1.08)
    few = timedelta(milliseconds=max(0, STEPS - len(steps)) * width / 2)
    axes.set_xlim(edges[0] - few, edges[-1] + few)
    axes.grid(axis="y", color=common.PALE)
    common.format_counts(axes.yaxis)
    common.format_times(axes)
    common.legend(axes)


def _partitions(axes: Any, partitions: Sequence[Mapping[str, Any]]) -> None:
    full = [row for row in partitions if row["records"]]
    order = sorted(full, key=lambda row: (-row["bytes"], row["topic"], row["partition"]))
    shown = order[:BARS]
    more = f"The largest {len(shown)} of {len(full)}" if len(full) > BARS else "All"
    common.plain(axes, f"{more} partitions by bytes")
    labels = [f"{row['topic']}-{row['partition']}" for row in shown]
    words = [f"{size(row['bytes'])}, {several(row['records'])}" for row in shown]
    common.bars(axes, labels, [row["bytes"] for row in shown], words)
    axes.set_xticks([])


def _spread(axes: Any, partitions: Sequence[Mapping[str, Any]], named: Sequence[str]) -> None:
    """Draw each topic's partitions, largest first, relative to an even share: flat at 1 is even."""
    by_topic: dict[str, list[int]] = {}
    for row in partitions:
        by_topic.setdefault(row["topic"], []).append(row["records"])
    for index, name in enumerate(named):
        values = sorted(by_topic[name], reverse=True)
        mean = sum(values) / len(values)
        if not mean:
            continue
        places = [100 * (i + 0.5) / len(values) for i in range(len(values))]
        axes.plot(places, [value / mean for value in values], color=common.COLOURS[index],
                  marker="o" if len(values) <= 60 else None, markersize=4,
                  linewidth=1.5)  # fmt: skip
    axes.axhline(1, color="#b8c0c8", linewidth=1, linestyle="--")
    common.plain(axes, "Records of a partition, in times the mean of its topic")
    axes.set_xlabel("partitions of the topic, largest first, %", fontsize=9, color=common.GREY)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, max(axes.get_ylim()[1], 2))
    axes.grid(axis="y", color=common.PALE)


def _keys(axes: Any, keys: Sequence[Mapping[str, Any]]) -> None:
    if not keys:
        common.nothing(axes, "No record has a key.")
        return
    shown = keys[:BARS]
    common.plain(axes, "The keys with the most records")
    labels = [
        f"{common.shorten_label(row['topic'], 14)}  {common.shorten_label(row['key'], 16)}"
        for row in shown
    ]
    words = [f"{number(row['records'])}, {common.percent(row['share'])}" for row in shown]
    common.bars(axes, labels, [row["records"] for row in shown], words, limit=40)
    axes.set_xticks([])


def _concentration(
    axes: Any, skew: Mapping[str, Sequence[tuple[float, int]]], named: Sequence[str]
) -> None:
    drawn = [name for name in named if skew.get(name)]
    if not drawn:
        common.nothing(axes, "No record has a key.")
        return
    for name in drawn:
        xs, ys = lorenz(skew[name])
        axes.plot([100 * x for x in xs], [100 * y for y in ys], linewidth=1.6,
                  color=common.COLOURS[named.index(name)])  # fmt: skip
    axes.plot([0, 100], [0, 100], color="#b8c0c8", linewidth=1, linestyle="--")
    common.plain(axes, "Which share of the records the largest keys have")
    axes.set_xlabel("keys of the topic, largest first, %", fontsize=9, color=common.GREY)
    axes.set_ylabel("records, %", fontsize=9, color=common.GREY)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 102)
    axes.grid(color=common.PALE)
