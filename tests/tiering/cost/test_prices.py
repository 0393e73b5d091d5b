"""Price tables: their names, their custom values, the prices computed from them."""

from __future__ import annotations

import pytest

from kafkawire.tiering.cost.prices import KINDS, MONTH_MS, TABLES, Prices, parse_prices


def test_tables_have_names_and_a_price_for_every_kind() -> None:
    for name, table in TABLES.items():
        assert parse_prices(f" {name.upper()} ") is table
        assert all(table.of_kind(kind) >= 0 for kind in KINDS)
    assert TABLES["free"] == Prices("free")


def test_prices_of_requests_transfer_and_storage() -> None:
    prices = TABLES["aws-s3-standard"]
    assert prices.of_requests({"PUT": 2_000_000, "GET": 1_000_000}) == pytest.approx(10.4)
    assert prices.of_requests({"DELETE": 10**9}) == 0
    assert prices.of_storage(100e9 * MONTH_MS / 2) == pytest.approx(1.15)  # half a month
    express = TABLES["aws-s3-express-one-zone"]
    assert express.of_transfer(1e9, 2e9) == pytest.approx(0.0032 + 0.0012)


def test_custom_table_starts_empty_or_from_another() -> None:
    own = parse_prices("PUT=1, get=0.5 ,GB_MONTH=2,CURRENCY=EUR")
    assert own == Prices("custom", "EUR", put=1, get=0.5, gb_month=2)
    changed = parse_prices("aws-s3-standard,PUT=0.004")
    assert (changed.put, changed.get) == (0.004, TABLES["aws-s3-standard"].get)
    assert changed.name == "aws-s3-standard, changed"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["empty", "aws-s3-standard", "PUT"]),
        ("cheap", ["'cheap'", "aws-s3-standard"]),
        ("PUT=1,PUT=2", ["'PUT=2'", "each once"]),
        ("PUT=1,cheap", ["'cheap'"]),
        ("POST=1", ["'POST=1'", "PUT"]),
        ("PUT=-1", ["'PUT=-1'", "number"]),
        ("PUT=1e3", ["'PUT=1e3'", "number"]),
        ("PUT=", ["'PUT='", "number"]),
        ("CURRENCY=12", ["'CURRENCY=12'", "letters"]),
    ],
)
def test_wrong_price_is_one_sentence(text: str, names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"price|currency") as caught:
        parse_prices(text)
    for name in names:
        assert name in str(caught.value)
