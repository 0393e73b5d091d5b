"""The decoder of Spark's tasks compared with the codec's own reader, on valid and damaged bytes.

Covers: kafkawire.reading.decode.listing, kafkawire.reading.decode.output.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import (
    CONTROL,
    DELETE_HORIZON,
    HEAD,
    HEAD_BYTES,
    LOG_APPEND_TIME,
    PREFIX_BYTES,
    TRANSACTIONAL,
    Record,
    pack,
    resum,
)
from kafkawire.codec.compression import compress
from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.reading.decode.decoder import Decoder
from kafkawire.reading.decode.first_rows import FirstRowsDecoder
from kafkawire.reading.decode.port import RangeDecoder
from kafkawire.reading.model.columns import NATIVE
from kafkawire.reading.model.source import (
    COMPACTED,
    Account,
    DamagedData,
    PartitionRange,
)
from tests.kit.spark.slow_decoder import Row, SlowDecoder, rows_of

MS = 1_700_000_000_000
CODECS = range(5)

seeds = st.integers(0, (1 << 32) - 1)


def optional(dice: Random) -> bytes | None:
    """Strategy for a key or value."""
    size = dice.choice([None, 0, 1, 3, 64, 130, 300])
    return None if size is None else dice.randbytes(size)


def made_up(dice: Random) -> list[bytes]:
    """Batches of a partition as left by compaction and transactions, in order."""
    made, offset = [], dice.randrange(20)
    for _ in range(dice.randint(1, 4)):
        count = dice.choice([0, 1, 1, 5, 40])
        deltas = (
            sorted(dice.sample(range(3 * count), count)) if dice.random() < 0.5 else range(count)
        )
        time, items = dice.choice([MS, -1, 0, -(1 << 63), (1 << 63) - 1]), []
        for delta in deltas:
            moved = min(max(time + dice.randint(-90, 90_000), -(1 << 63)), (1 << 63) - 1)
            names = [dice.choice(["", "h", "\u00fc"]) for _ in range(dice.choice([0, 0, 1, 3]))]
            pairs = [(name, optional(dice)) for name in names]
            items.append(Record(offset + delta, moved, optional(dice), optional(dice), pairs))
        last = offset + (deltas[-1] if items else 0) + dice.choice([0, 0, 1, 5])
        flags = dice.choice([0, 0, 0, TRANSACTIONAL, TRANSACTIONAL | CONTROL])
        flags |= dice.choice([0, 0, LOG_APPEND_TIME, DELETE_HORIZON])
        made.append(retained(items, offset, last, dice.randrange(5), flags, dice.randrange(3)))
        offset = last + 1 + dice.choice([0, 0, 3])
    return made


def retained(
    items: Sequence[Record], base: int, last: int, codec: int, flags: int, producer: int
) -> bytes:
    """A batch that had offsets [base, last], of which `items` are left."""
    first = Record(base, items[0].timestamp if items else MS, None, None)
    made = pack([first, *items], attributes=flags, producer_id=producer)
    body = made[HEAD_BYTES + 1 + made[HEAD_BYTES] // 2 :]  # without the first
    packed = bytes(compress(codec, body)) if items else b""
    fields = list(HEAD.unpack_from(made))
    fields[1] = HEAD_BYTES - PREFIX_BYTES + len(packed)
    fields[5] |= codec if items else 0
    fields[6], fields[12] = last - base, len(items)
    whole = bytearray(HEAD.pack(*fields) + packed)
    resum(whole, 0, len(whole))
    return bytes(whole)


def decode(
    data: Buffer,
    account: Account,
    aborted: Sequence[tuple[int, int, int]] = (),
    *,
    decoder: RangeDecoder | None = None,
    check_crc: bool = False,
) -> tuple[list[Row], DamagedData | None]:
    """All rows, and the offsets that could not be read."""
    decoder = Decoder(NATIVE) if decoder is None else decoder
    decoder.start_range(account, [*map(Aborted._make, aborted)])
    out, wrong = [], None
    try:
        for batch in decoder.decode_batches(data, check_crc=check_crc):
            out.append(batch)
    except DamagedData as error:
        wrong = error
    if wrong is None:
        decoder.end_range()
    out += decoder.flush()
    for batch in out:
        batch.validate(full=True)
    return rows_of(out), wrong


def everything(data: bytes | bytearray) -> list[Row]:
    account = Account(PartitionRange("t", 0, 0, 1 << 40))
    rows, wrong = decode(data, account)
    assert wrong is None
    assert not account.missing
    return rows


def guarded(data: bytes) -> memoryview:
    """`data` placed so that reading the byte after it ends the process."""
    room = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, room + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.mprotect(ctypes.c_void_p(address + room), ctypes.c_size_t(mmap.PAGESIZE), 0)
    assert not failed, ctypes.get_errno()
    pages[room - len(data) : room] = data
    return memoryview(pages)[room - len(data) : room]


def some_decoder(dice: Random) -> RangeDecoder:
    """A decoder with bounds so small that batches are returned in parts, or with larger ones; or
    that of the first rows, which continues with such a one."""
    rows, size = dice.choice([1, 2, 7, 50, 4096]), dice.choice([1, 100, 1000, 1 << 20])
    compiled = Decoder(NATIVE, batch_rows=rows, batch_bytes=size)
    return compiled if dice.random() < 0.5 else FirstRowsDecoder(NATIVE, lambda: compiled)


@given(seeds)
def test_decoder_matches_codecs_reader(seed: int) -> None:
    for dice in (Random(seed + n) for n in range(10)):
        made = b"".join(made_up(dice))
        base = dice.randrange(60)
        reach = PartitionRange("t", 3, base, base + dice.choice([0, 3, 50, 1000]))
        aborted = [(1, 5, 40), (2, 0, 10), (2, 30, 30)]
        slow = SlowDecoder(Account(reach), aborted)
        slow.feed(made, check_crc=True)
        slow.skip(reach.end, COMPACTED)
        account = Account(reach)
        rows, wrong = decode(
            made, account, aborted, decoder=some_decoder(dice), check_crc=dice.random() < 0.5
        )
        assert wrong is None
        assert rows == slow.rows
        assert account == slow.account
        assert account.missing == 0


@pytest.mark.slow
@given(seeds)
def test_decoder_matches_codecs_reader_on_damaged_bytes(seed: int) -> None:
    for dice in (Random(seed + n) for n in range(20)):
        made = bytearray(b"".join(made_up(dice)))
        for _ in range(dice.randrange(4)):
            made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
        if dice.random() < 0.3:
            del made[dice.randrange(len(made)) :]
        damaged_alike(bytes(made), dice)


def damaged_alike(made: bytes, dice: Random) -> None:
    """Check that both readers give the same result for `made`."""
    reach = PartitionRange("t", 3, 0, dice.choice([50, 1 << 40]))
    check_crc = dice.random() < 0.3
    slow, slow_error = SlowDecoder(Account(reach)), None
    try:
        slow.feed(made, check_crc=check_crc)
        slow.skip(reach.end, COMPACTED)
    except KafkaError as error:
        slow_error = error
        if "codec can't decode" in str(error):  # a header's name, which we show as Java does
            return
    account = Account(reach)
    decoder = some_decoder(dice)
    rows, wrong = decode(guarded(made), account, decoder=decoder, check_crc=check_crc)
    assert rows == slow.rows
    assert account == slow.account
    assert (wrong is None) == (slow_error is None), (wrong, slow_error)
    if wrong is not None:
        assert (wrong.topic, wrong.partition) == ("t", 3)
        assert account.range.end - account.missing == wrong.base < wrong.end <= reach.end
