"""One page of metrics, and one of health, from those of all workers. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping


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
                families.setdefault(name, ([], []))[1].append(_labelled(line, node))
    return "".join(f"{line}\n" for head, samples in families.values() for line in head + samples)


def _labelled(sample: str, node: int) -> str:
    """Return a sample with the label: `name{a="b"} 1` or `name 1`."""
    end = min(at for at in (sample.find("{"), sample.find(" "), len(sample)) if at >= 0)
    if sample[end : end + 1] == "{":
        rest = sample[end + 1 :]
        comma = "" if rest.startswith("}") else ","
        return f'{sample[:end]}{{node="{node}"{comma}{rest}'
    return f'{sample[:end]}{{node="{node}"}}{sample[end:]}'


def own_metrics(workers: Iterable[tuple[int, bool, int]]) -> str:
    """Return the metrics of the supervisor: (node id, whether it serves, restarts) of workers."""
    rows = list(workers)
    up = [f'kafkawire_worker_up{{node="{node}"}} {int(serves)}' for node, serves, _ in rows]
    restarts = [
        f'kafkawire_worker_restarts_total{{node="{node}"}} {count}' for node, _, count in rows
    ]
    lines = [
        "# HELP kafkawire_worker_up Whether a worker of serve --workers serves clients.",
        "# TYPE kafkawire_worker_up gauge",
        *up,
        "# HELP kafkawire_worker_restarts_total Restarts of a worker that crashed or hung.",
        "# TYPE kafkawire_worker_restarts_total counter",
        *restarts,
    ]
    return "".join(f"{line}\n" for line in lines)


def join_health(found: Mapping[int, bytes | None]) -> tuple[bool, bytes]:
    """Return (whether all workers are healthy, the page) from their pages; None: no answer."""
    workers = {str(node): _facts(body) for node, body in found.items()}
    ill = [node for node, facts in workers.items() if facts.get("status") != "ok"]
    page: dict[str, object] = {"status": "ill" if ill else "ok", "workers": workers}
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
