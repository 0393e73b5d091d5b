"""Prometheus' own promtool on the metrics page of a broker, and on docs/alerts.rules.yml.

Marked real: promtool is a program of its own (tests/programs/promtool.sh).
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.client import Client, batch
from tests.kit.produce_fetch import fetch, make, produce
from tests.kit.programs import promtool
from tests.kit.server import port_of
from tests.server.test_metrics import ask, watched

DOCS = Path(__file__).parent.parent.parent / "docs"
RULES = DOCS / "alerts.rules.yml"


def run(*words: str, page: bytes = b"") -> str:
    """The output of promtool, which must succeed."""
    done = subprocess.run(
        [str(promtool()), *words], input=page, capture_output=True, timeout=60, check=False
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


@pytest.mark.real
async def test_metrics_page_passes_promtool(tmp_path: Path) -> None:
    settings = {"tier_url": f"file://{tmp_path / 'bucket'}", "backup_url": f"{tmp_path}-backups"}
    async with watched(tmp_path / "data", **settings) as (server, port):
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.call(produce("t", batch(b"x")), 7)
        await client.call(fetch("t", 0), 11)
        await server.broker.groups.open()
        await server.broker.transactions.open()
        _, page = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        await client.close()
    assert page.count(b"# TYPE kafkawire_") > 80
    assert run("check", "metrics", page=page) == ""


@pytest.mark.real
def test_alerts_pass_their_tests() -> None:
    assert "SUCCESS" in run("check", "rules", str(RULES))
    assert "SUCCESS" in run("test", "rules", str(DOCS / "alerts.test.yml"))


def test_every_alert_uses_existing_metrics_and_is_tested() -> None:
    rules = RULES.read_text(encoding="utf-8")
    known = set(re.findall(r"`(kafkawire\w*)`", (DOCS / "metrics.md").read_text(encoding="utf-8")))
    asked = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"kafkawire_\w+", rules)
    }
    assert len(asked) > 12
    assert asked <= known
    alerts = re.findall(r"- alert: (\w+)", rules)
    tested = (DOCS / "alerts.test.yml").read_text(encoding="utf-8")
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\n +exp_alerts:", tested), f"{alert} is not tested"
    assert len(alerts) == rules.count("severity: ") - 1 == rules.count("action: ")


@pytest.mark.parametrize("suffix", ["_sum", "_count", "_bucket"])
def test_no_gauge_has_the_suffix_of_a_histogram(suffix: str) -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(kafkawire\w*)` \| (\w+) \|", text)
    assert len(rows) > 80
    assert not [name for name, _ in rows if name.endswith(suffix)]
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in rows)


def test_dashboard_panels_do_not_overlap() -> None:
    panels = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "timeseries":
            assert panel["targets"]
            assert panel["fieldConfig"]["defaults"]["unit"]
