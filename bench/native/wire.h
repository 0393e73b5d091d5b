/* Big-endian fields of the Kafka protocol: writing into a buffer that is known to be large enough,
 * and a bounds-checked reader whose `bad` flag, once set, stays set (so callers check it once).
 * Only versions without flexible fields are spoken here, so strings and arrays have plain lengths. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline void put16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
static inline void put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void put64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}
static inline uint16_t get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

/* Appending writer; the caller sized the buffer. */
typedef struct Writer {
    uint8_t *base, *p;
} Writer;

static inline void w16(Writer *w, int16_t v) { put16(w->p, (uint16_t)v), w->p += 2; }
static inline void w32(Writer *w, int32_t v) { put32(w->p, (uint32_t)v), w->p += 4; }
static inline void w64(Writer *w, int64_t v) { put64(w->p, (uint64_t)v), w->p += 8; }
static inline void wraw(Writer *w, const void *s, size_t n) { memcpy(w->p, s, n), w->p += n; }
static inline void wstr(Writer *w, const char *s) {
    size_t n = strlen(s);
    w16(w, (int16_t)n);
    wraw(w, s, n);
}
/* Request header v1: size (filled in by w_end), API key, version, correlation id, client id. */
static inline Writer w_begin_as(uint8_t *buf, int16_t key, int16_t version, uint32_t id,
                                const char *client) {
    Writer w = {buf, buf + 4};
    w16(&w, key), w16(&w, version), w32(&w, (int32_t)id), wstr(&w, client);
    return w;
}
static inline Writer w_begin(uint8_t *buf, int16_t key, int16_t version, uint32_t id) {
    return w_begin_as(buf, key, version, id, "bench");
}
static inline size_t w_end(Writer *w) {
    size_t n = (size_t)(w->p - w->base);
    put32(w->base, (uint32_t)(n - 4));
    return n;
}
enum { CORRELATION_AT = 8 }; /* from the start of the frame, its size included */

typedef struct Reader {
    const uint8_t *p, *end;
    bool bad;
} Reader;

static inline const uint8_t *r_skip(Reader *r, int64_t n) {
    static const uint8_t nothing[8];
    if (r->bad || n < 0 || r->end - r->p < n) {
        r->bad = true;
        return nothing;
    }
    const uint8_t *p = r->p;
    r->p += n;
    return p;
}
static inline int16_t r16(Reader *r) { return (int16_t)get16(r_skip(r, 2)); }
static inline int32_t r32(Reader *r) { return (int32_t)get32(r_skip(r, 4)); }
static inline int64_t r64(Reader *r) { return (int64_t)get64(r_skip(r, 8)); }
/* A nullable string: sets *n to its length, 0 for null. */
static inline const char *rstr(Reader *r, int *n) {
    *n = r16(r);
    if (*n < 0) *n = 0;
    return (const char *)r_skip(r, *n);
}
/* An array's count; every element has at least `least` bytes. Null counts as empty. */
static inline int32_t rcount(Reader *r, int least) {
    int32_t n = r32(r);
    if (n > 0 && (r->end - r->p) / least < n) r->bad = true;
    return r->bad || n < 0 ? 0 : n;
}

#endif
