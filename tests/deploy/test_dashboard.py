"""docs/grafana.json keeps the rules of Grafana's dashboard model.

Grafana reports none of them when it loads a file: panels lie over each other, or have no data.

That its expressions name metrics of the broker is tested in tests/server/test_metrics.py.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents.pages import ROOT
from tests.kit.programs import promtool

DASHBOARD = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
COLUMNS = 24
"""The width of Grafana's grid."""


def panels() -> list[dict[str, Any]]:
    """Every panel, also those inside of collapsed rows."""
    found = DASHBOARD["panels"]
    return [*found, *(inner for panel in found for inner in panel.get("panels", []))]


def _cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    return set(
        itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
    )


def test_panels_are_identified() -> None:
    numbers = [panel["id"] for panel in panels()]
    assert len(numbers) > 20
    assert len(set(numbers)) == len(numbers)
    assert all(panel["title"] and panel["type"] for panel in panels())


def test_panels_fit_the_grid_without_overlaps() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= COLUMNS, panel["title"]
        for cell in _cells(panel):
            assert cell not in taken, f"{panel['title']} lies on {taken[cell]}"
            taken[cell] = panel["title"]


def test_queries_are_named_and_use_the_chosen_datasource() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert {"source", "broker"} <= variables
    for panel in panels():
        if panel["type"] == "row":
            continue
        names = [target["refId"] for target in panel["targets"]]
        assert names, panel["title"]
        assert len(set(names)) == len(names), panel["title"]
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${source}"}, panel["title"]
        assert all(target["expr"].strip() for target in panel["targets"])


@pytest.mark.parametrize("key", ["title", "uid", "schemaVersion", "time", "refresh"])
def test_required_keys(key: str) -> None:
    assert DASHBOARD[key]


def test_file_can_be_provisioned() -> None:
    """`__inputs` are resolved only by the import dialog; an `id` belongs to one installation."""
    assert "__inputs" not in DASHBOARD
    assert DASHBOARD.get("id") is None


def first_row() -> dict[str, str]:
    """The expressions of the panels of the first row by title."""
    _, *following = DASHBOARD["panels"]
    shown = itertools.takewhile(lambda panel: panel["type"] != "row", following)
    return {panel["title"]: panel["targets"][0]["expr"] for panel in shown}


def test_first_row_shows_whether_all_is_fine() -> None:
    row, *following = DASHBOARD["panels"]
    assert (row["type"], row["title"], row["gridPos"]["y"]) == ("row", "Is it fine?", 0)
    assert len(first_row()) == 6
    for panel in following[: len(first_row())]:
        assert panel["type"] == "stat", panel["title"]
        assert panel["options"]["colorMode"] == "background"
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        limits = [step["value"] for step in steps]
        assert limits[0] is None, panel["title"]
        assert limits[1:] == sorted(limits[1:]), panel["title"]
        assert {"green", "red", "orange"} >= {step["color"] for step in steps} > {"green"}


FINE = {
    'kafkawire_brokers{instance="a", state="alive"}': "3x400",
    'kafkawire_brokers{instance="a", state="silent"}': "0x400",
    'kafkawire_log_refusing{instance="a"}': "0x400",
    'kafkawire_log_failed{instance="a"}': "0x400",
    'kafkawire_disk_free_bytes{instance="a"}': "1000000000x400",
    'kafkawire_groups_lag_records{instance="a"}': "0x400",
}
BAD = {
    'kafkawire_brokers{instance="a", state="alive"}': "2x400",
    'kafkawire_brokers{instance="a", state="silent"}': "1x400",
    'kafkawire_log_refusing{instance="a"}': "1x400",
    'kafkawire_log_refusing{instance="b"}': "0x400",
    'kafkawire_log_object_refusing{instance="a"}': "1x400",
    'kafkawire_log_object_refusing{instance="b"}': "1x400",
    'kafkawire_disk_free_bytes{instance="a"}': "1720000000-1000000x400",  # a day after the 280th
    'kafkawire_disk_free_bytes{instance="b"}': "1000000000x400",
    'kafkawire_group_lag_records{instance="a", group="g"}': "5x400",
    'kafkawire_group_lag_records{instance="b", group="g"}': "6x400",
    'kafkawire_group_lag_records{instance="b", group="h"}': "9x400",
    'kafkawire_groups_lag_records{instance="b"}': "20x400",
    'kafkawire_tier_lag_seconds{instance="a"}': "7x400",
    'kafkawire_tier_lag_seconds{instance="b"}': "400x400",
}


@pytest.mark.real
@pytest.mark.parametrize(
    ("series", "wanted"),
    [
        (FINE, [3, 0, 0, 365, 0, None]),
        (BAD, [2, 1, 2, 1, 11, 400]),
        ({}, [None, None, None, None, None, None]),
    ],
    ids=["fine", "bad", "nothing scraped"],
)
def test_first_row_shows_what_the_metrics_say(
    series: dict[str, str], wanted: list[float | None], tmp_path: Path
) -> None:
    """Prometheus evaluates each expression over series of six hours and more, one a minute."""
    cases = [
        {
            "expr": expression.replace("$broker", ".*"),
            "eval_time": "280m",
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for expression, value in zip(first_row().values(), wanted, strict=True)
    ]
    rows = [{"series": name, "values": values} for name, values in series.items()]
    path = tmp_path / "row.yml"
    test = {"interval": "1m", "input_series": rows, "promql_expr_test": cases}
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        [str(promtool()), "test", "rules", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
