"""The origin of a segment: the cluster and topics of its records, written by every job.

Covers: kafkawire.log.segments.file.origin.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    Origin,
    TopicOrigin,
    read_origin,
)
from kafkawire.codec.segment.origin import write_origin
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import (
    Input,
    JobOrigin,
    Keep,
    RewriteArguments,
    SegmentOutput,
    find_job,
    pack,
)
from kafkawire.log.io.worker_jobs import no_pace as none
from kafkawire.log.segments.store.segment_store import Segment
from tests.kit.log.compacted import clean, cut_all, fill, started
from tests.kit.log.logs import World
from tests.kit.log.segments import (
    FOLDER,
    Part,
    batch,
    cutting,
    everything,
    journal,
    output,
    read,
    segment,
    topic_id,
    wanted,
    write,
)
from tests.kit.memfs import MemFileSystem

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "segment-v1-origin.segment"
TOPICS = [TopicOrigin(topic_id(n), n, 7 * n, n == 4, {"retention.ms": str(n)}) for n in (3, 4, 9)]
ORDER = JobOrigin("the-cluster", pack(TOPICS))

texts = st.text(max_size=40)
topics = st.builds(
    TopicOrigin,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.dictionaries(texts, texts, max_size=4),
)
origins = st.builds(
    Origin, texts, st.integers(0, 2**32 - 1), texts, st.lists(topics, max_size=5)
)  # fmt: skip


@given(origins)
def test_origin_round_trips(origin: Origin) -> None:
    assert read_origin(write_origin(origin)) == origin


@pytest.mark.slow
@given(origins, st.data())
@settings(max_examples=10 * settings().max_examples, deadline=None)
def test_garbage_is_refused_with_message(origin: Origin, data: st.DataObject) -> None:
    body = bytearray(write_origin(origin))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        read_origin(body[: data.draw(st.integers(0, len(body)))])


def test_missing_and_extra_topics_are_reported() -> None:
    body = write_origin(Origin("c", 1, "keep", TOPICS))
    for cut in range(len(body)):
        with pytest.raises(FormatError):
            read_origin(body[:cut])
    with pytest.raises(FormatError, match="does not end where its last topic does"):
        read_origin(body + b"\0")
    with pytest.raises(FormatError, match="has a text that is none"):
        read_origin(body.replace(b"keep", b"\xff\xfe\xfd\xfc"))


@pytest.fixture
def fs() -> MemFileSystem:
    made = MemFileSystem()
    made.makedirs(FOLDER)
    return made


def origin_of(fs: FileSystem, path: str) -> Origin | None:
    return everything(read(fs, path)).origin


def test_cut_writes_origin_of_topics_of_each_segment(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)]), (4, [batch(0)]), (5, [batch(0)])])
    outputs = [output(1, 3, 5), output(2, 4)]
    outputs[1].generation, outputs[1].retention_class = 2, "keep/local/ever"
    job = cutting([file], [wanted(n, 0, 1) for n in (3, 4, 5)], outputs)
    job.origin = ORDER
    find_job("cut")(fs, job, none)
    # The topic of 5 is unknown: it was deleted meanwhile.
    assert origin_of(fs, outputs[0].path) == Origin("the-cluster", 0, "", [TOPICS[0]])
    other = Origin("the-cluster", 2, "keep/local/ever", [TOPICS[1]])
    assert origin_of(fs, outputs[1].path) == other


def test_no_origin_without_request(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [batch(0)])])
    find_job("cut")(fs, cutting([file], [wanted(3, 0, 1)], [output(1, 3)]), none)
    assert origin_of(fs, output(1).path) is None


def test_rewrite_writes_new_origin(fs: MemFileSystem) -> None:
    path = f"{FOLDER}/{bytes([1] * 16).hex()}.segment"
    old = Origin("another", 1, "x", [TopicOrigin(topic_id(3), 1, 1)])
    write(fs, path, segment([Part(3, [batch(0)])], bytes([1] * 16), origin=old))
    into = SegmentOutput(output(9).path, output(9).uuid, [], 2, "keep")
    arguments = RewriteArguments(
        1, 6, [Input(path, b"", pack([Keep(3, 0, 1, 0)]))], into, ORDER
    )  # fmt: skip
    find_job("rewrite")(fs, arguments, none)
    assert origin_of(fs, into.path) == Origin("the-cluster", 2, "keep", [TOPICS[0]])


def said_by(world: World) -> list[tuple[int, Origin]]:
    """(generation of the row, origin) of every segment a broker has."""
    store = world.log.segments.store
    found = []
    for each in store.by_id.values():
        origin = origin_of(world.fs, Segment(each.row, store.folder).path)
        assert origin is not None
        assert (origin.generation, origin.retention_class) == (
            each.row.generation, each.row.retention_class,
        )  # fmt: skip
        found.append((each.row.generation, origin))
    return sorted(found, key=lambda pair: pair[0])


async def test_broker_writes_origin_when_cutting_and_cleaning() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact")
    await world.topic("beside", 3)
    await fill(partition, 20)
    await cut_all(world)
    info = world.catalog.by_name["t"]
    topic = TopicOrigin(info.id, 1, info.created_ms, False, {"cleanup.policy": "compact"})
    for generation, origin in said_by(world):
        assert (generation, origin.cluster_id) == (0, world.catalog.cluster_id)
        assert origin.topics == [topic]
    await clean(world)
    newest, origin = said_by(world)[-1]
    assert newest == 1, "the cleaned segment takes precedence over its source"
    assert origin.topics == [topic]
    await world.log.close()


def test_dump_shows_origin() -> None:
    text = CliRunner().invoke(app, ["dump", str(GOLDEN)]).output
    assert "cluster abcdefghijklmnopqrstuv, generation 3, retention class compact/tiered" in text
    assert "cleanup.policy=compact" in text
    lines = CliRunner().invoke(app, ["dump", str(GOLDEN), "--json"]).output.splitlines()
    assert '"generation": 3' in "".join(lines)
    assert '"cleanup.policy": "compact"' in "".join(lines)


def test_dump_reports_damaged_origin(tmp_path: Path) -> None:
    data = bytearray(GOLDEN.read_bytes())
    data[data.index(b"compact/tiered")] ^= 1
    path = tmp_path / "damaged.segment"
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["dump", str(path)])
    assert result.exit_code == 1
    assert "its origin is damaged" in result.output
