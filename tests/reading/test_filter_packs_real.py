"""A real broker with a tier writes filter packs; searches in its tier read few segments by them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kafkawire.manifest.keys import PACK_LIST
from kafkawire.manifest.packs import read_packs
from kafkawire.reading import open_folder
from kafkawire.testing.plugin import Factory
from tests.kit.spark.topics import QUICK, START_MS, Row, Topics

pytestmark = [pytest.mark.real, pytest.mark.slow]

WITHIN_S = 900.0
IN_ROUND = 20


def test_packs_of_a_broker_are_used(kafkawire_broker_factory: Factory, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    made = Topics(kafkawire_broker_factory(settings={**QUICK, "tier.url": str(tier)}))
    made.make("t", 1, index_keys_enable="true")
    written, until = 0, time.monotonic() + WITHIN_S
    while not (tier / PACK_LIST).exists():
        assert time.monotonic() < until, f"no filter pack after {written} records"
        made.produce(
            "t",
            [
                Row("t", 0, -1, START_MS + n, b"key-%d" % n, b"%100d" % n, None)
                for n in range(written, written + IN_ROUND)
            ],
        )
        written += IN_ROUND
        time.sleep(0.1)  # the next records are in another journal
    made.until_cut(str(tier))
    made.broker.stop()
    covered = {uuid for pack in read_packs((tier / PACK_LIST).read_bytes()).packs
               for uuid in pack.objects}  # fmt: skip
    assert len(covered) >= 64
    with open_folder(str(tier)) as reader:
        segments = len(list((tier / "segments").iterdir()))
        for n in range(0, written, written // 10):
            assert [each.offset for each in reader.find("t", b"key-%d" % n)] == [n]
        before = {each.source: each.requests for each in reader.traffic()}
        assert list(reader.find("t", b"no-such-key")) == []
        after = {each.source: each.requests for each in reader.traffic()}
        spent = {source: requests - before[source] for source, requests in after.items()}
        assert sum(requests for source, requests in spent.items() if "packs" in source) >= 2
        assert sum(spent.values()) <= segments - len(covered) + 10
