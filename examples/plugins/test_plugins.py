"""Checks the store and the offset storage against their contracts: pytest test_plugins.py"""

from __future__ import annotations

from pathlib import Path

import pytest
from example_plugins import SHELF, SqliteStore

from kafkawire.objectstore.port import Opening
from kafkawire.objectstore.url import TierUrl
from kafkawire.testing.contracts import (
    STORE_CHECKS,
    StoreCheck,
    check_key_value_store,
    name_of,
)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=name_of)
def test_shelf(check: StoreCheck, tmp_path: Path) -> None:
    tier = TierUrl("books", "tier", scheme="shelf", options=(("root", str(tmp_path)),))
    SHELF.check(tier)
    check(SHELF.open(tier, Opening(part_bytes=5 << 20, calls=8, transfers=4, seen=False)))


def test_sqlite(tmp_path: Path) -> None:
    check_key_value_store(lambda: SqliteStore(str(tmp_path), 1))
