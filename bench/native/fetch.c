/* Fetch requests and their answers: consumers that read their partitions again and again from the
 * begin (fetch), and one that waits for what comes next and measures its age (tail).
 *
 * Checked: error codes, that each batch starts at the offset the one before it ended at (the first
 * may start earlier: brokers send whole batches), and with crc=1 every batch's CRC-32C. A batch
 * that is cut off at the end of an answer is left for the next request, as Kafka's clients do. */
#include <stdlib.h>

#include "load.h"

typedef struct Fetch {
    int64_t *begin;
    bool tail;
} Fetch;

typedef struct Reading { /* a connection's partitions: first, first+1, ... (modulo all) */
    int64_t *next;
    int32_t first;
    uint64_t records, bytes;
} Reading;

enum { ENTRY = 28 }; /* bytes of a partition in a request: index, epoch, offset, log start, limit */

static void prepare(Job *job) {
    Fetch *f = job->state = alloc(sizeof *f);
    Options *o = &job->o;
    f->tail = job->mode == &tail_mode;
    if (o->per_request > o->partitions) o->per_request = o->partitions;
    o->inflight = 1; /* the next offset is known only from the answer */
    f->begin = net_offsets(job->run, o->topic, o->partitions, f->tail ? -1 : -2);
}

static void open_slots(Job *job, Conn *c) {
    Fetch *f = job->state;
    const Options *o = &job->o;
    Reading *reading = c->state = alloc(sizeof *reading);
    size_t n = (size_t)o->per_request;
    reading->first = (int32_t)((long)c->number * o->per_request % o->partitions);
    reading->next = alloc(n * sizeof *reading->next);
    Slot *s = c->slots;
    s->bytes = alloc(192 + strlen(o->topic) + ENTRY * n);
    Writer w = w_begin_as(s->bytes, FETCH, FETCH_V, 0, o->client);
    w32(&w, -1), w32(&w, (int32_t)o->max_wait_ms), w32(&w, 1), w32(&w, (int32_t)o->max_bytes);
    *w.p++ = 0;              /* read uncommitted */
    w32(&w, 0), w32(&w, -1); /* no fetch session */
    w32(&w, 1), wstr(&w, o->topic), w32(&w, (int32_t)n);
    s->body_len = 0;
    s->payload = (size_t)(w.p - s->bytes); /* where the partitions start */
    for (size_t i = 0; i < n; i++) {
        int32_t index = (int32_t)((reading->first + (long)i) % o->partitions);
        reading->next[i] = f->begin[index];
        w32(&w, index), w32(&w, -1), w64(&w, 0), w64(&w, -1);
        w32(&w, (int32_t)o->partition_max_bytes);
    }
    w32(&w, 0), w16(&w, 0); /* nothing forgotten; rack "" */
    s->len = w_end(&w);
}

static void fill(Conn *c, Slot *s) {
    const Reading *reading = c->state;
    uint8_t *at = s->bytes + s->payload + 8;
    for (long i = 0; i < c->job->o.per_request; i++, at += ENTRY)
        put64(at, (uint64_t)reading->next[i]);
}

/* One whole batch at p; false when it is no such thing. */
static bool batch_seen(Conn *c, const uint8_t *p, size_t len, int64_t *next, bool first,
                       int64_t now) {
    Job *job = c->job;
    Reading *reading = c->state;
    int64_t base = (int64_t)get64(p), end = base + (int32_t)get32(p + 23) + 1;
    if (p[16] != 2 || end <= base) {
        job_error(job, "no batch at offset %ld", *next);
        return false;
    }
    if (first ? base > *next || end <= *next : base != *next)
        job_error(job, "a batch %ld..%ld where offset %ld was due", base, end - 1, *next);
    if (job->o.crc && crc32c(p + 21, len - 21) != get32(p + 17))
        job_error(job, "wrong CRC at offset %ld", base);
    if (((Fetch *)job->state)->tail) {
        int64_t sent = batch_read_stamp(p, len);
        if (sent < 0) job_error(job, "a record without a send time at offset %ld", base);
        else job_count(job, 0, 0, 0, sent, now);
    }
    *next = end;
    reading->records += get32(p + 57), reading->bytes += len;
    return true;
}

static void batches_seen(Conn *c, const uint8_t *p, size_t n, int64_t *next, int64_t now) {
    for (bool first = true; n >= BATCH_HEAD; first = false) {
        int64_t len = (int64_t)(int32_t)get32(p + 8) + 12;
        if (len < BATCH_HEAD) {
            job_error(c->job, "a batch of %ld bytes", len);
            return;
        }
        if ((size_t)len > n || !batch_seen(c, p, (size_t)len, next, first, now)) return;
        p += len, n -= (size_t)len;
    }
}

static void partition_seen(Conn *c, Reader *r, int64_t now) {
    Job *job = c->job;
    Reading *reading = c->state;
    int32_t index = r32(r), error = r16(r);
    int64_t high_watermark = r64(r);
    r_skip(r, 16); /* last stable offset, log start offset */
    for (int32_t aborted = rcount(r, 16); aborted > 0; aborted--) r_skip(r, 16);
    r32(r); /* preferred read replica */
    int32_t n = r32(r);
    if (!r->bad && r->end - r->p < n)
        job_error(job, "partition %d: %d bytes of records announced, %ld there", index, n,
                  (long)(r->end - r->p));
    const uint8_t *p = r_skip(r, n < 0 ? 0 : n);
    if (r->bad) return;
    long place = (index - reading->first + job->o.partitions) % job->o.partitions;
    if (place < 0 || place >= job->o.per_request || error) {
        job_error(job, "partition %d: error %d", index, error);
        return;
    }
    int64_t *next = &reading->next[place];
    if (n > 0) batches_seen(c, p, (size_t)n, next, now);
    if (*next >= high_watermark && job->mode == &fetch_mode)
        *next = ((Fetch *)job->state)->begin[index]; /* hot: once more from the begin */
}

static void answer(Conn *c, Slot *s, Reader *r, int64_t now) {
    Job *job = c->job;
    Reading *reading = c->state;
    int length;
    reading->records = reading->bytes = 0;
    r32(r); /* throttle time */
    int error = r16(r);
    r32(r); /* session id */
    if (error) job_error(job, "Fetch: error %d", error);
    for (int32_t topics = rcount(r, 6); topics > 0; topics--) {
        rstr(r, &length);
        for (int32_t i = rcount(r, 38); i > 0; i--) partition_seen(c, r, now);
    }
    bool timed = job->mode == &fetch_mode;
    job_count(job, 1, reading->records, reading->bytes, timed ? s->start_ns : 0, now);
    if (timed && job->o.bytes && job->bytes >= (uint64_t)job->o.bytes) job->stopped = true;
}

/* A consumer that saw nothing proves nothing. */
static void finish(Job *job) {
    if (!job->records) job_error(job, "no record was read");
}

const Mode fetch_mode = {"fetch", prepare, open_slots, fill, answer, finish, false};
const Mode tail_mode = {"tail", prepare, open_slots, fill, answer, finish, false};
