"""One page of metrics, and one of health, from those of all workers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class WorkerState(NamedTuple):
    """A worker as the supervisor knows it. `guest`: it is the broker of another machine."""

    node: int
    serves: bool
    restarts: int
    guest: bool = False


def join_metrics(pages: Mapping[int, str]) -> str:
    """Return the metrics of all workers by node id, with a label `node` before the others. A family
    has its HELP and TYPE once, with the samples of all workers after them."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for node, page in pages.items():
        name = ""
        for line in page.splitlines():
            words = line.split(" ", 3)
            if line.startswith("# ") and len(words) > 2 and words[1] in ("HELP", "TYPE"):
                name = words[2]
                head, _ = families.setdefault(name, ([], []))
                if line not in head:
                    head.append(line)
            elif line and not line.startswith("#"):
                families.setdefault(name, ([], []))[1].append(_add_node_label(line, node))
    return "".join(f"{line}\n" for head, samples in families.values() for line in head + samples)


def _add_node_label(sample: str, node: int) -> str:
    """Return a sample with the label: `name{a="b"} 1` or `name 1`."""
    end = min(at for at in (sample.find("{"), sample.find(" "), len(sample)) if at >= 0)
    if sample[end : end + 1] == "{":
        rest = sample[end + 1 :]
        comma = "" if rest.startswith("}") else ","
        return f'{sample[:end]}{{node="{node}"{comma}{rest}'
    return f'{sample[:end]}{{node="{node}"}}{sample[end:]}'


def own_metrics(workers: Iterable[WorkerState]) -> str:
    """Return the metrics of the supervisor."""
    rows = list(workers)
    return (
        _family(
            "up", "gauge", "Whether a worker of serve --workers serves clients.",
            {row.node: int(row.serves) for row in rows},
        )
        + _family(
            "restarts_total", "counter", "Restarts of a worker that crashed or hung.",
            {row.node: row.restarts for row in rows},
        )
        + _family(
            "guest", "gauge", "Whether a worker is a broker of another machine, taken over here.",
            {row.node: int(row.guest) for row in rows},
        )
    )  # fmt: skip


def _family(name: str, kind: str, words: str, values: Mapping[int, int]) -> str:
    """Return a family with a sample for each node id."""
    name = f"kafkawire_worker_{name}"
    samples = "".join(f'{name}{{node="{node}"}} {value}\n' for node, value in values.items())
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n{samples}"


def join_health(found: Mapping[int, bytes | None]) -> tuple[bool, bytes]:
    """Return (whether all workers are healthy, the page) from their pages; None: no answer."""
    workers = {str(node): _facts(body) for node, body in found.items()}
    states = [facts.get("status") for facts in workers.values()]
    ill = any(state not in ("ok", "degraded") for state in states)
    status = "ill" if ill else "degraded" if "degraded" in states else "ok"
    page: dict[str, object] = {"status": status, "workers": workers}
    return not ill, json.dumps(page).encode() + b"\n"


def _facts(body: bytes | None) -> dict[str, object]:
    if body is None:
        return {"status": "ill", "reason": "the worker does not answer"}
    try:
        facts = json.loads(body)
    except ValueError:
        facts = None
    if isinstance(facts, dict):
        return facts
    return {"status": "ill", "reason": "the worker's answer cannot be read"}
