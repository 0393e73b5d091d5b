"""Frames are read from a pipe as they were written, and invalid ones are refused."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading

import pytest

from kafkawire.childprocess import frames
from kafkawire.childprocess.frames import FrameError, pack, read_frame, receive, write_frame

SIZES = (0, 1, frames.JOINED_BYTES - 100, frames.JOINED_BYTES + 1, 3 << 20)


def test_frames_round_trip_through_pipe() -> None:
    source, sink = os.pipe()
    messages = [(number, bytes(size)) for number, size in enumerate(SIZES)]

    def write() -> None:
        for message in messages:
            write_frame(sink, *pack(message))
        os.close(sink)

    writer = threading.Thread(target=write)
    writer.start()
    found = [pickle.loads(read_frame(source) or b"") for _ in messages]
    assert found == messages
    assert read_frame(source) is None
    writer.join(60)
    os.close(source)


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\0\5four", b"\xff" * 10])
def test_invalid_frames_are_refused(said: bytes) -> None:
    source, sink = os.pipe()
    os.write(sink, said)
    os.close(sink)
    assert read_frame(source) is None
    os.close(source)


async def test_frames_are_read_from_stream() -> None:
    stream = asyncio.StreamReader()
    stream.feed_data(b"".join(pack("a")) + b"".join(pack(b"b")) + b"\xff" * 4)
    assert [pickle.loads(await receive(stream)) for _ in range(2)] == ["a", b"b"]
    with pytest.raises(FrameError, match="one of 4294967295 bytes"):
        await receive(stream)
    stream.feed_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await receive(stream)


def test_too_large_frame_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    pack(bytes(50))
    with pytest.raises(FrameError, match="is too large: 100 are allowed"):
        pack(bytes(101))
