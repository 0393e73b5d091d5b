"""Codes of the transaction coordinator as each version of Produce sees them.

Covers: kafkawire.handlers.produce.transactional.
"""

from __future__ import annotations

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.handlers.produce.transactional import produce_error


@pytest.mark.parametrize(
    ("code", "until_10", "in_11", "from_12"),
    [
        (E.TRANSACTION_ABORTABLE, 48, 120, 120),
        (E.PRODUCER_FENCED, 47, 47, 47),
        (E.INVALID_PRODUCER_ID_MAPPING, 49, 49, 49),
        (E.INVALID_TXN_STATE, 48, 48, 48),
        (E.CONCURRENT_TRANSACTIONS, 19, 19, 51),
        (E.NETWORK_EXCEPTION, 19, 19, 19),
        (E.COORDINATOR_LOAD_IN_PROGRESS, 19, 19, 19),
        (E.COORDINATOR_NOT_AVAILABLE, 19, 19, 19),
        (E.NOT_COORDINATOR, 19, 19, 19),
    ],
)
def test_codes_of_the_coordinator_by_version(
    code: E, until_10: int, in_11: int, from_12: int
) -> None:
    found = [int(produce_error(code, version).code) for version in (3, 10, 11, 12, 13)]
    assert found == [until_10, until_10, in_11, from_12, from_12]
