"""docs/grafana.json keeps the rules of Grafana's dashboard model.

Grafana reports none of them when it loads a file: panels lie over each other, or have no data.

That its expressions name metrics of the broker is tested in tests/server/test_metrics.py.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.documents.pages import ROOT

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
