"""Borders of TLS records; tests/server/test_tls_wire.py uses them with OpenSSL.

Covers: kafkawire.server.tls.listeners
"""

from __future__ import annotations

import pytest

from kafkawire.server.tls.records import LENGTH_MAX, Records, TlsRecordError


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 7, 11, 1000])
def test_every_border_is_found(step: int) -> None:
    sizes = [0, 1, 0, 300, 5, LENGTH_MAX]
    data = b"".join(map(record, sizes))
    records, ends = Records(), []
    for start in range(0, len(data), step):
        at, end = start, min(start + step, len(data))
        while at < end:
            at = records.piece(data, at, end)
            if not records.incomplete:
                ends.append(at)
    wanted, at = [], 0
    for size in sizes:
        at += 5 + size
        wanted.append(at)
    assert ends == wanted


def test_too_long_a_record_is_refused_before_its_bytes_arrive() -> None:
    for step in (1, 5):
        records = Records()
        head = record(LENGTH_MAX + 1)[:5]
        for at in range(0, 5 - step, step):
            records.skip(head[at : at + step])
        with pytest.raises(TlsRecordError, match=str(LENGTH_MAX + 1)):
            records.skip(head[5 - step :])
