/* Record batches (magic 2) made before the run: CRC-32C, zig-zag varints, a few variants so that
 * not every batch is the same, and payloads compressed by the harness. Nothing here runs per
 * request except batch_stamp (tail latency), which re-sums one small batch. */
#include <stdlib.h>
#include <time.h>

#include "load.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2"))) static uint32_t crc_hardware(const uint8_t *p, size_t n) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        crc = _mm_crc32_u64(crc, v);
    }
    for (; n; p++, n--) crc = _mm_crc32_u8((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}
static bool has_hardware(void) { return __builtin_cpu_supports("sse4.2"); }
#else
static uint32_t crc_hardware(const uint8_t *p, size_t n) { return (void)p, (void)n, 0; }
static bool has_hardware(void) { return false; }
#endif

static uint32_t crc_table(const uint8_t *p, size_t n) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
            table[i] = c;
        }
    uint32_t crc = 0xFFFFFFFFu;
    for (; n; p++, n--) crc = table[(crc ^ *p) & 255] ^ (crc >> 8);
    return ~crc;
}

uint32_t crc32c(const uint8_t *p, size_t n) {
    return has_hardware() ? crc_hardware(p, n) : crc_table(p, n);
}

static uint8_t *put_varint(uint8_t *p, int64_t value) {
    uint64_t v = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; v >= 128; v >>= 7) *p++ = (uint8_t)(v | 128);
    *p++ = (uint8_t)v;
    return p;
}

static int64_t get_varint(const uint8_t **p, const uint8_t *end) {
    uint64_t v = 0;
    for (int shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t b = *(*p)++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) break;
    }
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

/* Attributes, timestamp delta, offset delta, key null, value, no headers. */
static uint8_t *put_record(uint8_t *p, int delta, const uint8_t *value, size_t n) {
    uint8_t head[32], *h = head;
    *h++ = 0, *h++ = 0;
    h = put_varint(h, delta);
    h = put_varint(h, -1);
    h = put_varint(h, (int64_t)n);
    p = put_varint(p, (h - head) + (int64_t)n + 1);
    memcpy(p, head, (size_t)(h - head)), p += h - head;
    memcpy(p, value, n), p += n;
    *p++ = 0;
    return p;
}

static void sum(uint8_t *batch, size_t len) { put32(batch + 17, crc32c(batch + 21, len - 21)); }

static void put_head(uint8_t *b, size_t len, int codec, long records) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    memset(b, 0, BATCH_HEAD);
    put32(b + 8, (uint32_t)(len - 12));
    put32(b + 12, 0xFFFFFFFFu); /* leader epoch: unknown */
    b[16] = 2;
    put16(b + 21, (uint16_t)codec);
    put32(b + 23, (uint32_t)(records - 1));
    put64(b + 27, ms), put64(b + 35, ms);
    memset(b + 43, 0xFF, 14); /* no producer id, epoch, sequence */
    put32(b + 57, (uint32_t)records);
    sum(b, len);
}

static Batch plain(const Options *o, uint64_t seed) {
    uint8_t *value = alloc((size_t)o->record_bytes + 8);
    Batch batch = {alloc(BATCH_HEAD + (size_t)o->records * ((size_t)o->record_bytes + 32)), 0};
    uint8_t *p = batch.bytes + BATCH_HEAD;
    for (long i = 0; i < o->records; i++) {
        for (long k = 0; k < o->record_bytes; k += 8) { /* xorshift: not to be compressed away */
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            memcpy(value + k, &seed, 8);
        }
        p = put_record(p, (int)i, value, (size_t)o->record_bytes);
    }
    batch.len = (size_t)(p - batch.bytes);
    put_head(batch.bytes, batch.len, 0, o->records);
    free(value);
    return batch;
}

/* Payload file: any number of (length u32 big-endian, compressed records of one batch). */
static Batches from_file(const Options *o) {
    FILE *f = fopen(o->payload, "rb");
    if (!f) die("cannot read the payload file %s", o->payload);
    Batches all = {alloc(256 * sizeof(Batch)), 0};
    uint8_t size[4];
    while (all.count < 256 && fread(size, 1, 4, f) == 4) {
        size_t n = get32(size);
        if (n > 64u << 20) die("payload of %zu bytes in %s", n, o->payload);
        Batch b = {alloc(BATCH_HEAD + n), BATCH_HEAD + n};
        if (fread(b.bytes + BATCH_HEAD, 1, n, f) != n) die("%s ends in a payload", o->payload);
        put_head(b.bytes, b.len, (int)o->codec, o->records);
        all.items[all.count++] = b;
    }
    fclose(f);
    if (!all.count) die("no payload in %s", o->payload);
    return all;
}

Batches batches_make(const Options *o) {
    if (o->payload) return from_file(o);
    Batches all = {alloc((size_t)o->variants * sizeof(Batch)), (int)o->variants};
    for (int i = 0; i < all.count; i++)
        all.items[i] = plain(o, 0x9E3779B97F4A7C15u * (uint64_t)(i + 1));
    return all;
}

/* Where the value of the first record starts; NULL where the batch holds no such thing. */
static const uint8_t *first_value(const uint8_t *batch, size_t len) {
    const uint8_t *p = batch + BATCH_HEAD, *end = batch + len;
    get_varint(&p, end);
    if (p < end) p++;
    get_varint(&p, end), get_varint(&p, end);
    if (get_varint(&p, end) > 0 || get_varint(&p, end) < 8 || end - p < 8) return NULL;
    return p;
}

/* The intended send time goes into the first 8 bytes of the first record's value. */
void batch_stamp(uint8_t *batch, int64_t ns, size_t len) {
    uint8_t *value = (uint8_t *)first_value(batch, len);
    if (!value) die("a stamped record needs 8 bytes");
    put64(value, (uint64_t)ns);
    sum(batch, len);
}

int64_t batch_read_stamp(const uint8_t *batch, size_t len) {
    const uint8_t *value = first_value(batch, len);
    return value ? (int64_t)get64(value) : -1;
}
