"""List the batches of a chunk, verify their records and find their fields, in compiled loops.

`list_batches` fills a table of batches; `note` verifies the records of listed batches and fills a
table with a block of rows for `gather` to copy. numba checks no bounds, so each read is preceded by
a bounds check. Importing loads the compiled code from numba's cache, or compiles it, which takes
some seconds once per machine.
"""

from __future__ import annotations

from numba import njit, types

from kafkawire.codec.compiled import (
    ATTRIBUTES_AT,
    BAD,
    COUNT_AT,
    HEAD_BYTES,
    LAST_DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    PREFIX_BYTES,
    byte,
    compile_for,
    get,
    put,
    read_field,
    read_int32,
    read_int64,
    read_record,
    read_varint,
)

# Columns of the table of batches.
POSITION, FROM, STOP, BASE, LAST, ATTRIBUTES, TIME, PRODUCER, COUNT = range(9)
TABLE_FIELDS = 9

# Why the loop stopped.
ALL, OVER, CUT, LENGTH, MAGIC, ORDER, BEYOND = range(7)

_MAGIC, _LOG_APPEND_TIME = 2, 0x08
_ROW_BYTES = 8 * TABLE_FIELDS
_OFFSETS_MAX = 1 << 62  # so that no sum overflows


@compile_for(types.UniTuple(types.int64, 4)(*[types.int64] * 8))
def list_batches(
    data: int, size: int, pos: int, floor: int, upto: int, end: int, table: int, most: int
) -> tuple[int, int, int, int]:
    """List the whole batches from `pos` on of the `size` bytes at the address `data`, as the rows
    of a table at the address `table`, at most `most`.

    No batch may begin below `floor` or end beyond `upto`; those from `end` on are not read. Returns
    their number, the position of the next one, why it stopped, and their attributes, or-ed.
    """
    n = attributes = 0
    while n < most and pos < size:
        if size - pos < HEAD_BYTES:
            return n, pos, CUT, attributes
        length = read_int32(data, pos + LENGTH_AT)
        if length < HEAD_BYTES - PREFIX_BYTES:
            return n, pos, LENGTH, attributes
        if byte(data, pos + MAGIC_AT) != _MAGIC:
            return n, pos, MAGIC, attributes
        if length > size - pos - PREFIX_BYTES:
            return n, pos, CUT, attributes
        base, delta = read_int64(data, pos), read_int32(data, pos + LAST_DELTA_AT)
        if base < floor or base >= _OFFSETS_MAX or delta < 0:
            return n, pos, ORDER, attributes
        if base >= end:
            return n, pos, OVER, attributes
        if base + delta >= upto:
            return n, pos, BEYOND, attributes
        flags = byte(data, pos + ATTRIBUTES_AT + 1)
        row = table + n * _ROW_BYTES
        put(row, POSITION, pos)
        put(row, FROM, pos + HEAD_BYTES)
        put(row, STOP, pos + PREFIX_BYTES + length)
        put(row, BASE, base)
        put(row, LAST, base + delta)
        put(row, ATTRIBUTES, flags)
        put(row, TIME, read_int64(data, pos + (35 if flags & _LOG_APPEND_TIME else 27)))
        put(row, PRODUCER, read_int64(data, pos + 43))
        put(row, COUNT, read_int32(data, pos + COUNT_AT))
        pos += PREFIX_BYTES + length
        attributes |= flags
        floor = base + delta + 1
        n += 1
    return n, pos, ALL, attributes


# The state that `note` keeps between calls.
(
    BATCH,  # current row of the table
    INDEX,  # finished records of that batch, if it is returned in parts
    AT,  # position of the next record
    DELTA,  # offset delta of the last record
    ROWS,  # rows in the columns
    ROOM,  # bytes of records that still fit into the columns
    CURSOR,  # offsets of the range below are accounted for
    END,  # of the range
    LISTING,  # whether gaps are listed, or only counted
    GAPS_ROOM,  # of the list
    LISTED,  # number of gaps
    NOTED,  # noted rows, which fit into the columns
    NEED,  # bytes of the record that exceeds ROOM, or number of the damaged record
    COUNTED,  # offsets of gaps that are not in the list, one for each reason
) = range(14)
REASONS = 3
STATE_FIELDS = COUNTED + REASONS
GAP_CONTROL, GAP_ABORTED, GAP_COMPACTED = range(REASONS)

# Why `note` stopped; from RECORD on: a fault of the current batch.
DONE, PART, FULL, GAPS, SKIPPED, RECORD, DELTAS, LEFT = range(8)

# Notes of a row: the positions of its fields, and their lengths (-1: null).
KEY_AT, KEY_LENGTH, VALUE_AT, VALUE_LENGTH, HEADERS_AT, HEADERS, OFFSET, TIME_US, KIND = range(9)
NOTE_FIELDS = 9

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999: Spark's range
_BATCH_BYTES, NOTE_BYTES, _ABORTED_BYTES = 8 * TABLE_FIELDS, 8 * NOTE_FIELDS, 8 * 3


@njit
def _skip_headers(data: int, at: int, stop: int, count: int) -> int:
    if count < 0 or count > stop - at:
        return BAD
    for _ in range(count):
        _, length, at = read_field(data, at, stop)
        if length < 0 or at == BAD:
            return BAD
        _, _, at = read_field(data, at, stop)
    return at


@njit
def _micros(base: int, delta: int) -> int:
    """Return base + delta ms as microseconds, clamped to the years of Spark."""
    ms = base + delta
    if ((base ^ ms) & (delta ^ ms)) < 0:  # it overflowed
        ms = base
    return min(max(ms, _FIRST_MS), _LAST_MS) * 1000


@njit(forceinline=True)
def _walk(
    data: int, batch: int, state: int, at: int, index: int, delta: int, notes: int, n: int,
    most: int, room: int,
) -> tuple[int, int, int, int, int, int]:  # fmt: skip
    """Verify records of a batch from its `index`th at `at` on; note those in the range.

    Stops after the last record; after `most` notes: PART; if a record has more bytes than `room`:
    FULL. Returns the state to continue with, (at, index, delta, n, room), and why it stopped.
    """
    stop, count, base = get(batch, STOP), get(batch, COUNT), get(batch, BASE)
    time, kind = get(batch, TIME), get(batch, ATTRIBUTES) >> 3 & 1
    last_delta, low, end = get(batch, LAST) - base, get(state, CURSOR), get(state, END)
    while index < count:
        if n == most:
            return at, index, delta, n, room, PART
        start = at
        finish, shift, moved, key_at, key_length, at = read_record(data, start, stop)
        if finish == BAD:
            return at, index, delta, n, room, RECORD
        if finish - start > room:
            put(state, NEED, finish - start)
            return start, index, delta, n, room, FULL
        value_at, value_length, at = read_field(data, at, finish)
        headers, at = read_varint(data, at, finish)
        headers_at = at
        if headers:
            at = _skip_headers(data, at, finish, headers)
        if at != finish:
            return at, index, delta, n, room, RECORD
        if moved <= delta or moved > last_delta:
            return at, index, delta, n, room, DELTAS
        index, delta, offset = index + 1, moved, base + moved
        if low <= offset < end:
            room -= finish - start
            note = notes + n * NOTE_BYTES
            n += 1
            put(note, KEY_AT, key_at)
            put(note, KEY_LENGTH, key_length)
            put(note, VALUE_AT, value_at)
            put(note, VALUE_LENGTH, value_length)
            put(note, HEADERS_AT, headers_at)
            put(note, HEADERS, headers)
            put(note, OFFSET, offset)
            put(note, TIME_US, _micros(time, 0 if kind else shift))
            put(note, KIND, kind)
    return at, index, delta, n, room, DONE if at == stop and count >= 0 else LEFT


@njit
def _wrong_in(data: int, batch: int, state: int, notes: int, block: int) -> tuple[int, int]:
    """Verify a batch that will be returned in parts: DONE, or the fault and its record."""
    at, index, delta, why = get(batch, FROM), 0, -1, PART
    while why == PART:
        at, index, delta, _, _, why = _walk(
            data, batch, state, at, index, delta, notes, 0, block, BAD
        )
    return why, index


@njit
def _gap(state: int, gaps: int, upto: int, reason: int) -> None:
    """Record that offsets from the cursor to `upto` have no row."""
    upto, cursor = min(upto, get(state, END)), get(state, CURSOR)
    if upto <= cursor:
        return
    n = get(state, LISTED)
    if get(state, LISTING) and n < get(state, GAPS_ROOM):
        put(gaps, 3 * n, cursor)
        put(gaps, 3 * n + 1, upto)
        put(gaps, 3 * n + 2, reason)
        put(state, LISTED, n + 1)
    else:
        put(state, COUNTED + reason, get(state, COUNTED + reason) + upto - cursor)
    put(state, CURSOR, upto)


@njit
def _account(state: int, gaps: int, notes: int, first: int, n: int) -> None:
    """Account for offsets: those noted from `first` on have rows, those between them have none."""
    if first == n:
        return
    last = get(notes + (n - 1) * NOTE_BYTES, OFFSET)
    if last - get(state, CURSOR) != n - 1 - first:
        for i in range(first, n):
            _gap(state, gaps, get(notes + i * NOTE_BYTES, OFFSET), GAP_COMPACTED)
            put(state, CURSOR, get(state, CURSOR) + 1)
    put(state, CURSOR, last + 1)


@njit
def _is_aborted(aborted: int, size: int, producer: int, offset: int) -> bool:
    """Return whether one of the `size` sorted (producer id, first, last offset) at `aborted`
    contains it."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        known = get(aborted, 3 * middle)
        if known < producer or (known == producer and get(aborted, 3 * middle + 1) <= offset):
            low = middle + 1
        else:
            high = middle
    found = aborted + _ABORTED_BYTES * (low - 1)
    return low > 0 and get(found, 0) == producer and offset <= get(found, 2)


@njit
def _reason_to_skip(batch: int, aborted: int, size: int) -> int:
    """Return GAP_CONTROL, GAP_ABORTED, or -1 if the records are data."""
    flags = get(batch, ATTRIBUTES)
    if flags & _CONTROL:
        return GAP_CONTROL
    if flags & _TRANSACTIONAL and _is_aborted(
        aborted, size, get(batch, PRODUCER), get(batch, BASE)
    ):
        return GAP_ABORTED
    return -1


@njit
def _begin(
    data: int, batch: int, reason: int, notes: int, block: int, gaps: int, state: int, most: int
) -> int:
    """Start a batch: DONE (its records are next); SKIPPED, with the reason; why it must wait; or
    its fault."""
    if get(state, LISTED) > get(state, GAPS_ROOM) // 2:
        return GAPS
    if reason >= 0:
        _gap(state, gaps, get(batch, BASE), GAP_COMPACTED)
        _gap(state, gaps, get(batch, LAST) + 1, reason)
        return SKIPPED
    noted, count = get(state, NOTED), get(batch, COUNT)
    if noted and noted + count > block:
        return PART
    rows = get(state, ROWS) + noted
    fits = count <= most - rows and get(batch, STOP) - get(batch, FROM) <= get(state, ROOM)
    if not fits and rows:
        put(state, NEED, 0)
        return FULL
    if not fits or count > block:  # it will be returned in parts, so it is verified first
        why, index = _wrong_in(data, batch, state, notes, block)
        if why != DONE:
            put(state, NEED, index)
            return why
    put(state, AT, get(batch, FROM))
    put(state, DELTA, -1)
    return DONE


@njit
def _go_on(data: int, batch: int, notes: int, block: int, gaps: int, state: int, most: int) -> int:
    """Continue with the records of a batch: DONE, PART, FULL or its fault."""
    first = get(state, NOTED)
    at, index, delta, n, room, why = _walk(
        data, batch, state, get(state, AT), get(state, INDEX), get(state, DELTA), notes, first,
        min(block, most - get(state, ROWS)), get(state, ROOM),
    )  # fmt: skip
    if why >= RECORD:
        put(state, NEED, index)
        return why
    _account(state, gaps, notes, first, n)
    put(state, NOTED, n)
    put(state, ROOM, room)
    if why == DONE:
        put(state, INDEX, 0)
        return DONE
    put(state, AT, at)
    put(state, INDEX, index)
    put(state, DELTA, delta)
    return FULL if why == FULL or get(state, ROWS) + n == most else PART


@compile_for(types.int64(*[types.int64] * 10))
def note(
    data: int, table: int, stop: int, aborted: int, aborted_size: int, notes: int, block: int,
    gaps: int, state: int, most: int,
) -> int:  # fmt: skip
    """Note the rows of batches state[BATCH] to `stop` of `table`, whose records are at `data`.

    All arguments are addresses except `stop`, `aborted_size` (the number of sorted (producer id,
    first, last offset) at `aborted`), `block` (capacity of `notes`) and `most` (free rows of the
    columns). Returns DONE; PART: `notes` are full; FULL: the columns are full; GAPS: the list of
    gaps is full. The caller takes the notes before it continues. Otherwise the fault of the current
    batch, of which nothing was noted (state[NEED]: the record).
    """
    row = get(state, BATCH)
    while row < stop:
        batch = table + row * _BATCH_BYTES
        why = DONE if get(state, INDEX) else SKIPPED
        if why == SKIPPED and get(batch, LAST) >= get(state, CURSOR):
            reason = _reason_to_skip(batch, aborted, aborted_size)
            why = _begin(data, batch, reason, notes, block, gaps, state, most)
        if why == DONE:
            why = _go_on(data, batch, notes, block, gaps, state, most)
        if why != DONE and why != SKIPPED:
            return why
        _gap(state, gaps, get(batch, LAST) + 1, GAP_COMPACTED)
        row += 1
        put(state, BATCH, row)
    return DONE
