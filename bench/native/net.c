/* Sockets, and blocking calls for what happens before and after the loop: which versions the broker
 * serves, where a topic's partitions begin and end. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    responder_stop();
    exit(2);
}

void *alloc(size_t n) {
    void *p = calloc(1, n ? n : 1);
    if (!p) die("out of memory for %zu bytes", n);
    return p;
}

static void resolve(Run *run) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_INET}, *found;
    char port[16];
    snprintf(port, sizeof port, "%ld", run->port);
    int failed = getaddrinfo(run->host, port, &hints, &found);
    if (failed) die("%s: %s", run->host, gai_strerror(failed));
    run->address = alloc(sizeof *run->address);
    memcpy(run->address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
}

int net_connect(Run *run) {
    if (!run->address) resolve(run);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) die("socket: %s", strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct timeval patience = {30, 0}; /* for the blocking calls */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)run->address, sizeof(struct sockaddr_in)) < 0)
        die("connect to %s:%ld: %s", run->host, run->port, strerror(errno));
    return fd;
}

void net_send(int fd, const uint8_t *p, size_t n) {
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) die("send: %s", strerror(errno));
        p += k, n -= (size_t)k;
    }
}

static void receive(int fd, uint8_t *p, size_t n) {
    while (n) {
        ssize_t k = recv(fd, p, n, 0);
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) die("the broker closed the connection");
        if (k < 0) die("receive: %s", strerror(errno));
        p += k, n -= (size_t)k;
    }
}

/* Reads one answer into *buf (freed and made anew) and checks its correlation id. */
Reader net_receive(int fd, uint32_t id, uint8_t **buf) {
    uint8_t head[4];
    receive(fd, head, 4);
    size_t n = get32(head);
    if (n < 4 || n > 100u << 20) die("answer of %zu bytes", n);
    free(*buf);
    *buf = alloc(n);
    receive(fd, *buf, n);
    Reader r = {*buf, *buf + n, false};
    uint32_t got = (uint32_t)r32(&r);
    if (got != id) die("answer %u where %u was expected", got, id);
    return r;
}

Reader net_call(int fd, const uint8_t *p, size_t n, uint32_t id, uint8_t **buf) {
    net_send(fd, p, n);
    return net_receive(fd, id, buf);
}

void net_check_versions(Run *run) {
    static const struct { int16_t key, version; } needed[] = {
        {PRODUCE, PRODUCE_V}, {FETCH, FETCH_V}, {LIST_OFFSETS, LIST_OFFSETS_V},
        {FIND_COORDINATOR, FIND_COORDINATOR_V}, {JOIN_GROUP, JOIN_GROUP_V},
        {HEARTBEAT, HEARTBEAT_V}, {SYNC_GROUP, SYNC_GROUP_V}};
    uint8_t request[64], *answer = NULL;
    Writer w = w_begin(request, API_VERSIONS, 0, 1);
    size_t n = w_end(&w);
    int fd = net_connect(run);
    Reader r = net_call(fd, request, n, 1, &answer);
    if (r16(&r)) die("ApiVersions was refused");
    unsigned served = 0;
    for (int32_t i = rcount(&r, 6); i > 0; i--) {
        int16_t key = r16(&r), low = r16(&r), high = r16(&r);
        for (size_t k = 0; k < sizeof needed / sizeof *needed; k++)
            if (needed[k].key == key && low <= needed[k].version && needed[k].version <= high)
                served |= 1u << k;
    }
    for (size_t k = 0; k < sizeof needed / sizeof *needed; k++)
        if (!(served >> k & 1))
            die("the broker does not serve API %d version %d", needed[k].key, needed[k].version);
    free(answer);
    close(fd);
}

/* A partition that has just been made or moved answers so for a moment. */
static bool passing(int error) {
    enum { UNKNOWN_TOPIC = 3, LEADER_NOT_AVAILABLE = 5, NOT_LEADER = 6, OFFSET_NOT_AVAILABLE = 78 };
    return error == UNKNOWN_TOPIC || error == LEADER_NOT_AVAILABLE || error == NOT_LEADER ||
           error == OFFSET_NOT_AVAILABLE;
}

/* Fills in what was answered; the first error of a partition, or 0. */
static int read_offsets(Reader *r, const char *topic, long partitions, int64_t *offsets) {
    long seen = 0;
    int length, failed = 0;
    for (int32_t topics = rcount(r, 6); topics > 0; topics--) {
        rstr(r, &length);
        for (int32_t i = rcount(r, 22); i > 0; i--) {
            int32_t index = r32(r), error = r16(r);
            r64(r);
            int64_t offset = r64(r);
            if (index < 0 || index >= partitions) die("ListOffsets names partition %d", index);
            if (error && !passing(error)) die("ListOffsets of %s-%d: error %d", topic, index, error);
            if (error) failed = error;
            offsets[index] = offset, seen++;
        }
    }
    if (r->bad || seen != partitions) die("ListOffsets answered %ld of %ld", seen, partitions);
    return failed;
}

/* Offsets at a timestamp (-1 the end, -2 the begin) of partitions 0..n-1; the caller frees. */
int64_t *net_offsets(Run *run, const char *topic, long partitions, int64_t timestamp) {
    uint8_t *request = alloc(64 + strlen(topic) + 12 * (size_t)partitions), *answer = NULL;
    Writer w = w_begin(request, LIST_OFFSETS, LIST_OFFSETS_V, 2);
    w32(&w, -1), w32(&w, 1), wstr(&w, topic), w32(&w, (int32_t)partitions);
    for (long i = 0; i < partitions; i++) w32(&w, (int32_t)i), w64(&w, timestamp);
    size_t n = w_end(&w);
    int fd = net_connect(run), failed = 1;
    int64_t *offsets = alloc((size_t)partitions * sizeof *offsets);
    for (int tries = 0; failed && tries < 300; tries++) {
        if (tries) usleep(50000);
        Reader r = net_call(fd, request, n, 2, &answer);
        failed = read_offsets(&r, topic, partitions, offsets);
    }
    if (failed) die("ListOffsets of %s: still error %d", topic, failed);
    close(fd);
    free(request), free(answer);
    return offsets;
}
