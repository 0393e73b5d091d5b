"""The cost of the loops of Spark's tasks: record batches to Arrow batches, and back.

`python -m bench.micro.decode [--megabytes M] [--rounds N]`. In CPU time of one thread, so that
other work on the machine disturbs little: records and megabytes of values a second for values of
100 B and 1 KB, each codec, batches of 1 and of 1000 records; with all default columns and with
offset and value only; compared with the codec's own reader, which creates an object per record.
Then bounds of Arrow batches, the encoder, and the cost of a new process before its first record,
with numba's cache filled. Each figure is the best of N rounds (5) over M megabytes (16).
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from kafkawire.codec.batches import iter_batches, records
from kafkawire.codec.compression import CODEC_NAMES, NONE, ZSTD
from kafkawire.reading.decode.decoder import Decoder
from kafkawire.reading.model.columns import DEFAULT, Selection
from kafkawire.reading.model.source import Account, PartitionRange
from kafkawire_spark.encode import encode_batches

MS = 1_700_000_000_000
OFFSET_VALUE = Selection(("offset", "value"))
SHAPES = [(100, 1000), (100, 1), (1000, 1000), (1000, 1)]
"""(bytes of a value, records of a batch)"""
MIB = 1 << 20
BOUNDS = [(8192, 1), (16384, 2), (32768, 4), (65536, 8), (131072, 16)]
"""(rows, MiB) of an Arrow batch"""
IMPORTS = """
import time
cpu, marks = time.process_time, [time.process_time()]
for name in ("numpy", "pyarrow", "numba", "kafkawire.reading.decode.decoder"):
    __import__(name)
    marks.append(cpu())
print(*(round(1000 * (after - before)) for before, after in zip(marks, marks[1:])))
"""


def some_values(size: int, count: int) -> pa.RecordBatch:
    """Values of repeated words, which codecs compress to about a quarter, like JSON."""
    dice = random.Random(size)
    words = [dice.randbytes(4).hex() for _ in range(400)]
    values = [" ".join(dice.choices(words, k=size // 9 + 1))[:size].encode() for _ in range(count)]
    times = pa.array(range(MS, MS + count), pa.timestamp("ms")).cast(pa.timestamp("us"))
    return pa.RecordBatch.from_pydict({"_timestamp": times, "_value": values})


def a_chunk(size: int, each: int, codec: int, total: int) -> tuple[bytes, int]:
    """Batches with `total` bytes of values, and their number of records."""
    pool = [
        next(encode_batches(part, codec=codec, batch_bytes=1 << 30))[0]
        for part in (some_values(size, each * 8).slice(n * each, each) for n in range(8))
    ]
    out, offset = bytearray(), 0
    while offset * size < total:
        batch = pool[offset // each % 8]
        struct.pack_into(">q", batch, 0, offset)
        out += batch
        offset += each
    return bytes(out), offset


def best(rounds: int, work: Callable[[], object]) -> float:
    """CPU seconds of the fastest round."""
    spent = []
    for _ in range(rounds):
        before = time.thread_time()
        work()
        spent.append(time.thread_time() - before)
    return min(spent)


def decode(decoder: Decoder, data: bytes, count: int) -> None:
    account = Account(PartitionRange("some-topic", 3, 0, count))
    decoder.start_range(account)
    rows = sum(batch.num_rows for batch in decoder.decode_batches(data, check_crc=False))
    decoder.end_range()
    rows += sum(batch.num_rows for batch in decoder.flush())
    assert rows == count == account.rows


def encode(rows: pa.RecordBatch, codec: int) -> None:
    assert sum(count for _, count in encode_batches(rows, codec=codec)) == rows.num_rows


def read_slowly(data: bytes, most: int) -> int:
    """The number of records that the codec's reader read from the first batches."""
    count = 0
    for pos, _ in iter_batches(data):
        for _ in records(data, pos):
            count += 1
        if count >= most:
            break
    return count


def speeds(console: Console, rounds: int, total: int) -> None:
    table = Table(title="decoding, one thread's CPU")
    for name in (
        "value", "records/batch", "codec", "stored B/record", "M records/s", "MB/s of values",
        "offset+value: M/s", "codec's reader: M/s", "ratio",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for size, each in SHAPES:
        for codec, name in enumerate(CODEC_NAMES):
            whole = total if each > 1 or codec == NONE else total // 8
            data, count = a_chunk(size, each, codec, whole)
            decoders = Decoder(DEFAULT), Decoder(OFFSET_VALUE)
            every, few = (count / best(rounds, partial(decode, d, data, count)) for d in decoders)
            before = time.thread_time()
            slow = read_slowly(data, 20_000) / (time.thread_time() - before)
            table.add_row(
                str(size), str(each), name, f"{len(data) / count:.0f}", f"{every / 1e6:.2f}",
                f"{every * size / 1e6:.0f}", f"{few / 1e6:.2f}", f"{slow / 1e6:.2f}",
                f"{every / slow:.0f}",
            )  # fmt: skip
    console.print(table)


def bounds(console: Console, rounds: int, total: int) -> None:
    table = Table(title="bounds of an Arrow batch, 1000 records a batch, M records/s")
    columns = [(100, NONE), (100, ZSTD), (1000, NONE), (1000, ZSTD)]
    for name in ["rows", "MiB", *(f"{size} B {CODEC_NAMES[codec]}" for size, codec in columns)]:
        table.add_column(name, justify="right")
    chunks = [a_chunk(size, 1000, codec, total) for size, codec in columns]
    for rows, size_mib in BOUNDS:
        decoder = Decoder(DEFAULT, batch_rows=rows, batch_bytes=size_mib * MIB)
        found = [
            count / best(rounds, partial(decode, decoder, data, count)) / 1e6
            for data, count in chunks
        ]
        table.add_row(str(rows), str(size_mib), *(f"{speed:.2f}" for speed in found))
    console.print(table)


def encoder(console: Console, rounds: int) -> None:
    table = Table(title="encoding in batches of 1 MiB")
    for name in ("value", "codec", "M records/s", "MB/s of values"):
        table.add_column(name, justify="right")
    for size in (100, 1000):
        rows = some_values(size, 10_000)
        for codec, name in enumerate(CODEC_NAMES):
            spent = best(rounds, partial(encode, rows, codec))
            speed = rows.num_rows / spent
            table.add_row(str(size), name, f"{speed / 1e6:.2f}", f"{speed * size / 1e6:.0f}")
    console.print(table)


def imports(console: Console, rounds: int) -> None:
    table = Table(title="ms of CPU in a fresh process, numba's cache filled")
    for name in ("numpy", "pyarrow", "numba", "the decoder"):
        table.add_column(name, justify="right")
    found = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=120
        )
        found.append([int(part) for part in done.stdout.split()])
    table.add_row(*(str(part) for part in min(found, key=sum)))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    imports(console, options.rounds)
    speeds(console, options.rounds, options.megabytes * 1_000_000)
    bounds(console, options.rounds, options.megabytes * 4_000_000)
    encoder(console, options.rounds)


if __name__ == "__main__":
    main()
