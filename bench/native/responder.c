/* The other end of --ceiling: a child process that answers Produce, Fetch and ListOffsets as
 * cheaply as C can, without checking or storing anything. What the client reaches against it is
 * the most it could ever show of a broker: a figure near it says more of the client than of the
 * broker. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load.h"

enum { PARTITIONS = 1 << 14, FETCH_BATCHES = 10 };

typedef struct Peer {
    int fd;
    uint8_t *in;
    size_t len, cap, out_len;
    uint8_t out[1 << 16];
} Peer;

static pid_t child;
static int64_t ends[PARTITIONS];
static Batch fetched; /* one run of batches, sent in answer to every Fetch */
static size_t fetched_one;

static void send_all(Peer *p, const uint8_t *head, size_t n, const uint8_t *body, size_t m) {
    struct iovec v[2] = {{(void *)head, n}, {(void *)body, m}};
    while (v[0].iov_len + v[1].iov_len) {
        struct msghdr message = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t k = sendmsg(p->fd, &message, MSG_NOSIGNAL);
        if (k <= 0) _exit(0); /* the client is gone */
        for (int i = 0; i < 2; i++) {
            size_t take = (size_t)k < v[i].iov_len ? (size_t)k : v[i].iov_len;
            v[i].iov_base = (uint8_t *)v[i].iov_base + take, v[i].iov_len -= take;
            k -= (ssize_t)take;
        }
    }
}

static void flush(Peer *p) {
    if (p->out_len) send_all(p, p->out, p->out_len, NULL, 0);
    p->out_len = 0;
}

/* Starts an answer in p->out; finish() puts the size before it. */
static Writer start(Peer *p, uint32_t id) {
    if (p->out_len > sizeof p->out - 4096) flush(p);
    Writer w = {p->out + p->out_len, p->out + p->out_len + 4};
    w32(&w, (int32_t)id);
    return w;
}

static void finish(Peer *p, Writer *w, size_t more) {
    put32(w->base, (uint32_t)((size_t)(w->p - w->base) - 4 + more));
    p->out_len = (size_t)(w->p - p->out);
}

static void on_api_versions(Peer *p, uint32_t id) {
    Writer w = start(p, id);
    w16(&w, 0), w32(&w, 0);
    finish(p, &w, 0);
}

/* The names are one topic's; a request never names more partitions than an answer holds here. */
static void on_produce(Peer *p, uint32_t id, Reader *r) {
    int n;
    rstr(r, &n);
    int acks = r16(r);
    r32(r), r32(r);
    const char *name = rstr(r, &n);
    Writer w = start(p, id);
    w32(&w, 1), w16(&w, (int16_t)n), wraw(&w, name, (size_t)n);
    int32_t count = rcount(r, 8);
    if (count > 100) _exit(3);
    w32(&w, count);
    for (; count > 0; count--) {
        int32_t index = r32(r), len = r32(r);
        const uint8_t *batch = r_skip(r, len);
        int64_t *end = &ends[index & (PARTITIONS - 1)];
        w32(&w, index), w16(&w, 0), w64(&w, *end), w64(&w, -1), w64(&w, 0);
        *end += (int32_t)get32(batch + 57);
    }
    w32(&w, 0);
    if (acks) finish(p, &w, 0);
}

static void on_fetch(Peer *p, uint32_t id, Reader *r) {
    int n;
    r_skip(r, 17), r_skip(r, 8), r32(r);
    const char *name = rstr(r, &n);
    r32(r);
    int32_t index = r32(r);
    r32(r);
    int64_t offset = r64(r);
    flush(p);
    for (size_t at = 0; at < fetched.len; at += fetched_one) {
        put64(fetched.bytes + at, (uint64_t)offset);
        offset += (int32_t)get32(fetched.bytes + at + 57);
    }
    Writer w = start(p, id);
    w32(&w, 0), w16(&w, 0), w32(&w, 0), w32(&w, 1);
    w16(&w, (int16_t)n), wraw(&w, name, (size_t)n), w32(&w, 1);
    w32(&w, index), w16(&w, 0), w64(&w, (int64_t)1 << 50), w64(&w, -1), w64(&w, 0);
    w32(&w, -1), w32(&w, -1), w32(&w, (int32_t)fetched.len);
    finish(p, &w, fetched.len);
    send_all(p, p->out, p->out_len, fetched.bytes, fetched.len);
    p->out_len = 0;
}

static void on_list_offsets(Peer *p, uint32_t id, Reader *r) {
    int n;
    r32(r), r32(r);
    const char *name = rstr(r, &n);
    Writer w = start(p, id);
    w32(&w, 1), w16(&w, (int16_t)n), wraw(&w, name, (size_t)n);
    int32_t count = rcount(r, 12);
    if (count > 100) _exit(3);
    w32(&w, count);
    for (; count > 0; count--) {
        int32_t index = r32(r);
        int64_t at = r64(r);
        w32(&w, index), w16(&w, 0), w64(&w, -1);
        w64(&w, at == -1 ? ends[index & (PARTITIONS - 1)] : 0);
    }
    finish(p, &w, 0);
}

static void on_frame(Peer *p, const uint8_t *frame, size_t size) {
    Reader r = {frame, frame + size, false};
    int16_t key = r16(&r);
    r16(&r);
    uint32_t id = (uint32_t)r32(&r);
    int n;
    rstr(&r, &n);
    if (key == PRODUCE) on_produce(p, id, &r);
    else if (key == FETCH) on_fetch(p, id, &r);
    else if (key == LIST_OFFSETS) on_list_offsets(p, id, &r);
    else on_api_versions(p, id);
}

static void on_readable(Peer *p) {
    ssize_t k = recv(p->fd, p->in + p->len, p->cap - p->len, 0);
    if (k <= 0) {
        close(p->fd), free(p->in), free(p);
        return;
    }
    p->len += (size_t)k;
    size_t at = 0;
    while (p->len - at >= 4) {
        size_t size = get32(p->in + at);
        if (size + 4 > p->cap) {
            p->cap = size * 2;
            p->in = realloc(p->in, p->cap);
            if (!p->in) _exit(3);
        }
        if (p->len - at - 4 < size) break;
        on_frame(p, p->in + at + 4, size);
        at += 4 + size;
    }
    if (at) memmove(p->in, p->in + at, p->len - at), p->len -= at;
    flush(p);
}

static void accept_one(int listener, int epoll) {
    int one = 1;
    Peer *p = alloc(sizeof *p);
    p->fd = accept(listener, NULL, NULL);
    p->in = alloc(p->cap = 1 << 16);
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    epoll_ctl(epoll, EPOLL_CTL_ADD, p->fd, &e);
}

static void make_fetched(void) {
    Options o = {.records = 100, .record_bytes = 1000, .variants = 1};
    Batch one = batches_make(&o).items[0];
    fetched_one = one.len;
    fetched = (Batch){alloc(one.len * FETCH_BATCHES), one.len * FETCH_BATCHES};
    for (int i = 0; i < FETCH_BATCHES; i++)
        memcpy(fetched.bytes + (size_t)i * one.len, one.bytes, one.len);
}

static void serve(int listener) {
    make_fetched();
    struct epoll_event events[64], e = {.events = EPOLLIN, .data.ptr = NULL};
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < n; i++)
            if (events[i].data.ptr) on_readable(events[i].data.ptr);
            else accept_one(listener, epoll);
    }
}

void responder_start(Run *run) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 4096) ||
        getsockname(listener, (struct sockaddr *)&a, &size))
        die("responder: %s", strerror(errno));
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(run->server_core);
        serve(listener);
    }
    close(listener);
    run->host = "127.0.0.1", run->port = ntohs(a.sin_port), run->server_pid = child;
}

void responder_stop(void) {
    if (child <= 0) return;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    child = 0;
}
