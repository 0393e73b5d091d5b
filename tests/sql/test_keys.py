"""Filters by key and by its text leave out blocks that cannot have it, and no selected record.

Covers: kafkawire.sql.pruning, kafkawire.sql.pruning.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkawire.codec.batches import build
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.columns import DEFAULT_HEADERS
from kafkawire.reading.model.source import Source
from kafkawire.sql.engine import SqlEngine
from kafkawire.sql.pruning import KEY_TEXT, VALUE_TEXT, TopicFilter, text_of
from tests.kit.spark.files import START_MS, Files, Share, batches
from tests.kit.spark.key_index import put
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)
from tests.kit.sql import rows_of_statement

KEYS = [b"", b"a", b"a\x00", b"ab", b"b", "é".encode(), b"\xc3", b"\xff", b"z", None]
"""Keys of the records, with empty, invalid and null ones."""
ABSENT = [b"A", b"aa", b"\xc3\xaa", b"\xfe", b"zz"]
SCHEMA = pa.schema(
    [*DEFAULT_HEADERS.arrow_schema(), (KEY_TEXT, pa.string()), (VALUE_TEXT, pa.string())]
)


def _literal(key: bytes) -> str:
    return "'" + "".join(f"\\x{each:02X}" for each in key) + "'::BLOB"


def conditions() -> st.SearchStrategy[str]:
    """Conditions of SQL on keys, their texts and other columns."""
    keys = st.sampled_from([each for each in KEYS if each is not None] + ABSENT)
    blobs = keys.map(_literal)
    texts = st.sampled_from(["a", "ab", "b", "é", "z", "nope", ""]).map(lambda each: f"'{each}'")
    several = {"key": st.lists(blobs, min_size=1, max_size=4),
               "key_text": st.lists(texts, min_size=1, max_size=4)}  # fmt: skip
    leaves = [st.sampled_from([
        "key IS NULL", "key_text IS NULL", "key IS NOT NULL", '"offset" < 300', "partition = 0",
        "key_text LIKE 'a%'", "value = 'a'::BLOB", "value_text = 'a'", "key = value",
    ])]  # fmt: skip
    for column, ones in (("key", blobs), ("key_text", texts)):
        for sign in ("=", "=", "=", "<>", "<", ">=", "IS NOT DISTINCT FROM"):
            leaves.append(ones.map(partial("{} {} {}".format, column, sign)))
        for sign in ("IN", "IN", "NOT IN"):
            listed = several[column].map(", ".join)
            leaves.append(listed.map(partial("{} {} ({})".format, column, sign)))
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda two: f"({two[0]} AND {two[1]})"),
            st.tuples(inner, inner).map(lambda two: f"({two[0]} OR {two[1]})"),
            inner.map(lambda one: f"NOT ({one})"),
        ),
        max_leaves=4,
    )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlEngine]:
    """`t`: 600 records of all KEYS, each key in one block of a segment or two."""
    files = Files(open_place(str(tmp_path_factory.mktemp("tier"))))
    [number] = files.topic("t")
    for name, base in enumerate(range(0, 600, 300)):
        made = [
            bytes(
                build(
                    [(KEYS[(at // 30) % len(KEYS)], b"v" * 900) for at in range(at, at + 30)],
                    base_offset=at,
                    timestamp_ms=START_MS,
                )
            )
            for at in range(base, base + 300, 30)
        ]
        put(files, name + 1, Share(number, made))
    files.publish()
    with SqlEngine(Source(files.place.url)) as engine:
        yield engine


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(condition=conditions())
def test_the_result_is_that_of_a_full_scan(mixed: SqlEngine, condition: str) -> None:
    asked = f'SELECT "offset" FROM t WHERE {condition} ORDER BY 1'
    # The same filter after all rows were read: OFFSET 0 keeps DuckDB from passing it to the scan.
    every = f'SELECT "offset" FROM (SELECT * FROM t OFFSET 0) WHERE {condition} ORDER BY 1'
    assert rows_of_statement(mixed, asked) == rows_of_statement(mixed, every)


@pytest.fixture
def engine(files: Files) -> Iterator[SqlEngine]:
    """`t`: 12,000 keys in 12,000 records of three segments; `old`: one segment without index."""
    [number], [old] = files.topic("t"), files.topic("old")
    for base in range(0, 12_000, 4000):
        put(files, base + 1, Share(number, batches(base, [20] * 200, size=600)))
    files.put(2, Share(old, batches(0, [20] * 200, size=600)))
    files.publish()
    with SqlEngine(Source(files.place.url)) as made:
        yield made


@pytest.mark.slow
def test_blocks_without_the_keys_are_not_read(engine: SqlEngine) -> None:
    many = ", ".join(f"'k{at}'" for at in range(0, 12_000, 200))
    for condition, offsets, segments, most in (
        ("true", 12_000, 3, 12_000),
        ("key = 'k5'", 1, 1, 1000),
        ("key = 'k5'::BLOB AND value_text <> ''", 1, 1, 1000),
        ("key_text = 'k5'", 1, 1, 1000),
        ("key_text = 'k5' OR key = 'k8000'", 2, 2, 2000),
        ("key IN ('k5', 'k3999', 'k8000', 'no')", 3, 2, 3000),
        ("key_text IN ('k5', 'k3999', 'k8000', 'no')", 3, 2, 3000),
        ("(key = 'k5' AND \"offset\" < 9) OR (key_text = 'k8000' AND partition = 0)", 2, 2, 2000),
        ("key_text = 'k5' AND \"offset\" > 5", 0, 1, 1000),
        ("key = 'no such key'", 0, 0, 0),
        ("key = 'k5' AND key = 'k6'", 0, 0, 0),
        ("key_text = 'k5' AND key = 'k6'", 0, 0, 0),
        ("key = 'k5' OR value_text = 'x'", 1, 3, 12_000),
        ("key <> 'k5'", 11_999, 3, 12_000),
        ("NOT key_text IN ('k5')", 11_999, 3, 12_000),
        ("key = 'k5' OR key IS NULL", 1, 3, 12_000),
        ("key = 'k5' OR key_text IS NULL", 1, 3, 12_000),
        (f"key_text IN ({many})", 60, 3, 12_000),  # more than Arrow simplifies
    ):
        [(found,)] = rows_of_statement(engine, f"SELECT count(*) FROM t WHERE {condition}")
        assert found == offsets, condition
        scan = engine.scans[0] if engine.scans else None
        assert scan is None or (scan.segments, scan.of_segments) == (segments, 3), condition
        assert scan is None or scan.offsets <= most, condition
        assert scan is None or scan.size_bytes <= scan.of_bytes * most // 12_000, condition


def test_segments_without_an_index_are_read(engine: SqlEngine) -> None:
    assert rows_of_statement(engine, "SELECT \"offset\" FROM old WHERE key = 'k7'") == [(7,)]
    [scan] = engine.scans
    assert scan.size_bytes == scan.of_bytes


def keys_of(expression: pc.Expression) -> list[bytes] | None:
    found = TopicFilter(SCHEMA, "t", expression).keys()
    return None if found is None else sorted(found)


def test_keys_of_filters() -> None:
    key, text, value = pc.field("key"), pc.field("key_text"), pc.field("value")
    assert keys_of(key == b"a") == [b"a"]
    assert keys_of((key == b"a") | (text == "\u00e9")) == [b"a", "\u00e9".encode()]
    assert keys_of(key.isin(pa.array([b"\xff", b"b"], pa.binary()))) == [b"b", b"\xff"]
    assert keys_of((key == b"a") & (value == b"b")) == [b"a"]
    assert keys_of((key == b"a") & (text != "a")) == []
    assert keys_of((key == b"a") | (value == b"a")) is None
    assert keys_of(key == value) is None
    assert keys_of(value == b"a") is None
    assert keys_of(key >= b"a") is None
    assert keys_of((key >= b"a") & (key <= b"a")) == [b"a"]


@pytest.mark.slow
@given(st.lists(st.none() | st.binary(max_size=4) | st.text(max_size=3).map(str.encode)))
def test_texts_are_those_of_a_decoder(values: list[bytes | None]) -> None:
    def decoded(value: bytes | None) -> str | None:
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            return None

    assert text_of(pa.array(values, pa.binary())).to_pylist() == list(map(decoded, values))
