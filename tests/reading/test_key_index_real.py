"""A real broker that writes key indexes: its worker process hashes, the broker imports no numba."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.codec.segment.format import KEYS, read_trailer
from kafkawire.reading import open_folder
from kafkawire.reading.files import key_index
from kafkawire.testing.plugin import Factory
from tests.kit.spark.topics import QUICK, START_MS, Row, Topics

pytestmark = pytest.mark.real


def test_segments_of_a_broker_are_searched_by_their_index(
    kafkawire_broker_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "MIN_WHOLE_BYTES", 0)
    made = Topics(kafkawire_broker_factory(settings=QUICK))
    made.make("t", 1, index_keys_enable="true")
    made.make("plain", 1)
    for name in ("t", "plain"):
        made.produce(
            name,
            [
                Row(name, 0, -1, START_MS + n, b"key-%d" % (n % 700), b"%100d" % n, None)
                for n in range(3000)
            ],
        )
    made.until_cut(str(made.broker.data))
    maps = Path(f"/proc/{made.broker.pid}/maps")
    if maps.exists():
        assert "llvmlite" not in maps.read_text()
    made.broker.stop()
    files = list(Path(made.broker.data).rglob("*.segment"))
    trailers = [read_trailer(data, len(data)) for data in map(Path.read_bytes, files)]
    assert any(trailer.optional(KEYS) is not None for trailer in trailers)
    with open_folder(str(made.broker.data)) as reader:
        for row in made.of("t")[::500]:
            assert row.key is not None
            wanted = [each.offset for each in made.of("t") if each.key == row.key]
            assert [each.offset for each in reader.find("t", row.key)] == wanted
        assert list(reader.find("t", b"no-such-key")) == []
