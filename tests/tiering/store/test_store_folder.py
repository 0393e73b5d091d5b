"""A folder of a store: its keys, and nothing but those."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.objectstore.errors import ConditionFailed
from kafkawire.objectstore.port import FileRange
from kafkawire.tiering.store.port import ObjectPart
from kafkawire.tiering.store.store_folder import StoreFolder, whole_store
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import BUCKETS, FakeStore


async def test_all_calls_are_for_keys_in_the_folder(tmp_path: Path) -> None:
    bucket, file = FakeBucket(), tmp_path / "file"
    whole = FakeStore(bucket)
    folder = StoreFolder(whole, "nodes/2")
    file.write_bytes(b"file")
    for key in ("owner", "nodes/20/k", "nodes/3/k"):
        await whole.put(key, b"other")
    stored = await folder.put("owner", b"own", if_absent=True)
    assert await folder.get("owner") == (b"own", stored.etag)
    with pytest.raises(ConditionFailed):
        await folder.put("owner", b"", if_match="other")
    await folder.put_ranges("log/a", b"head", [FileRange(str(file), 1, 2)])
    assert await folder.get("log/a") == (b"headil" + bytes(6), (await folder.head("log/a")).etag)
    await folder.delete(["log/a"])
    await folder.upload("segments/b", str(file))
    assert (await folder.head("segments/b")).size_bytes == 4
    await folder.read("segments/b", [ObjectPart(1, 3, 0)])
    assert bytes(whole.memory[:3]) == b"ile"
    await folder.download("segments/b", f"{file}-2")
    assert file.with_name("file-2").read_bytes() == b"file"
    BUCKETS["fake://source"] = FakeBucket()
    BUCKETS["fake://source"].store("k", b"far")
    await folder.copy_from("fake://source", "segments/c", 3, "k")
    del BUCKETS["fake://source"]
    assert [row.key for row in await folder.list("")] == ["owner", "segments/b", "segments/c"]
    assert [row.key for row in await folder.list("segments/", "segments/b")] == ["segments/c"]
    assert [row.key for row in await folder.list("segments/", "", 1)] == ["segments/b"]
    await folder.delete(["segments/b", "owner"])
    assert sorted(bucket.objects) == ["nodes/2/segments/c", "nodes/20/k", "nodes/3/k", "owner"]
    await folder.close()
    assert not whole.closed
    assert whole_store(folder) == (whole, "nodes/2/")
    assert whole_store(whole) == (whole, "")
