"""The decoder of first rows: which batches it leaves to the compiled one, and equal columns.

Its rows and accounts are compared with the codec's reader in tests/reading/decode/test_decoder.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pyarrow as pa
import pytest

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL, Record, build, pack
from kafkawire.codec.control import Aborted
from kafkawire.reading.decode.decoder import Decoder
from kafkawire.reading.decode.first_rows import (
    BATCH_ROWS,
    MAX_BYTES,
    MAX_ROWS,
    MAX_UNPACKED_BYTES,
    FirstRowsDecoder,
)
from kafkawire.reading.decode.port import RangeDecoder
from kafkawire.reading.model.columns import DEFAULT_HEADERS, NATIVE, Selection
from kafkawire.reading.model.source import ABORTED, Account, DamagedData, OffsetGap, PartitionRange
from kafkawire.reading.model.source import CONTROL as CONTROL_GAP

MS = 1_700_000_000_000


class Loading:
    """A decoder of first rows; `times`: how often it has loaded the compiled one."""

    def __init__(self, selection: Selection = NATIVE) -> None:
        self.times = 0
        self._selection = selection
        self.decoder = FirstRowsDecoder(selection, self._load)

    def _load(self) -> RangeDecoder:
        self.times += 1
        return Decoder(self._selection, batch_rows=4096)


def numbered(base: int, count: int, size: int = 8, codec: int = 0) -> bytes:
    pairs = [(None, (base + n).to_bytes(8, "big") * (size // 8)) for n in range(count)]
    return bytes(build(pairs, base_offset=base, timestamp_ms=MS, codec=codec))


def decode(
    decoder: RangeDecoder, end: int, *data: bytes, aborted: Sequence[Aborted] = ()
) -> tuple[list[pa.RecordBatch], Account]:
    account = Account(PartitionRange("t", 0, 0, end))
    decoder.start_range(account, aborted)
    found = [batch for part in data for batch in decoder.decode_batches(part, check_crc=True)]
    decoder.end_range()
    found += decoder.flush()
    assert account.missing == 0
    return found, account


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [each for batch in batches for each in batch.column("_offset").to_pylist()]


@pytest.mark.parametrize("codec", range(5))
def test_plain_batches_need_no_compiled_decoder(codec: int) -> None:
    loading = Loading()
    data = [numbered(base, 100, codec=codec) for base in range(0, 5000, 100)]
    found, account = decode(loading.decoder, 5000, *data)
    assert offsets(found) == list(range(5000))
    assert account.rows == 5000
    assert max(batch.num_rows for batch in found) < BATCH_ROWS + 100
    assert loading.times == 0


def test_selections_give_the_same_columns() -> None:
    records = [
        Record(0, MS, b"k", b"v", [("h", b"1"), ("", None)]),
        Record(1, -1, None, None),
        Record(2, MS + 1, b"", "ü".encode()),
    ]
    data = bytes(pack(records))
    for names in ((), *((name,) for name in (*DEFAULT_HEADERS.names, "valueSize")), NATIVE.names):
        selection = Selection(tuple(names))
        loading = Loading(selection)
        [[mine], _], [[other], _] = (
            decode(loading.decoder, 3, data), decode(Decoder(selection), 3, data),
        )  # fmt: skip
        mine.validate(full=True)
        assert mine.schema == other.schema
        assert mine.to_pylist() == other.to_pylist()
        assert loading.times == 0


def test_other_batches_are_left_to_the_compiled_decoder() -> None:
    large = -(-MAX_ROWS // 2)
    for data in (
        numbered(0, large) + numbered(large, large) + numbered(2 * large, 10),
        numbered(0, 3, MAX_BYTES // 2) + numbered(3, 3),
        numbered(0, 1, MAX_UNPACKED_BYTES + 8, 4),
        bytes(pack([Record(0, 1 << 60, None, b"v")])),
    ):
        loading = Loading()
        end = 1 << 20
        found, account = decode(loading.decoder, end, data)
        rows, expected = decode(Decoder(NATIVE), end, data)
        assert pa.Table.from_batches(found).equals(pa.Table.from_batches(rows))
        assert account == expected
        assert loading.times == 1


def test_transactions_after_plain_batches() -> None:
    items = [(b"k", b"v"), (b"k", b"w")]
    more = {"timestamp_ms": MS, "producer_id": 5}
    aborted = bytes(build(items, base_offset=3, attributes=TRANSACTIONAL, **more))
    marker = bytes(build(items[:1], base_offset=5, attributes=TRANSACTIONAL | CONTROL, **more))
    loading = Loading()
    found, account = decode(
        loading.decoder,
        9,
        numbered(0, 3) + aborted + marker,
        numbered(6, 3),
        aborted=[Aborted(5, 3, 5)],
    )
    assert offsets(found) == [0, 1, 2, 6, 7, 8]
    assert account.gaps == [OffsetGap(3, 5, ABORTED), OffsetGap(5, 6, CONTROL_GAP)]
    assert loading.times == 1


def test_damage_is_described_by_the_compiled_decoder() -> None:
    good, bad = numbered(0, 3), bytearray(numbered(3, 3))
    bad[-1] ^= 1
    loading = Loading()
    decoder = loading.decoder
    account = Account(PartitionRange("t", 0, 0, 9))
    decoder.start_range(account)
    found: list[pa.RecordBatch] = []
    with pytest.raises(DamagedData, match="checksum of a batch does not fit"):
        found.extend(decoder.decode_batches(good + bad + numbered(6, 3), check_crc=True))
    assert decoder.broken == (len(good), len(good) + len(bad))
    assert offsets(found) == [0, 1, 2]
    assert decoder.cursor == 3


@pytest.mark.slow
def test_numba_is_not_loaded_for_a_few_rows() -> None:
    code = (
        "import sys, kafkawire.reading.decode.first_rows, kafkawire.reading.read_task\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
