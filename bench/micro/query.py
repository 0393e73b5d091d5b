"""`python -m bench.micro.query`: one key by `kafkawire pipeline query`, and by a full scan.

A tier's folder has a topic of `--segments` segments, `--records` records of 1 KB each, with
indexes of keys. One Spark session, as `pipeline query` starts it, runs the same question
alternately with a filter that is pushed down (`key =`) and with one that is not. Prints a Markdown
table of seconds, medians of the rounds. 10 GB in a temporary folder.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench import report
from bench.payload import line
from kafkawire.cli.shared.progress import bars
from kafkawire.codec.batches import Record, pack
from kafkawire.progress import Progress
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import Source
from kafkawire_spark.query import Shell
from kafkawire_spark.session import open_session
from tests.kit.spark.files import Files, Share
from tests.kit.spark.key_index import put

TOPIC, PARTITIONS = "orders", 4
IN_BATCH, VALUE_BYTES, LINES = 16, 1000, 512
START_MS = 1_700_000_000_000
PUSHED = f"SELECT count(*) FROM {TOPIC} WHERE key = X'%s'"
SCANNED = f"SELECT count(*) FROM {TOPIC} WHERE concat(key, X'') = X'%s'"


def key(number: int) -> bytes:
    """The key of a record."""
    return b"order-%d" % number


def batches(first: int, count: int, values: list[bytes], base: int) -> Iterator[bytes]:
    """Batches of `count` records: keys from `first` on, offsets from `base` on."""
    for at in range(0, count, IN_BATCH):
        rows = [
            Record(base + n, START_MS + first + n, key(first + n), values[(first + n) % LINES])
            for n in range(at, min(at + IN_BATCH, count))
        ]
        yield bytes(pack(rows))


def fill(url: str, segments: int, records: int, progress: Progress) -> None:
    """Make the topic; each segment has records of one partition."""
    files, chance = Files(open_place(url)), random.Random(1)
    values = [line(chance, VALUE_BYTES) for _ in range(LINES)]
    numbers = files.topic(TOPIC, PARTITIONS)
    for name in range(segments):
        base = name // PARTITIONS * records
        made = list(batches(name * records, records, values, base))
        put(files, name + 1, Share(numbers[name % PARTITIONS], made))
        progress("segments", name + 1, segments)
    files.publish()


def seconds(shell: Shell, statement: str, wanted: int) -> float:
    """Time one statement, whose only value is known."""
    began = time.perf_counter()
    result = shell.run(statement, 10)
    assert [list(row) for row in result.rows] == [[wanted]], result.rows
    return time.perf_counter() - began


def measure(shell: Shell, number: int, rounds: int) -> list[tuple[str, str, str, str]]:
    """Run both statements alternately for a key that is there, and for one that is not."""
    rows = []
    for name, wanted, count in (("one record", key(number), 1), ("absent", b"none", 0)):
        pushed, scanned = [], []
        for _ in range(rounds):
            pushed.append(seconds(shell, PUSHED % wanted.hex(), count))
            scanned.append(seconds(shell, SCANNED % wanted.hex(), count))
        fast, slow = median(pushed), median(scanned)
        rows.append((name, f"{fast:.2f}", f"{slow:.2f}", f"{slow / fast:.1f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--segments", type=int, default=100)
    parser.add_argument("--records", type=int, default=100_000, help="of each segment")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, bars() as progress:
        url = str(Path(folder) / "tier")
        fill(url, given.segments, given.records, progress)
        size = sum(each.stat().st_size for each in Path(url).rglob("*") if each.is_file())
        began = time.perf_counter()
        spark = open_session(app_name="kafkawire bench")
        shell = Shell(spark, Source(url=url))
        seconds(shell, PUSHED % b"warm".hex(), 0)
        start_s = time.perf_counter() - began
        rows = measure(shell, given.segments * given.records // 2, given.rounds)
        shell.close()
        spark.stop()
    head = ("key", "pushed down, s", "full scan, s", "ratio")
    print(f"{size / 1e9:.1f} GB; start of Spark with a first query: {start_s:.1f} s\n")
    print(report.markdown(head, rows))


if __name__ == "__main__":
    main()
