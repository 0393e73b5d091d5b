"""`python -m bench.publish`: write the tables of bench/out into the marked sections of a document.

A section is between `<!-- bench NAME -->` and `<!-- /bench NAME -->`; everything around it is
prose, written by hand, and is kept. A section without results is left unchanged and named. Failures
in a run are published with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import peers, report
from bench.client import BENCH, OUT
from bench.comparison import LOSS_HEAD, Loss, loss_rows
from bench.fleet import FACTS_HEAD

DOCUMENT = BENCH / "notes" / "performance.md"

Found = Mapping[str, Any]
"""A file of results, as JSON."""


class PublishError(Exception):
    """The document has no such section, or a file of results is not of this version."""


def replaced(text: str, name: str, content: str) -> str:
    """The document with a section's content."""
    begin, end = f"<!-- bench {name} -->", f"<!-- /bench {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise PublishError(f"the document must have {begin} and {end} once, in this order")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content.strip()}\n{end}{rest.split(end)[1]}"


def origin(found: Found) -> str:
    """Date, machine and revision of the results: the paragraph above a table."""
    machine = found["machine"]
    memory = machine["memory_bytes"] / 2**30
    text = (
        f"{machine['when'][:16]}, commit {machine['commit']}, {machine['cores']} cores of "
        f"{machine['cpu']}, {memory:.0f} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}"
    )
    if "rounds" in found:
        text += f"; {found['rounds']} rounds"
    if versions := found.get("versions"):
        text += "; " + ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{text}.\n\n{facts(found)}"


def facts(found: Found) -> str:
    """The page cache's figures, where they were measured."""
    known = [fact for fact in found.get("facts", []) if fact["name"].startswith("page cache")]
    if not known:
        return ""
    text = "; ".join(f"{f['name']}: {report.number(f['value'])} {f['unit']}" for f in known)
    return f"{text[0].upper()}{text[1:]}.\n\n"


def failures(found: Found) -> str:
    """The failures of the run, if any."""
    return "".join(f"- failed: {text}\n" for text in found.get("failed", []))


def grouped(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows in which a repeated first column is shown once."""
    found, above = [], ""
    for first, *rest in rows:
        found.append(["" if first == above else first, *rest])
        above = first
    return found


def matrix(found: Found) -> str:
    """The section of out/bench.json."""
    return origin(found) + report.markdown(found["head"], found["rows"]) + failures(found)


def side_by_side(found: Found) -> str:
    """The section of out/peers.json: a table for each set, start and memory, estimates."""
    parts = []
    for number, one in enumerate(found["sets"]):
        about = {**found, "rounds": one["rounds"]}
        text = f"### {one['title'].capitalize()}\n\n{origin(about) if not number else ''}"
        text += report.markdown(one["head"], grouped(one["rows"])) + failures(one)
        text += "\n" + report.markdown(FACTS_HEAD, one["facts"])
        if one["estimates"] and not number:
            text += f"\n\\* {peers.ESTIMATE_NOTE}:\n\n"
            text += report.markdown(peers.ESTIMATE_HEAD, grouped(one["estimates"]))
        parts.append(text)
    return "\n".join(parts)


def losses(found: Found) -> str:
    """The section of out/peers.json that lists every figure whose median ratio is below 1, worst
    first."""
    found_losses = [
        (one["title"], Loss(**each))
        for one in found["sets"]
        for compared in one["cells"]
        for each in compared["losses"]
    ]
    if not found_losses:
        return "None: every ratio's median is at least 1."
    return report.markdown(LOSS_HEAD, loss_rows(found_losses))


def end_to_end(found: Found) -> str:
    """The section of out/clients.json."""
    return origin(found) + report.markdown(found["head"], grouped(found["rows"])) + failures(found)


def transactions(found: Found) -> str:
    """The section of out/transactions.json."""
    parts = [
        origin(found) + report.markdown(found["head"], found["rows"]),
        report.markdown(found["cpu_head"], found["cpu"]),
        report.markdown(found["share_head"], found["shares"]),
    ]
    if found["ids"]:
        parts.append(report.markdown(found["facts_head"], found["ids"]))
    return "\n".join(parts) + failures(found)


SECTIONS: dict[str, tuple[str, Callable[[Found], str]]] = {
    "matrix": ("bench.json", matrix),
    "peers": ("peers.json", side_by_side),
    "losses": ("peers.json", losses),
    "clients": ("clients.json", end_to_end),
    "transactions": ("transactions.json", transactions),
}


def published(text: str, folder: Path, say: Callable[[str], None]) -> str:
    """The document with every section that has results."""
    for name, (file, make) in SECTIONS.items():
        path = folder / file
        if path.exists():
            try:
                content = make(json.loads(path.read_text()))
            except (KeyError, ValueError, TypeError) as error:
                raise PublishError(
                    f"{path} is not of this version: {error!r}; run it again"
                ) from None
            text = replaced(text, name, content)
            say(f"{name}: {path}")
        else:
            say(f"{name}: left as it is, there is no {path}")
    profile = folder / "profile.md"
    if profile.exists():
        text = replaced(text, "profile", profile.read_text())
    say(f"profile: {profile}" if profile.exists() else f"profile: there is no {profile}")
    return text


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, 2 when the document can't be written."""
    parser = argparse.ArgumentParser("python -m bench.publish")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    parser.add_argument("--results", type=Path, default=OUT)
    options = parser.parse_args(sys.argv[1:] if given is None else given)
    try:
        text = published(options.document.read_text(), options.results, print)
        options.document.write_text(text)
    except (PublishError, OSError) as error:
        print(f"bench.publish: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
