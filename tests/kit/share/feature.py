"""Share groups in tests, while the feature share.version is not supported yet."""

from __future__ import annotations

import pytest

from kafkawire.codec.configs.features import FEATURES, SHARE_VERSION, Feature


def enable_share_groups(monkeypatch: pytest.MonkeyPatch, level: int = 1) -> None:
    """Have brokers that are started from now on support share groups, at a level."""
    monkeypatch.setitem(FEATURES, SHARE_VERSION, Feature(SHARE_VERSION, 0, 2, level))
