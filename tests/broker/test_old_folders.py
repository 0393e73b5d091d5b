"""Data folders written by earlier revisions: every record, offset and setting is there.

Each file under golden/folders is a whole data folder, named by the revision of its tables and how
its broker ended: `rows-0001-*` before there were segments, `rows-0002-segments` with everything cut
but the last ten records, `rows-0003-segments-tiered` with what is cut uploaded too (its bucket is
not included, its local files are), `rows-0004-transactions-killed` before features could be changed
(transactional ids `done`, with two commits and an abort of 4 records each, and `open`, in topic
ledger). They were made with journals of 1 MiB: topics of two partitions with retention.ms=-1, one
per codec, 40 records each with key `k<n>`, value `<topic> <n>`, n % 2 the partition; group `g`
committed offset 7 of plain-0.
"""

from __future__ import annotations

import logging
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed

FOLDERS = sorted((Path(__file__).parent.parent / "golden" / "folders").glob("*.tar.xz"))
TOPICS = ("plain", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def commands_log_nothing() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)  # fsck does it for its process


@pytest.mark.usefixtures("commands_log_nothing")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.real
def test_old_data_folder_is_served_completely(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(folder) as packed:
        packed.extractall(tmp_path, filter="data")
    segments = "segments" in folder.name
    lost_bucket = {"tier.missing.action": "serve"} if "tiered" in folder.name else {}
    with BrokerProcess(tmp_path, settings=lost_bucket) as broker:
        for topic in TOPICS:
            count = 50 if segments and topic == "plain" else 40
            for partition in (0, 1):
                read = Typed(
                    broker.bootstrap, "consume", topic, "--partition", f"{partition}", "--json"
                )
                assert [(row["offset"], row["key"], row["value"]) for row in read.lines] == [
                    (at, f"k{n}", f"{topic} {n}") for at, n in enumerate(range(partition, count, 2))
                ]
            settings = Typed(
                broker.bootstrap, "configs", "describe", "--topic", topic, "--json"
            ).json
            # The second has a default that Kafka stores for all brokers (KIP-966).
            assert {row["name"]: row["value"] for row in settings} == {
                "retention.ms": "-1", "min.insync.replicas": "1",
            }  # fmt: skip
        rest = Typed(
            broker.bootstrap, "consume", "plain", "--from", "resume", "--group", "g",
            "--partition", "0", "--limit", "1", "--json",
        )  # fmt: skip
        assert [row["offset"] for row in rest.lines] == [7]
        if "transactions" in folder.name:
            check_transactions(broker.bootstrap)
    assert Typed("", "fsck", "--data", str(tmp_path), "--json").code == 0


def check_transactions(bootstrap: str) -> None:
    """Committed records are read, and the open transaction is still open."""
    found = Typed(bootstrap, "transactions", "list", "--json").json
    states = {row["transactional_id"]: row["state"] for row in found}
    assert states == {"done": "CompleteCommit", "open": "Ongoing"}
    for partition in (0, 1):
        read = Typed(
            bootstrap, "consume", "ledger", "--partition", f"{partition}", "--json",
            "--isolation-level", "read_committed",
        )  # fmt: skip
        values = [row["value"] for row in read.lines]
        assert values == [f"True {n}" for n in (partition, partition + 2)] * 2


def test_golden_folders_exist() -> None:
    assert len(FOLDERS) >= 5
