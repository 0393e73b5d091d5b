"""Lag of groups over time, and their current lag by partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from kafkawire_spark.measures import number
from kafkawire_spark.reports.plots import common

BARS = 14
"""Maximum number of groups with bars of their partitions: those with the most lag."""


def rank_groups(series: Mapping[str, Sequence[tuple[int, int | None]]]) -> list[str]:
    """Return groups by their largest lag, then by name."""
    largest = {
        group: max((lag or 0 for _, lag in points), default=0) for group, points in series.items()
    }
    return sorted(series, key=lambda group: (-largest[group], group))


def fold_small_groups(
    series: Mapping[str, Sequence[tuple[int, int | None]]],
) -> dict[str, list[tuple[int, int | None]]]:
    """Return at most SERIES lines: the groups with the largest lag, and the maximum of all others
    (their sum would flatten the lines of single groups)."""
    names = rank_groups(series)
    kept = names if len(names) <= common.SERIES else names[: common.SERIES - 1]
    lines = {name: list(series[name]) for name in kept}
    rest = names[len(kept) :]
    if rest:
        largest: dict[int, int] = {}
        for name in rest:
            for at, lag in series[name]:
                largest[at] = max(largest.get(at, 0), lag or 0)
        lines[f"{len(rest)} others, the largest"] = list(sorted(largest.items()))
    return lines


def draw(
    series: Mapping[str, Sequence[tuple[int, int | None]]],
    ends: Mapping[str, int],
    now: Sequence[Mapping[str, Any]],
    subtitle: str,
) -> bytes:
    """Return the PNG. `series`: for each group (ms, lag of all its partitions; None: no offset
    then), ascending; `ends`: when a group was deleted; `now`: the last row of each group, topic and
    partition."""
    height = 8.2
    made = common.figure("Lag by group", subtitle, height)
    above = common.axes_at(made, 0.07, 0.52, 0.72, common.top(height) - 0.52)
    lines = fold_small_groups(series)
    largest = 0
    for index, (name, points) in enumerate(lines.items()):
        colour = common.GREY if name not in series else common.COLOURS[index]
        moments = common.moments(at for at, _ in points)
        lags = [float("nan") if lag is None else lag for _, lag in points]
        largest = max([largest, *(lag or 0 for _, lag in points)])
        above.plot(moments, lags, color=colour, linewidth=1.8, label=common.shorten_label(name, 26),
                   drawstyle="steps-post", marker="o" if len(points) < 3 else None)  # fmt: skip
        if name in ends:
            (moment,) = common.moments((ends[name],))
            above.axvline(moment, color=colour, linestyle=":", linewidth=1.2)
            above.annotate("deleted", (moment, 1), xycoords=("data", "axes fraction"), fontsize=8,
                           xytext=(3, -9), textcoords="offset points", color=colour)  # fmt: skip
    common.plain(above, "Records that a group has not committed yet, all its partitions")
    above.set_ylim(0, max(largest * 1.08, 1))
    above.grid(axis="y", color=common.PALE)
    common.format_counts(above.yaxis)
    times = {at for points in series.values() for at, _ in points}
    if len(times) == 1:  # matplotlib would show four years
        (only,) = common.moments(times)
        above.set_xlim(only - timedelta(minutes=1), only + timedelta(minutes=1))
    common.format_times(above)
    common.legend(above)
    _now(common.axes_at(made, 0.3, 0.07, 0.49, 0.33), now)
    return common.png(made)


def _now(axes: Any, now: Sequence[Mapping[str, Any]]) -> None:
    lagging = sorted((row for row in now if row["lag"]), key=lambda row: -row["lag"])
    if not lagging:
        common.nothing(axes, "At the end no group has lag.")
        return
    shown = lagging[:BARS]
    more = f", {len(shown)} of {len(lagging)} with lag" if len(lagging) > BARS else ""
    common.plain(axes, f"Lag at the end, by partition{more}")
    labels = [
        f"{common.shorten_label(row['group_id'], 20)}  "
        f"{common.shorten_label(row['topic'], 20)}-{row['partition']}"
        for row in shown
    ]
    words = [f"{number(row['lag'])} ({row['committed']:,} of {row['log_end']:,})" for row in shown]
    common.bars(axes, labels, [row["lag"] for row in shown], words, limit=60)
    common.format_counts(axes.xaxis)
