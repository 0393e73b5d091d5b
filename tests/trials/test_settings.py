"""The settings trial in short, and tests that it detects wrong refusals."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.configs.settings import BROKER_CONFIGS, TOPIC_CONFIGS
from tests.trials.context import Context
from tests.trials.settings.documented import ANY, TEXTS, WRONG, Setting, read_page
from tests.trials.settings.trial import Wire, faults, round_

SETTINGS = read_page()


def test_page_lists_every_setting() -> None:
    topics = {s.name for s in SETTINGS if s.topic}
    brokers = {s.name for s in SETTINGS if not s.topic}
    assert topics == set(TOPIC_CONFIGS)
    assert brokers <= set(BROKER_CONFIGS)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_every_setting_has_wrong_values(setting: Setting) -> None:
    wrong = setting.wrong()
    assert len(set(wrong)) == len(wrong)
    if TEXTS.get(setting.name) != ():
        assert len(wrong) >= WRONG
    assert not set(wrong) & set(setting.extremes())


def test_bounds_are_read_from_the_page() -> None:
    line = "| `a.b` | int | `-1` | a whole number from 1 to 9, or -1 | no | yes | Words. |"
    (one,) = read_page(f"## Broker\n{line}")
    assert one.bounds == (1, 9)
    assert "0" in one.wrong()
    assert "10" in one.wrong()
    line = "| `a` | int | `0` | a whole number from 0 to 9, or -1 | yes | yes | Words. |"
    (one,) = read_page(line)
    assert "-1" not in one.wrong()
    assert one.dynamic


@pytest.mark.parametrize(
    ("code", "said", "noticed"),
    [
        (-14, "", "a broker started"),
        (0, "", "exit code 0"),
        (1, "kafkawire: a.b=x: it must be y", "exit code 1"),
        (2, "Traceback (most recent call last)\n a.b=x", "a traceback"),
        (2, "kafkawire: bad value x", "does not name the setting"),
        (2, "kafkawire: a.b: it must be y", "does not show the value"),
    ],
)
def test_wrong_refusal_is_reported(code: int, said: str, noticed: str) -> None:
    assert noticed in " ".join(faults({"code": code, "err": said}, "a.b", "x"))


def test_correct_refusal_passes() -> None:
    assert faults({"code": 2, "err": "kafkawire: a.b=x: it must be y"}, "a.b", "x") == []


class Lenient:
    """A broker that accepts every value, and stores another one."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, request: Any, version: int) -> Any:
        self.asked += 1
        row = SimpleNamespace(name="a.b", value=str(self.asked), error_code=0, error_message="")
        row.configs = [row]
        return SimpleNamespace(results=[row], responses=[row], topics=[row])


async def test_accepted_wrong_values_are_reported(tmp_path: Path) -> None:
    context = Context("settings", 1, 0, tmp_path, time.monotonic() + 9)
    setting = Setting("a.b", "int", "1", "a whole number from 1 to 9", True, True)
    client: Any = Lenient()
    await Wire(context, client).refuse(setting, "a.b", ["x"])
    texts = " ".join(finding.text for finding in context.findings)
    for how in ("IncrementalAlterConfigs", "AlterConfigs", "CreateTopics"):
        assert f"a.b='x' by {how}: error 0" in texts
    assert "refused values changed something" in texts


def test_free_text_has_stated_wrong_values() -> None:
    assert {s.name for s in SETTINGS if s.allowed in ANY} == set(TEXTS)


@pytest.mark.real
@pytest.mark.slow
async def test_short_settings_trial_passes(tmp_path: Path) -> None:
    context = Context("settings", 2, 0, tmp_path, time.monotonic() + 30, short=True, say=print)
    await round_(context)
    assert context.findings == []
    assert context.counts["wrong values by command line"] >= 40
