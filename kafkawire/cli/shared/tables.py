"""Tables of the commands: they fit the terminal, and mark what is wrong.

On a terminal a table is as wide as the terminal at most: text with spaces is wrapped, then columns
are left out from the right, and their names are printed. `--wide`, a file and a pipe get all
columns. Colour only on a terminal, and not if NO_COLOR is set.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GAP = "  "
WRAP_FROM = 20
"""Cells up to this width stay on one line: "2 d 3 h" and "1.4 GiB" are not wrapped."""
MIN_WIDTH = 8
"""Width to which the columns that are never left out are shortened."""
ELLIPSIS = "..."
RED, BOLD, PLAIN = "\x1b[31m", "\x1b[1m", "\x1b[0m"


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell; control characters are escaped."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell_text(each) for each in value) or "-"
    text = str(value)
    return text if text.isprintable() else "".join(_printable(char) for char in text)


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table. `key`: of the row; `header`: default is the key with spaces; `show`:
    text of a value that is not None, such as units.size; `keep`: never left out; `wrong`: whether a
    value is marked as wrong."""

    key: str
    header: str = ""
    show: Callable[[Any], str | None] | None = None
    keep: bool = False
    wrong: Callable[[Any], bool] | None = None

    @property
    def title(self) -> str:
        return self.header or self.key.replace("_", " ")

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the text of this column in a row."""
        value = row.get(self.key)
        if value is None or self.show is None:
            return cell_text(value)
        return cell_text(self.show(value))

    def is_wrong(self, row: Mapping[str, Any]) -> bool:
        """Return whether the value of a row is to be marked."""
        value = row.get(self.key)
        return value is not None and self.wrong is not None and self.wrong(value)


Columns = Sequence[TableColumn | str]


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Columns, title: str, wide: bool = False
) -> None:
    """Print rows as a table, numbers right-aligned; without rows, the title and "none"."""
    if not rows:
        print(f"{title}: none")
        return
    print(f"{title}:")
    limit = None if wide else _limit()
    for line in table_lines(rows, columns, limit, _colours()):
        print(line)


def _limit() -> int | None:
    """Return the number of characters of a line; None if there is no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _colours() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def table_lines(
    rows: Sequence[Mapping[str, Any]], columns: Columns, limit: int | None, colours: bool = False
) -> list[str]:
    """Return the lines of a table of at most `limit` characters (None: any number)."""
    made = [_Cells(TableColumn(each) if isinstance(each, str) else each, rows) for each in columns]
    shown = made if limit is None else _fitting(made, limit)
    lines = [
        _join_cells([each.title for each in shown], shown, BOLD if colours else ""),
        GAP.join("-" * each.width for each in shown),
    ]
    for number, row in enumerate(rows):
        wrapped = [each.wrap(number) for each in shown]
        wrong = [colours and each.column.is_wrong(row) for each in shown]
        for at in range(max(map(len, wrapped))):
            texts = [cell[at] if at < len(cell) else "" for cell in wrapped]
            lines.append(_join_cells(texts, shown, "", wrong))
    left_out = [each.title for each in made if each not in shown]
    if left_out:
        text = f"not shown: {', '.join(left_out)} (--wide shows all columns)"
        lines += textwrap.wrap(text, max(limit or 0, MIN_WIDTH), break_long_words=False)
    return lines


def _join_cells(
    texts: Sequence[str], cells: Sequence[_Cells], style: str, wrong: Sequence[bool] = ()
) -> str:
    padded = [each.pad(text) for each, text in zip(cells, texts, strict=True)]
    if wrong:
        padded = [
            f"{RED}{text}{PLAIN}" if bad else text for text, bad in zip(padded, wrong, strict=True)
        ]
    line = GAP.join(padded).rstrip()
    return f"{style}{line}{PLAIN}" if style else line


class _Cells:
    """The cells of a column, and the width in which they are printed."""

    __slots__ = ("_right", "_texts", "column", "title", "width")

    def __init__(self, column: TableColumn, rows: Sequence[Mapping[str, Any]]) -> None:
        self.column = column
        self.title = column.title
        self._texts = [column.cell(row) for row in rows]
        values = [row.get(column.key) for row in rows]
        self._right = all(_is_number(value) for value in values)
        self.width = self.natural

    @property
    def natural(self) -> int:
        """The width of the longest cell."""
        return max(map(width_of, (self.title, *self._texts)))

    @property
    def narrow(self) -> int:
        """The smallest width without a shortened cell."""
        if self.natural <= WRAP_FROM:
            return self.natural
        words = (word for text in (self.title, *self._texts) for word in text.split())
        return min(self.natural, max(WRAP_FROM, *map(width_of, words)))

    def wrap(self, number: int) -> list[str]:
        """Return the lines of a cell."""
        text = self._texts[number]
        if width_of(text) <= self.width:
            return [text]
        lines = textwrap.wrap(text, self.width, break_long_words=False, break_on_hyphens=False)
        return [shorten(line, self.width) for line in lines]

    def pad(self, text: str) -> str:
        """Return a line of a cell, or the title, with spaces."""
        text = shorten(text, self.width)
        spaces = " " * (self.width - width_of(text))
        return spaces + text if self._right else text + spaces


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _fitting(cells: list[_Cells], limit: int) -> list[_Cells]:
    """Leave columns out from the right, then narrow the widest ones, until a line fits."""
    shown = list(cells)
    while _total([each.narrow for each in shown]) > limit:
        droppable = [each for each in shown[1:] if not each.column.keep]
        if not droppable:
            break
        shown.remove(droppable[-1])
    for narrowest in ([each.narrow for each in shown], [MIN_WIDTH] * len(shown)):
        while (over := _total([each.width for each in shown]) - limit) > 0:
            spare = [max(0, each.width - low) for each, low in zip(shown, narrowest, strict=True)]
            if not any(spare):
                break
            at = max(range(len(shown)), key=lambda n: (spare[n] > 0, shown[n].width))
            shown[at].width -= min(spare[at], over)
    return shown


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def width_of(text: str) -> int:
    """Return the number of terminal cells of a text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def shorten(text: str, width: int) -> str:
    """Return the text if it fits, else its beginning with an ellipsis."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - len(ELLIPSIS):
        text = text[:-1]
    return (text + ELLIPSIS)[:width]
