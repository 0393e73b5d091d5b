"""Writes what is generated in the documents: docs/configs.md, docs/apis.md, a table in README.md.

`make docs` runs it; tests/test_docs.py checks that the files are what it would write. The sources
are the table of settings (kafkawire.codec.configs.settings), the table of handlers
(kafkawire.handlers.table) and the docstring of each handler.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from kafkawire.codec.configs.settings import markdown_table
from kafkawire.handlers.table import ROWS, Row
from kafkawire.messages.registry import APIS

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- apis: made by `make docs` -->\n", "<!-- /apis -->"


def documents() -> dict[Path, str]:
    """Path -> what it should contain."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return {
        ROOT / "docs" / "configs.md": configs(),
        ROOT / "docs" / "apis.md": apis(),
        readme: f"{before}{BEGIN}\n{api_table()}\n{END}{after}",
    }


def configs() -> str:
    """docs/configs.md."""
    return f"""# Settings

Made from the tables in `kafkawire/codec/configs/table.py` and `configs_tier_rows.py` by
`make docs`.

Broker settings are given with `kafkawire serve --set NAME=VALUE`, as `KAFKAWIRE_SET_<NAME>` in the
environment (capitals, dots as underscores), or in the table `[settings]` of the TOML file; those
marked dynamic also through IncrementalAlterConfigs (`kafka-configs --alter`), which is kept in the
metadata and wins. Topic settings are given when a topic is made or through
IncrementalAlterConfigs, and take effect at once. `kafkawire serve --show-config` prints what a
broker would run with and where each value comes from.

On SIGHUP a broker reads the TOML file again: dynamic settings and the log level are taken over, and
the log says what has changed, what needs a restart, and what is overridden by
a value stored through IncrementalAlterConfigs. A file with a mistake changes
nothing.

As with Apache Kafka, IncrementalAlterConfigs also takes dynamic broker settings of Kafka that are
not in the table below, and unknown names: they are kept and shown, a warning is logged,
and they have no effect. Kafka's static settings are refused.

Connections may have as many file descriptors as files do not need: the limit (`ulimit -n`, which is
raised as far as the system allows) without 512, or half of it. Where that is less than
`max.connections`, it counts; connections beyond it are closed, and the log says so once a minute.

{markdown_table()}"""


def versions(row: Row) -> str:
    """`3-13`, or `0`."""
    one = row.min_version == row.max_version
    return str(row.min_version) if one else f"{row.min_version}-{row.max_version}"


def api_table() -> str:
    """The table in README.md."""
    lines = ["| API | key | versions |", "|---|--:|---|"]
    for row in ROWS:
        lines.append(f"| {APIS[row.key].name} | {row.key} | {versions(row)} |")
    return "\n".join(lines) + "\n"


def apis() -> str:
    """docs/apis.md: each API with what its handler says about itself."""
    parts = [
        "# APIs\n\nMade from the handlers' own words by `make docs`: the versions served,\n"
        "what each version changed, and what is not done.\n"
    ]
    for row in ROWS:
        parts.append(f"## {APIS[row.key].name} {versions(row)}\n\n{words(row.module)}\n")
    return "\n".join(parts)


def words(module: str) -> str:
    """What the handler function says, or for a hot handler, which is a class, its module."""
    tree = ast.parse((ROOT / f"kafkawire/handlers/{module}.py").read_text(encoding="utf-8"))
    said = ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == module:
            said = ast.get_docstring(node)
    assert said, f"kafkawire/handlers/{module}.py says nothing about itself"
    return re.sub(r"\n+(Not done:)", r"\n\n\1", said)


def main() -> None:
    """Write every document."""
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
