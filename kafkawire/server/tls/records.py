"""Borders of TLS records in a stream of bytes. Pure."""

from __future__ import annotations

from kafkawire.codec.types import Buffer

HANDSHAKE = 22
"""Type of the first record of every client."""
HEADER_BYTES = 5
RECORD_BYTES = 16 << 10
"""Maximum data of a record."""
LENGTH_MAX = RECORD_BYTES + 2048
"""Maximum length in a record's header: that of TLS 1.2; 1.3 allows 256 bytes more than data."""


class TlsRecordError(ValueError):
    """The bytes are no TLS records."""


class Records:
    """Finds the end of each record. `incomplete`: the bytes so far end inside of a record."""

    __slots__ = ("_header", "_missing", "incomplete")

    def __init__(self) -> None:
        self._missing = 0  # bytes of the current record
        self._header = b""  # of the next one, incomplete
        self.incomplete = False

    def piece(self, data: Buffer, at: int, end: int) -> int:
        """Return where the piece at `at` ends that belongs to one record. Raises TlsRecordError."""
        missing = self._missing
        if not missing:
            if self._header or end - at < HEADER_BYTES:
                return self._header_piece(data, at, end)
            missing = HEADER_BYTES + _length(data[at + 3], data[at + 4])
        stop = at + missing
        if stop <= end:
            self._missing = 0
            self.incomplete = False
            return stop
        self._missing = stop - end
        self.incomplete = True
        return end

    def _header_piece(self, data: Buffer, at: int, end: int) -> int:
        stop = min(end, at + HEADER_BYTES - len(self._header))
        self._header += bytes(data[at:stop])
        self.incomplete = True
        if len(self._header) == HEADER_BYTES:
            self._missing = _length(self._header[3], self._header[4])
            self._header = b""
            self.incomplete = self._missing > 0
        return stop

    def skip(self, data: Buffer) -> bool:
        """Pass over these bytes; return whether a record ends in them. Raises TlsRecordError."""
        at, found = 0, False
        while at < len(data):
            at = self.piece(data, at, len(data))
            found = found or not self.incomplete
        return found


def _length(high: int, low: int) -> int:
    length = high << 8 | low
    if length > LENGTH_MAX:
        raise TlsRecordError(f"a TLS record of {length} bytes")
    return length
