/* Produce requests and their answers.
 *
 * Checked: correlation order (engine), error codes, that the answer names the partitions asked for,
 * and that the base offsets of each partition are, all together, start, start+R, start+2R, ...
 * without a gap or a repeat: one bit per batch. With acks=0 there are no answers; the run ends when
 * the log ends where it must. */
#include <stdlib.h>
#include <unistd.h>

#include "load.h"

/* Requests up to this size are kept whole in each slot; above it the batch is shared. */
enum { COPY_MAX = 32 << 10 };

typedef struct Track { /* which batches of a partition were acked */
    uint64_t *bits;
    int64_t words, count, last;
} Track;

typedef struct Produce {
    Batches batches;
    int64_t *start;
    Track *tracks;
    long next_partition, next_batch;
    size_t index_at; /* of the first partition's index, in a request */
    uint64_t sent, sent_bytes; /* since the process began */
} Produce;

static void prepare(Job *job) {
    Produce *p = job->state = alloc(sizeof *p);
    Options *o = &job->o;
    if (o->per_request > o->partitions) o->per_request = o->partitions;
    p->batches = batches_make(o);
    p->start = net_offsets(job->run, o->topic, o->partitions, -1);
    p->tracks = alloc((size_t)o->partitions * sizeof *p->tracks);
    for (long i = 0; i < o->partitions; i++) p->tracks[i].last = -1;
}

static size_t put_request(Job *job, uint8_t *at, const Batch *b, bool whole) {
    Produce *p = job->state;
    Writer w = w_begin_as(at, PRODUCE, PRODUCE_V, 0, job->o.client);
    w16(&w, -1); /* transactional id */
    w16(&w, (int16_t)job->o.acks), w32(&w, 30000);
    w32(&w, 1), wstr(&w, job->o.topic), w32(&w, (int32_t)job->o.per_request);
    p->index_at = (size_t)(w.p - w.base);
    for (long i = 0; i < job->o.per_request; i++) {
        w32(&w, 0), w32(&w, (int32_t)b->len);
        if (whole) wraw(&w, b->bytes, b->len);
    }
    return w_end(&w);
}

static void open_slots(Job *job, Conn *c) {
    Produce *p = job->state;
    for (uint32_t i = 0; i <= c->mask; i++) {
        Slot *s = &c->slots[i];
        const Batch *b = &p->batches.items[p->next_batch++ % p->batches.count];
        size_t entries = (size_t)job->o.per_request * (b->len + 8);
        bool whole = job->o.per_request > 1 || entries <= COPY_MAX;
        s->bytes = alloc(192 + strlen(job->o.topic) + (whole ? entries : 8));
        s->len = put_request(job, s->bytes, b, whole);
        s->payload = (size_t)job->o.per_request * b->len;
        if (whole) continue;
        s->body = b->bytes, s->body_len = b->len;
        put32(s->bytes, (uint32_t)(s->len + s->body_len - 4));
    }
}

static void fill(Conn *c, Slot *s) {
    Produce *p = c->job->state;
    const Options *o = &c->job->o;
    s->partition = (int32_t)p->next_partition;
    uint8_t *at = s->bytes + p->index_at;
    for (long i = 0; i < o->per_request; i++) {
        put32(at, (uint32_t)((p->next_partition + i) % o->partitions));
        size_t len = get32(at + 4);
        if (o->stamp) batch_stamp(at + 8, s->start_ns, len);
        at += 8 + len;
    }
    p->next_partition = (p->next_partition + o->per_request) % o->partitions;
    p->sent++, p->sent_bytes += s->payload;
}

static void mark(Job *job, int32_t partition, int64_t base) {
    Produce *p = job->state;
    Track *t = &p->tracks[partition];
    int64_t past = base - p->start[partition], k = past / job->o.records;
    if (past < 0 || past % job->o.records || k >= (int64_t)1 << 32) {
        job_error(job, "partition %d: base offset %ld after start %ld", partition, base,
                  p->start[partition]);
        return;
    }
    if (k / 64 >= t->words) {
        int64_t words = k / 64 * 2 + 2;
        t->bits = realloc(t->bits, (size_t)words * 8);
        if (!t->bits) die("out of memory for %ld offsets", words * 64);
        memset(t->bits + t->words, 0, (size_t)(words - t->words) * 8);
        t->words = words;
    }
    uint64_t bit = 1ull << (k % 64);
    if (t->bits[k / 64] & bit)
        job_error(job, "partition %d: offset %ld given twice", partition, base);
    t->bits[k / 64] |= bit;
    t->count++;
    if (k > t->last) t->last = k;
}

static void answer(Conn *c, Slot *s, Reader *r, int64_t now) {
    Job *job = c->job;
    const Options *o = &job->o;
    uint64_t stored = 0;
    int length;
    for (int32_t topics = rcount(r, 6); topics > 0; topics--) {
        const char *name = rstr(r, &length);
        if ((size_t)length != strlen(o->topic) || memcmp(name, o->topic, (size_t)length))
            job_error(job, "an answer for topic %.*s", length, name);
        for (int32_t i = rcount(r, 30); i > 0; i--) {
            int32_t index = r32(r), error = r16(r);
            int64_t base = r64(r);
            r_skip(r, 16); /* log append time, log start offset */
            if (r->bad) return;
            if (index < 0 || (index - s->partition + o->partitions) % o->partitions >= o->per_request)
                job_error(job, "an answer for partition %d", index);
            else if (error) job_error(job, "partition %d: error %d", index, error);
            else mark(job, index, base), stored++;
        }
    }
    if (r->bad) return;
    if (stored != (uint64_t)o->per_request)
        job_error(job, "%lu of %ld partitions stored", stored, o->per_request);
    job_count(job, 1, stored * (uint64_t)o->records, s->payload, s->start_ns, now);
}

/* acks=0: everything sent must appear; the clock stops when it has. */
static void wait_for_end(Job *job) {
    Produce *p = job->state;
    const Options *o = &job->o;
    uint64_t wanted = p->sent * (uint64_t)(o->per_request * o->records), found = 0;
    int64_t limit = now_ns() + 60 * (int64_t)1000000000;
    while (now_ns() < limit) {
        int64_t *ends = net_offsets(job->run, o->topic, o->partitions, -1);
        found = 0;
        for (long i = 0; i < o->partitions; i++) found += (uint64_t)(ends[i] - p->start[i]);
        free(ends);
        if (found >= wanted) break;
        usleep(2000);
    }
    window_close(job->run);
    job->begin_ns = job->run->begin_ns, job->end_ns = now_ns();
    job->requests = p->sent, job->records = found, job->bytes = p->sent_bytes;
    if (found != wanted) job_error(job, "%lu records in the log, %lu were sent", found, wanted);
}

static void finish(Job *job) {
    Produce *p = job->state;
    if (job->o.acks == 0) {
        wait_for_end(job);
        return;
    }
    for (long i = 0; i < job->o.partitions; i++) {
        Track *t = &p->tracks[i];
        if (t->count != t->last + 1)
            job_error(job, "partition %ld: %ld batches acked, the last at place %ld", i, t->count,
                      t->last);
    }
}

const Mode produce_mode = {"produce", prepare, open_slots, fill, answer, finish, false};

static void nothing(Job *job) { (void)job; }
static void open_idle(Job *job, Conn *c) { (void)job, free(c->slots), c->slots = NULL; }

/* Connections that say nothing: what they cost the broker. Their job ends with the others. */
const Mode idle_mode = {"idle", nothing, open_idle, NULL, NULL, nothing, true};
