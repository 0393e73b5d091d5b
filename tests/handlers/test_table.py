"""The table of APIs: each row names a handler that exists."""

from __future__ import annotations

import pytest

from kafkawire.handlers.table import OWN_ROWS, ROWS, Api, ApiRow


@pytest.mark.parametrize("row", [pytest.param(row, id=row.module) for row in (*ROWS, *OWN_ROWS)])
def test_each_row_names_a_handler(row: ApiRow) -> None:
    handler = getattr(Api(row).imported(), row.hot_class or row.module)
    assert callable(handler)
