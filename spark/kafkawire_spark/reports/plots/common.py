"""Shared parts of all plots of the reports: figure, colours, time axes, PNG bytes.

Independent of Spark.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from kafkawire_spark.measures import number, size

WIDTH_IN, DPI = 12.0, 110
INK, GREY, PALE, RED = "#22303c", "#6b7785", "#e4e8ec", "#d1495b"
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6bb1", "#b5a642",
)  # fmt: skip
"""Distinguishable by colour-blind people (Okabe and Ito 2008, with two more)."""
LAST_MS = 253_402_214_400_000
"""The last representable day."""
SERIES = len(COLOURS)
"""Maximum number of lines in a plot: the rest is one line "others"."""


def figure(title: str, subtitle: str, height_in: float) -> Figure:
    """Create an empty figure with its title and, in grey below, its scope."""
    made = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(made)  # not pyplot, which needs a display and has process-wide state
    made.text(0.02, 1 - 0.3 / height_in, title, fontsize=15, weight="bold", color=INK, va="center")
    made.text(0.02, 1 - 0.6 / height_in, subtitle, fontsize=9.5, color=GREY, va="center")
    return made


def axes_at(made: Figure, left: float, bottom: float, width: float, height: float) -> Any:
    """Add axes at a position given in shares of the figure."""
    return made.add_axes((left, bottom, width, height))


def top(height_in: float) -> float:
    """Return where axes may begin below the title, as a share of the height."""
    return 1 - 1.15 / height_in


def png(made: Figure) -> bytes:
    out = io.BytesIO()
    made.savefig(out, format="png", dpi=DPI, metadata={"Software": None})
    return out.getvalue()


def plain(axes: Any, title: str) -> None:
    """Set the title and reduce the frame and grid lines."""
    axes.set_title(title, fontsize=11, color=INK, loc="left", pad=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#b8c0c8")
    axes.tick_params(colors=GREY, labelsize=9)
    axes.set_axisbelow(True)


def format_counts(axis: Any, unit: str = "") -> None:
    """Format an axis of counts, 12.3k, or of bytes if the unit begins with B."""
    words = size if unit.startswith("B") else number
    rest = unit[1:] if unit.startswith("B") else unit
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{words(value)}{rest}"))


def format_times(axes: Any) -> None:
    """Format the x axis as dates (UTC), without repetitions."""
    locator = AutoDateLocator(minticks=3, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel("UTC", fontsize=9, color=GREY)


def moments(ms: Iterable[int]) -> list[datetime]:
    """Convert milliseconds since 1970 for matplotlib."""
    return [datetime.fromtimestamp(min(value, LAST_MS) / 1000, UTC) for value in ms]


def span_text(first_ms: int | None, last_ms: int | None) -> str:
    """Format a time range for a subtitle."""
    if first_ms is None or last_ms is None:
        return "no time"
    first, last = moments((first_ms, last_ms))
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC"


def moment_text(ms: int) -> str:
    """Format a point in time for a sentence."""
    (moment,) = moments((ms,))
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def percent(share: float) -> str:
    """Format a share of 1: 100 %, 12 %, 0.034 %."""
    part = 100 * share
    return f"{part:.3g} %" if part >= 10 else f"{part:.2g} %"


def nothing(axes: Any, sentence: str) -> None:
    """Show the reason in empty axes."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, sentence, ha="center", va="center", color=GREY, fontsize=10, wrap=True)


def bars(
    axes: Any,
    labels: Sequence[str],
    values: Sequence[float],
    words: Sequence[str],
    limit: int = 30,
) -> None:
    """Draw horizontal bars, the first on top, with a label at the end of each; names of at most
    `limit` characters."""
    places = range(len(labels))
    axes.barh(places, values, color=COLOURS[0], height=0.72)
    axes.set_yticks(list(places), [shorten_label(label, limit) for label in labels])
    axes.set_ylim(max(len(labels), 4) - 0.4, -0.6)
    axes.set_xlim(0, max([*values, 1e-9]) * 1.3)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    for place, value, word in zip(places, values, words, strict=True):
        axes.annotate(word, (value, place), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=8.5, color=GREY)  # fmt: skip


def shorten_label(label: str, limit: int = 30) -> str:
    """Shorten a label but keep its end, in which partitions differ. $ is escaped, because it would
    begin mathematics."""
    cut = label if len(label) <= limit else f"{label[: limit // 2]}…{label[-limit // 2 + 1 :]}"
    return cut.replace("$", r"\$")


def legend(axes: Any, **more: Any) -> None:
    """Draw a legend outside of the data, on the right."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9,
                labelcolor=INK, borderaxespad=0, **more)  # fmt: skip
