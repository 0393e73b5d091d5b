"""Write what is generated: docs/configs.md, docs/apis.md, docs/tests.md, the README.md of each
package, which lists its modules, and the table of API versions in
kafkawire/messages/registry.py.

`make docs` runs it; tests/test_docs.py checks that the files are current. The sources are the table
of settings (kafkawire.codec.configs.settings), the table of handlers (kafkawire.handlers.table),
the declarations of messages, and the docstrings of handlers, packages and modules.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.handlers.table import ApiRow

ROOT = Path(__file__).parent.parent
REGISTRY = ROOT / "kafkawire" / "messages" / "registry.py"
ROWS_BEGIN, ROWS_END = (
    "    # made by `make docs` from the declarations\n",
    "    # end of what is made\n",
)


def documents() -> dict[Path, str]:
    """Path -> what it should contain."""
    return {
        ROOT / "docs" / "configs.md": configs(),
        ROOT / "docs" / "access.md": access(),
        ROOT / "docs" / "apis.md": apis(),
        **{package / "README.md": package_page(package) for package in packages()},
        REGISTRY: registry(),
    }


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
    found = sorted(path.parent for path in (ROOT / "kafkawire").rglob("__init__.py"))
    return [path for path in found if "migrations" not in path.parts]


def package_page(package: Path) -> str:
    """README.md of a package: its docstring, its packages and its modules with what they hold."""
    name = ".".join(package.relative_to(ROOT).parts)
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
broker would run with and where each value comes from.

One listener can have some settings of its own, as `listener.name.NAME.SETTING`
([security.md](security.md#listeners-with-settings-of-their-own)).

On SIGHUP a broker reads the TOML file again: dynamic settings and the log level are taken over, and
the log says what has changed, what needs a restart, and what is overridden by
a value stored through IncrementalAlterConfigs. A file with a mistake changes
nothing.

As with Apache Kafka, IncrementalAlterConfigs also takes dynamic broker settings of Kafka that are
not in the table below, and unknown names: they are kept and shown, a warning is logged,
and they have no effect. Kafka's static settings are refused, and settings of one listener that
have an effect here.

Connections may have as many file descriptors as files do not need: the limit (`ulimit -n`, which is
raised as far as the system allows) without 512, or half of it. Where that is less than
`max.connections`, it counts; connections beyond it are closed, and the log says so once a minute.

{markdown_table()}"""


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
    import index_tests  # found as this file is run: in the same folder

    REGISTRY.write_text(registry(), encoding="utf-8")  # before it is imported
    pages = {**documents(), ROOT / "docs" / "tests.md": index_tests.page()}
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
