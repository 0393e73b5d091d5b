"""Plug-ins that are missing, raise or hang are one sentence."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire import plugins
from kafkawire.objectstore.url import parse_tier
from kafkawire.plugins import STORES, PluginError, call_plugin, list_plugins, load_plugin

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what installs a distribution with these entry points and this module."""
    monkeypatch.setattr(plugins, "_loaded", {})

    def make(entries: str, code: str = "") -> None:
        folder = tmp_path / f"site_{len(list(tmp_path.iterdir()))}"
        info = folder / f"{folder.name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(entries)
        if code:
            (folder / "some_plugin.py").write_text(code)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, "some_plugin", raising=False)

    return make


def test_azure_is_a_plugin() -> None:
    assert list_plugins(STORES) == ["azure (kafkawire)"]


def test_missing_plugin_names_what_is_installed() -> None:
    with pytest.raises(ValueError, match=r"'gs://bucket/x' is no tier .*: azure \(kafkawire\)$"):
        parse_tier("gs://bucket/x")
    with pytest.raises(PluginError, match=r"no plug-in 'gs': installed are azure \(kafkawire\)$"):
        load_plugin(STORES, "gs")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('no\\nlicence')", "cannot be used: RuntimeError: no licence"),
        ("raise SystemExit(3)", "cannot be used: SystemExit: 3"),
        ("import nosuchpackage", "No module named 'nosuchpackage'"),
        ("OTHER = 1", "has no attribute 'PLUGIN'"),
        ("PLUGIN = 1", "'int' object has no attribute 'check'"),
    ],
)
def test_plugin_that_raises_is_one_sentence(install: Install, code: str, words: str) -> None:
    install("[kafkawire.stores]\nwell = some_plugin:PLUGIN\n", code)
    with pytest.raises(ValueError, match=r"the plug-in well \(site_0\) of kafkawire.stores") as it:
        parse_tier("well://bucket/prefix")
    assert words in str(it.value)
    assert "\n" not in str(it.value)


def test_two_plugins_of_one_name_are_refused(install: Install) -> None:
    install("[kafkawire.stores]\nwell = some_plugin:PLUGIN\n", "PLUGIN = 1")
    install("[kafkawire.stores]\nwell = some_plugin:PLUGIN\n", "")
    with pytest.raises(PluginError, match=r"two plug-ins of one name: well .*uninstall one"):
        load_plugin(STORES, "well")


def test_plugin_that_does_not_return_is_left() -> None:
    never = threading.Event()
    with pytest.raises(PluginError, match=r"^it cannot be used: it does not return within 0.05 s"):
        call_plugin("it", never.wait, limit_s=0.05)
    never.set()


@pytest.mark.real
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("tier.url=gs://bucket/x", "'gs://bucket/x' is no tier that is known"),
        ("plugin.hooks=nosuch", "plugin.hooks=nosuch: it must be a plug-in: installed are none"),
        ("offset.storage=nosuch", "offset.storage=nosuch: it must be sql, rocksdb, memory or a "),
    ],
)
def test_start_with_a_missing_plugin_ends_with_2(setting: str, words: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "kafkawire", "serve", "--data", str(tmp_path / "data")]
    done = subprocess.run([*command, "--set", setting], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert words in line
