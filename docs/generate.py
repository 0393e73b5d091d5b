"""Write what is generated: docs/configs.md, docs/commands.md, docs/apis.md, the plots of
docs/performance.md, the README.md of each package, which lists its modules, the table of API
versions in kafkawire/messages/registry.py, and kafkawire/metadata/schema/created.py.

`make docs` runs it; tests/test_docs.py checks that the files are current. The sources are the table
of settings (kafkawire.codec.configs.settings), the help of commands, the table of handlers
(kafkawire.handlers.table), the declarations of messages and of SQL tables, and the docstrings of
handlers, packages and modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkawire.handlers.table import ApiRow

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "kafkawire", ROOT / "spark" / "kafkawire_spark")
REGISTRY = ROOT / "kafkawire" / "messages" / "registry.py"
NOTES = ROOT / "bench" / "notes" / "performance.md"
ROWS_BEGIN, ROWS_END = (
    "    # made by `make docs` from the declarations\n",
    "    # end of what is made\n",
)


def documents() -> dict[Path, str]:
    """Path -> what it should contain."""
    return {
        ROOT / "docs" / "configs.md": configs(),
        ROOT / "docs" / "commands.md": commands(),
        ROOT / "docs" / "access.md": access(),
        ROOT / "docs" / "apis.md": apis(),
        ROOT / "docs" / "performance-peers.svg": ratio_plot(peer_ratios()),
        ROOT / "docs" / "performance-clients.svg": ratio_plot(client_ratios()),
        **{package / "README.md": package_page(package) for package in packages()},
        REGISTRY: registry(),
        ROOT / "kafkawire" / "metadata" / "schema" / "created.py": schema(),
    }


def schema() -> str:
    """The statements that create the SQL tables in SQLite, their keys and columns."""
    from sqlalchemy import create_engine

    from kafkawire.metadata.tables import metadata

    with create_engine("sqlite://").begin() as connection:
        metadata.create_all(connection)
        query = (
            "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql <> ''"
            " ORDER BY type <> 'table', name"
        )
        statements = []
        for table in metadata.sorted_tables:
            found = connection.exec_driver_sql(query, (table.name,)).all()
            texts = (re.sub(r"\s*\n\s*", "\n    ", sql) for (sql,) in found)
            lines = "".join(f'    """{text}""",\n' for text in texts)
            statements.append(f'    "{table.name}": (\n{lines}    ),\n')
    keys = [
        f'    "{table.name}": {tuple(column.name for column in table.primary_key)},\n'
        for table in metadata.sorted_tables
    ]
    references = [
        f'    "{table.name}": {to},\n'
        for table in metadata.sorted_tables
        if (to := tuple(sorted(
            (key.parent.name, key.column.table.name, key.column.name) for key in table.foreign_keys
        )))
    ]  # fmt: skip
    return f'''"""The tables that `tables` declares, for modules without SQLAlchemy.

Made by `make docs`.
"""

# ruff: noqa: E501
# fmt: off

KEYS: dict[str, tuple[str, ...]] = {{
{"".join(keys)}}}
"""The primary key of each table; a table comes after those that it refers to."""

REFERENCES: dict[str, tuple[tuple[str, str, str], ...]] = {{
{"".join(references)}}}
"""Foreign keys of tables: column, table, column there."""

SQLITE: dict[str, tuple[str, ...]] = {{
{"".join(statements)}}}
"""Statements that create each table in SQLite, with its indexes and triggers."""
'''


def registry() -> str:
    """The registry of messages with the versions that the declarations of requests give."""
    rows = {}
    for path in REGISTRY.parent.glob("*.py"):
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        for node in (each for each in nodes if isinstance(each, ast.ClassDef)):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "request":
                    of = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
                    name = node.name.removesuffix("Request")
                    rows[of["key"]] = (name, *of["versions"], of["flexible_from"])
    lines = [
        f'    {key}: ("{name}", {first}, {last}, {flexible_from}),\n'
        for key, (name, first, last, flexible_from) in sorted(rows.items())
    ]
    before, rest = REGISTRY.read_text(encoding="utf-8").split(ROWS_BEGIN)
    return f"{before}{ROWS_BEGIN}{''.join(lines)}{ROWS_END}{rest.split(ROWS_END)[1]}"


@cache
def packages() -> list[Path]:
    """Every package of the product, as a folder."""
    found = sorted(path.parent for top in PACKAGES for path in top.rglob("__init__.py"))
    return [path for path in found if "migrations" not in path.parts]


def package_page(package: Path) -> str:
    """README.md of a package: its docstring, its packages and its modules with what they hold."""
    (top,) = (each for each in PACKAGES if package.is_relative_to(each))
    name = ".".join(package.relative_to(top.parent).parts)
    parts = [f"# {name}\n\n{docstring(package / '__init__.py')}\n\nMade by `make docs`.\n"]
    inner = [path for path in packages() if path.parent == package]
    if inner:
        rows = [f"| [{path.name}]({path.name}/README.md) | {summary(path / '__init__.py')} |"
                for path in inner]  # fmt: skip
        parts.append("| package | |\n|---|---|\n" + "\n".join(rows) + "\n")
    modules = [path for path in sorted(package.glob("*.py")) if not path.stem.startswith("__")]
    if modules:
        rows = [f"| [{path.name}]({path.name}) | {summary(path)} |" for path in modules]
        parts.append("| module | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def docstring(path: Path) -> str:
    """The docstring of a module."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line of a table."""
    return " ".join(docstring(path).split("\n\n")[0].split()).replace("|", "\\|")


def configs() -> str:
    """docs/configs.md."""
    from kafkawire.codec.configs.settings import markdown_table

    return f"""# Settings

Made from the tables in `kafkawire/codec/configs/table.py` and `tier_rows.py` by
`make docs`.

Broker settings are given with `kafkawire serve --set NAME=VALUE`, as `KAFKAWIRE_SET_<NAME>` in the
environment (capitals, dots as underscores), or in the table `[settings]` of the TOML file; those
marked dynamic also through IncrementalAlterConfigs (`kafka-configs --alter`), which is kept in the
metadata and wins. Topic settings are given when a topic is made or through
IncrementalAlterConfigs, and take effect at once. `kafkawire serve --show-config` prints what a
broker would run with and where each value comes from. Settings of single groups are given through
IncrementalAlterConfigs only (`kafka-configs --alter --group GROUP`), before or after the group
exists.

One listener can have some settings of its own, as `listener.name.NAME.SETTING`
([security.md](security.md#settings-of-one-listener)).

A broker reads the TOML file again when it has changed, and on SIGHUP: dynamic settings and the log
level are taken over, and the log says what has changed, what needs a restart, and what is
overridden by a value stored through IncrementalAlterConfigs. A file with a mistake changes nothing
([operate.md](operate.md#change-settings)).

As with Apache Kafka, IncrementalAlterConfigs also takes dynamic broker settings of Kafka that are
not in the table below, and unknown names: they are kept and shown, a warning is logged,
and they have no effect. Kafka's static settings are refused, and settings of one listener that
have an effect here.

Connections may have as many file descriptors as files do not need: the limit (`ulimit -n`, which is
raised as far as the system allows) without 512, or half of it. Where that is less than
`max.connections`, it counts; connections beyond it are closed, and the log says so once a minute.

{markdown_table()}"""


def commands() -> str:
    """docs/commands.md: each command with what its --help prints."""
    import typer

    from kafkawire.cli.app import app

    root: Any = typer.main.get_command(app)
    index, sections = [], []
    for name in root.commands:
        command = root.get_command(None, name)
        below = {
            f"{name} {each}": command.get_command(None, each)
            for each in getattr(command, "commands", ())
        } or {name: command}
        links = ", ".join(f"[{path}](#{path.replace(' ', '-')})" for path in below)
        links = links.replace(f"[{name} ", "[")
        links = links if name in below else f"**{name}** {links}"
        index.append(f"| {links} | {root.summary(name)} |")
        sections += [command_section(path, each) for path, each in below.items()]
    return f"""# Commands

Made from the `--help` of each command by `make docs`. How to use them for a task:
[everyday commands](command-line.md).

{option_table(root)}
| command | |
|---|---|
{chr(10).join(index)}

{chr(10).join(sections)}"""


def command_section(path: str, command: Any) -> str:
    """What --help prints of one command: its usage, text, examples, arguments and options."""
    from kafkawire.cli.command import EXAMPLES, argument_usage, arguments

    text, _, examples = (command.help or "").partition(f"\n{EXAMPLES}\n")
    usage = " ".join([f"kafkawire {path} [OPTIONS]", *map(argument_usage, arguments(command))])
    parts = [f"## {path}\n", f"{escape_text(text.strip())}\n", f"```sh\n{usage}\n"]
    parts += [f"{line.strip()}\n" for line in examples.splitlines() if line.strip()]
    return f"{parts[0]}\n{parts[1]}\n{''.join(parts[2:])}```\n\n{option_table(command)}"


def option_table(command: Any) -> str:
    """The arguments and options of a command, without --help, as a table; "" without any."""
    from kafkawire.cli.command import argument_usage, arguments, option_help, options

    explained = [(argument_usage(each), each.help) for each in arguments(command) if each.help]
    explained += [option_help(each) for each in options(command, None)]
    if not explained:
        return ""
    rows = [
        "| `{}` | {} |\n".format(name.replace("|", "\\|"), escape_text(text).replace("|", "\\|"))
        for name, text in explained
    ]
    return "".join(["| option | |\n|---|---|\n", *rows])


def escape_text(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return text.replace("<", "&lt;").replace("*", "\\*")


def versions(row: ApiRow) -> str:
    """`3-13`, or `0`."""
    one = row.min_version == row.max_version
    return str(row.min_version) if one else f"{row.min_version}-{row.max_version}"


def api_table() -> str:
    """The table at the top of docs/apis.md, with links to the sections."""
    from kafkawire.handlers.table import ROWS
    from kafkawire.messages.registry import APIS

    lines = ["| API | key | versions |", "|---|--:|---|"]
    for row in ROWS:
        name = APIS[row.key].name
        anchor = f"{name} {versions(row)}".lower().replace(" ", "-")
        lines.append(f"| [{name}](#{anchor}) | {row.key} | {versions(row)} |")
    return "\n".join(lines) + "\n"


def apis() -> str:
    """docs/apis.md: each API with what its handler says about itself."""
    from kafkawire.handlers.table import ROWS
    from kafkawire.messages.registry import APIS

    parts = [
        "# APIs\n\nMade from the handlers' own words by `make docs`: the versions served,\n"
        "what each version changed, and what is not done.\n",
        api_table(),
    ]
    for row in ROWS:
        parts.append(f"## {APIS[row.key].name} {versions(row)}\n\n{words(row.module)}\n")
    return "\n".join(parts)


def access() -> str:
    """docs/access.md: what each API needs of its client's rights."""
    from kafkawire.handlers.access import ACCESS, ApiAccess
    from kafkawire.handlers.table import ROWS
    from kafkawire.messages.registry import APIS

    lines = [
        "# Rights that each API needs",
        "",
        "Made from the table in `kafkawire/handlers/access.py` by `make docs`. Codes: 29",
        "TOPIC_AUTHORIZATION_FAILED, 30 GROUP_AUTHORIZATION_FAILED, 31",
        "CLUSTER_AUTHORIZATION_FAILED, 53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 55",
        "OPERATION_NOT_ATTEMPTED. An API that is not listed needs none. Nothing is checked without",
        "an authorizer ([security.md](security.md)).",
        "",
        "| API | needs | without it |",
        "|---|---|---|",
    ]
    codes = {"TOPIC": 29, "GROUP": 30, "CLUSTER": 31, "TRANSACTIONAL_ID": 53}
    for row in ROWS:
        needs = ACCESS.get(row.key, ApiAccess())
        for need in needs.whole:
            some = "one of: " if needs.any_of else ""
            answer = f"{codes[need.resource.name]} for the whole request"
            lines.append(f"| {row.key} {APIS[row.key].name} | {some}{need} | {answer} |")
        for what, answer in needs.items:
            lines.append(f"| {row.key} {APIS[row.key].name} | {what} | {answer} |")
    return "\n".join(lines) + "\n"


Ratios = tuple[str, float, float]
"""What is measured, the ratio of its rate or latency, and that of the broker's CPU time."""


def cells(title: str) -> Iterator[list[str]]:
    """Yield the rows of the first table under a title of bench/notes/performance.md."""
    text = NOTES.read_text(encoding="utf-8").partition(f"# {title}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None, title
    for line in table[0].splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def peer_ratios() -> list[Ratios]:
    """Return each cell that was compared with Apache Kafka, on one core."""
    found, name = [], ""
    for row in cells("One core for the server"):
        name = row[0] or name
        if row[1].startswith("Kafka"):
            found.append((f"{name} ({row[2]})", float(row[5]), float(row[10])))
    return found


def client_ratios() -> list[Ratios]:
    """Return each job of a real client."""
    return [
        (f"{job}, {client}", float(ratio.split()[0]), float(cpu))
        for job, client, _, _, ratio, _, _, cpu in cells("Real clients")
    ]


def ratio_plot(rows: Sequence[Ratios]) -> str:
    """Draw a bar from 1, on a logarithmic scale, for each ratio: to the right kafkawire is better,
    and its CPU time is a line."""
    left, width, height = 290, 480, 20

    def at(ratio: float) -> float:
        return left + width * (log10(ratio) + 1) / 2.2  # from 0.1 to 16

    end = 30 + height * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="830" height="{end + 30}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="830" height="{end + 30}" fill="#fff"/>',
        f'<text x="{at(1) - 8:.0f}" y="16" text-anchor="end" fill="#b03a2e">Kafka better</text>',
        f'<text x="{at(1) + 8:.0f}" y="16" fill="#1e8449">kafkawire better</text>',
    ]
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        colour = "#555" if tick == 1 else "#ddd"
        parts += [
            f'<path d="M{at(tick):.0f} 22V{end}" stroke="{colour}"/>',
            f'<text x="{at(tick):.0f}" y="{end + 16}" text-anchor="middle">{tick:g}</text>',
        ]
    for number, (name, ratio, cpu) in enumerate(rows):
        y, x = 26 + height * number, min(at(1), at(ratio))
        colour, size = "#1e8449" if ratio >= 1 else "#b03a2e", abs(at(ratio) - at(1))
        parts += [
            f'<text x="{left - 12}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{x:.0f}" y="{y + 3}" width="{size:.0f}" height="12" fill="{colour}"/>',
            f'<path d="M{at(cpu):.0f} {y + 1}v16" stroke="#1f4e9c" stroke-width="3"/>',
            f'<text x="790" y="{y + 13}" text-anchor="end">{ratio:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def words(module: str) -> str:
    """What the handler function says, or for a hot handler, which is a class, its module."""
    path = ROOT / f"kafkawire/handlers/{module}.py"
    if not path.is_file():
        path = ROOT / f"kafkawire/handlers/{module}/handler.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = ast.get_docstring(tree)
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == module:
            said = ast.get_docstring(node)
    assert said, f"{path} has no docstring"
    return re.sub(r"\n+(Not done:)", r"\n\n\1", said)


def main() -> None:
    """Write every document."""
    REGISTRY.write_text(registry(), encoding="utf-8")  # before it is imported
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
