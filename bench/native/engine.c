/* The loop: connections, requests in flight, pacing, the time window.
 *
 * Closed loop (rate=0): each connection keeps `inflight` requests under way; latency counts from
 * the send. Open loop (rate=N): request i is meant to leave at begin + i/rate whether or not the
 * broker keeps up, and its latency counts from then, so a stall is charged to every request it
 * delays (no coordinated omission). Answers must come in request order on each connection. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

enum { SEGMENTS = 64, DRAIN_S = 15, OWED_S = 3, FRAME_MAX = 256 << 20 };
static const int64_t SECOND = 1000000000;

int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

void job_error(Job *job, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!job->errors++) vsnprintf(job->first_error, sizeof job->first_error, format, args);
    va_end(args);
    if (job->errors == 1000) die("a thousand errors, the first: %s", job->first_error);
}

void job_count(Job *job, uint64_t requests, uint64_t records, uint64_t bytes, int64_t start,
               int64_t now) {
    if (!job->counting) return;
    job->requests += requests, job->records += records, job->bytes += bytes;
    job->end_ns = now;
    if (start) histogram_add(&job->latency, now - start);
}

static uint32_t in_flight(const Conn *c) { return c->tail - c->head; }

static void want(Conn *c, uint32_t events) {
    if (c->events == events) return;
    struct epoll_event e = {.events = events, .data.ptr = c};
    int what = c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(c->job->run->epoll, what, c->fd, &e) < 0) die("epoll: %s", strerror(errno));
    c->events = events;
}

static void submit(Conn *c, int64_t start) {
    Slot *s = &c->slots[c->tail & c->mask];
    s->id = c->tail;
    s->start_ns = start;
    put32(s->bytes + CORRELATION_AT, s->id);
    c->job->mode->fill(c, s);
    c->tail++;
    c->job->submitted_bytes += s->len + s->body_len;
    if (c->job->o.bytes && c->job->submitted_bytes >= (uint64_t)c->job->o.bytes)
        c->job->stopped = true;
}

static int gather(const Conn *c, struct iovec *v) {
    int n = 0;
    size_t skip = c->sent_bytes;
    for (uint32_t i = c->sent; i != c->tail && n + 2 <= SEGMENTS; i++, skip = 0) {
        const Slot *s = &c->slots[i & c->mask];
        if (skip < s->len) v[n++] = (struct iovec){s->bytes + skip, s->len - skip};
        size_t into = skip > s->len ? skip - s->len : 0;
        if (s->body_len) v[n++] = (struct iovec){(void *)(s->body + into), s->body_len - into};
    }
    return n;
}

static void sent(Conn *c, size_t n) {
    while (n) {
        const Slot *s = &c->slots[c->sent & c->mask];
        size_t left = s->len + s->body_len - c->sent_bytes;
        if (n < left) {
            c->sent_bytes += n;
            return;
        }
        n -= left, c->sent_bytes = 0, c->sent++;
        if (c->job->o.acks == 0) c->head = c->sent; /* no answer will come */
    }
}

static void flush(Conn *c) {
    struct iovec v[SEGMENTS];
    while (c->sent != c->tail) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)gather(c, v)};
        ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) die("connection %d: send: %s", c->number, strerror(errno));
        sent(c, (size_t)n);
    }
    bool more = c->sent != c->tail || (c->job->o.acks == 0 && !c->job->stopped);
    want(c, EPOLLIN | (more ? EPOLLOUT : 0u));
}

/* One frame has come in whole: the oldest unanswered request's answer. */
static void answered(Conn *c, uint8_t *frame, size_t n, int64_t now) {
    Reader r = {frame, frame + n, false};
    Slot *s = &c->slots[c->head & c->mask];
    uint32_t id = (uint32_t)r32(&r);
    if (c->head == c->sent) die("connection %d: an answer nobody asked for (%u)", c->number, id);
    if (id != s->id) die("connection %d: answer %u, expected %u", c->number, id, s->id);
    c->head++;
    c->job->mode->answer(c, s, &r, now);
    if (r.bad) job_error(c->job, "an answer of %zu bytes that ends too early", n);
}

static void reserve(Conn *c, size_t n) {
    if (n <= c->in_cap) return;
    if (n > FRAME_MAX) die("connection %d: answer of %zu bytes", c->number, n);
    c->in_cap = n + n / 8;
    c->in = realloc(c->in, c->in_cap);
    if (!c->in) die("out of memory for an answer of %zu bytes", n);
}

static void receive(Conn *c, int64_t now) {
    reserve(c, 4096);
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) die("connection %d: receive: %s", c->number, strerror(errno));
    if (n == 0) die("connection %d: closed by the broker", c->number);
    c->in_len += (size_t)n;
    size_t at = 0;
    while (c->in_len - at >= 4) {
        size_t size = get32(c->in + at);
        if (c->in_len - at - 4 < size) {
            if (at) memmove(c->in, c->in + at, c->in_len - at), c->in_len -= at, at = 0;
            reserve(c, size + 4);
            return;
        }
        answered(c, c->in + at + 4, size, now);
        at += 4 + size;
    }
    if (at) memmove(c->in, c->in + at, c->in_len - at), c->in_len -= at;
}

static void top_up(Conn *c, int64_t now) {
    while (!c->job->stopped && in_flight(c) < (uint32_t)c->job->o.inflight) submit(c, now);
}

static void on_event(Conn *c, uint32_t events) {
    int64_t now = now_ns();
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c, now);
    if (!c->job->o.rate && c->slots) top_up(c, now);
    if (c->sent != c->tail || (events & EPOLLOUT)) flush(c);
}

static void next_due(Job *job) {
    job->due_ns += 1e9 / (double)job->o.rate;
    job->next_due_ns = job->run->begin_ns + (int64_t)job->due_ns;
}

/* Open loop: whatever is due goes to the next connection that has room; late ones keep their time. */
static void pace(Job *job, int64_t now) {
    while (!job->stopped && now >= job->next_due_ns && job->next_due_ns < job->run->stop_ns) {
        Conn *c = NULL;
        for (long k = 0; k < job->o.connections && !c; k++) {
            Conn *next = &job->conns[job->next_conn++ % job->o.connections];
            if (in_flight(next) < (uint32_t)job->o.inflight) c = next;
        }
        if (!c) return;
        submit(c, job->next_due_ns);
        flush(c);
        next_due(job);
    }
}

static double client_cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void window_open(Run *run, int64_t now) {
    run->server_cpu_began_s = cpu_of(run->server_pid), run->client_cpu_began_s = client_cpu();
    for (Job *j = run->jobs; j < run->jobs + run->job_count; j++)
        if (!j->counting) j->begin_ns = j->end_ns = now, j->counting = true;
}

void window_close(Run *run) {
    run->server_cpu_s = cpu_of(run->server_pid) - run->server_cpu_began_s;
    run->client_cpu_s = client_cpu() - run->client_cpu_began_s;
}

static void job_close(Job *job, int64_t now) {
    job->stopped = true, job->counting = false;
    job->end_ns = now;
}

/* The window is over. What was due in it is still sent and counted, however late; what an overloaded
 * broker has not even taken a while later counts with its age, so that it can't hide. */
static void stop(Job *job, int64_t now) {
    if (!job->o.rate) {
        job_close(job, now);
        return;
    }
    bool owed = job->next_due_ns < job->run->stop_ns;
    if (owed && now < job->run->stop_ns + OWED_S * SECOND) return;
    for (; job->next_due_ns < job->run->stop_ns; next_due(job), job->unsent++)
        histogram_add(&job->latency, now - job->next_due_ns);
    job->stopped = true;
}

static bool drained(const Job *job) {
    for (long i = 0; i < job->o.connections; i++)
        if (in_flight(&job->conns[i])) return false;
    return true;
}

/* Opens and closes the window; true once every job has its answers. */
static bool advance(Run *run, int64_t now, bool *open) {
    if (!*open && now >= run->begin_ns + (int64_t)(run->warmup * 1e9))
        window_open(run, now), *open = true;
    bool all = true, counting = false, counted = false;
    for (Job *j = run->jobs; j < run->jobs + run->job_count; j++) {
        if (j->mode->background) continue;
        counted |= j->counting;
        if (now >= run->stop_ns && !j->stopped) stop(j, now);
        bool done = j->stopped && drained(j);
        if (done && j->counting) job_close(j, j->end_ns); /* bounded by bytes: the last answer */
        counting |= j->counting;
        all &= done;
        if (!done && now > run->stop_ns + DRAIN_S * SECOND)
            die("%s: requests unanswered for %d s", j->mode->name, DRAIN_S);
    }
    if (counted && !counting) window_close(run);
    return all;
}

/* How long epoll may sleep: not at all when spinning, else until the next paced request. */
static int patience_ms(const Run *run, int64_t now) {
    int64_t wait = 100;
    for (const Job *j = run->jobs; j < run->jobs + run->job_count; j++) {
        if (!j->o.rate || j->stopped) continue;
        if (run->spin) return 0;
        int64_t due = (j->next_due_ns - now) / 1000000;
        if (due < wait) wait = due < 0 ? 0 : due;
    }
    return (int)wait;
}

static void open_connections(Run *run, Job *job) {
    Options *o = &job->o;
    uint32_t ring = 1;
    while (ring < (uint32_t)o->inflight) ring *= 2;
    for (long i = 0; i < o->connections; i++) {
        Conn *c = &job->conns[i];
        if (!c->fd) c->fd = net_connect(run);
        c->mask = ring - 1;
        c->slots = alloc(ring * sizeof(Slot));
        job->mode->open(job, c);
        want(c, EPOLLIN);
        if (i % 64 == 63) { /* the broker's accept queue is short: wait until it has taken them */
            uint8_t request[128], *answer = NULL;
            Writer w = w_begin_as(request, API_VERSIONS, 0, 7, o->client);
            net_call(c->fd, request, w_end(&w), 7, &answer);
            free(answer);
        }
    }
}

void engine_run(Run *run) {
    struct epoll_event events[256];
    run->epoll = epoll_create1(EPOLL_CLOEXEC);
    for (Job *j = run->jobs; j < run->jobs + run->job_count; j++) {
        j->run = run;
        j->conns = alloc((size_t)j->o.connections * sizeof(Conn));
        for (long i = 0; i < j->o.connections; i++)
            j->conns[i].job = j, j->conns[i].number = (int)i;
        j->mode->prepare(j);
        open_connections(run, j);
    }
    run->begin_ns = now_ns();
    run->stop_ns = run->begin_ns + (int64_t)((run->warmup + run->seconds) * 1e9);
    bool open = false;
    for (Job *j = run->jobs; j < run->jobs + run->job_count; j++) {
        j->next_due_ns = run->begin_ns;
        for (long i = 0; i < j->o.connections && !j->o.rate && !j->mode->background; i++) {
            if (!open && run->warmup <= 0) window_open(run, run->begin_ns), open = true;
            top_up(&j->conns[i], now_ns());
            flush(&j->conns[i]);
        }
    }
    for (int64_t now = now_ns(); !advance(run, now, &open); now = now_ns()) {
        for (Job *j = run->jobs; j < run->jobs + run->job_count; j++)
            if (j->o.rate) pace(j, now);
        int n = epoll_wait(run->epoll, events, 256, patience_ms(run, now));
        for (int i = 0; i < n; i++) on_event(events[i].data.ptr, events[i].events);
    }
    for (Job *j = run->jobs; j < run->jobs + run->job_count; j++) j->mode->finish(j);
}
