/* load: a native Kafka load client. One thread, one epoll loop, no dependencies.
 *
 * A run is one or more jobs (produce, fetch, tail, heartbeat, idle), each with connections of its
 * own; all of them live in the same loop and the same time window. What a job does is its Mode: how
 * to fill the next request and how to check an answer. Everything else (sockets, pacing, in-flight
 * bookkeeping, latencies) is the engine's. Called by bench/client.py; prints one JSON line a job. */
#ifndef LOAD_H
#define LOAD_H

#include <stddef.h>
#include <stdio.h>

#include "wire.h"

enum { PRODUCE = 0, FETCH = 1, LIST_OFFSETS = 2, FIND_COORDINATOR = 10, JOIN_GROUP = 11,
       HEARTBEAT = 12, SYNC_GROUP = 14, API_VERSIONS = 18 };
/* The newest versions without flexible fields: every broker measured here serves them. */
enum { PRODUCE_V = 7, FETCH_V = 11, LIST_OFFSETS_V = 1, FIND_COORDINATOR_V = 1, JOIN_GROUP_V = 5,
       HEARTBEAT_V = 3, SYNC_GROUP_V = 3 };

typedef struct Job Job;
typedef struct Conn Conn;
typedef struct Slot Slot;

/* Latencies in ns: 64 linear steps per power of two, so a percentile is right within 1.6 %. */
enum { SUB_BITS = 6, BUCKETS = (64 - SUB_BITS + 1) << SUB_BITS };
typedef struct Histogram {
    uint64_t count, sum, max, buckets[BUCKETS];
} Histogram;

typedef struct Options { /* of one job; main.c has the table of names and defaults */
    char *topic, *payload, *client;
    long connections, inflight, acks, record_bytes, records, variants, codec, partitions, per_request,
        rate, stamp, max_bytes, partition_max_bytes, max_wait_ms, crc, members, group_size, bytes,
        session_ms;
} Options;

typedef struct Run { /* one per process */
    char *host;
    long port, server_pid, spin, ceiling, server_core, client_core;
    double warmup, seconds;
    int epoll;
    int64_t begin_ns, stop_ns;
    double server_cpu_began_s, client_cpu_began_s, server_cpu_s, client_cpu_s; /* of the window */
    struct sockaddr_storage *address;
    Job *jobs;
    int job_count;
} Run;

typedef struct Mode {
    const char *name;
    void (*prepare)(Job *);            /* blocking: what must be known before the loop starts */
    void (*open)(Job *, Conn *);       /* builds the requests of a connection's slots */
    void (*fill)(Conn *, Slot *);      /* the next request; correlation id is patched by the engine */
    void (*answer)(Conn *, Slot *, Reader *, int64_t now_ns);
    void (*finish)(Job *);             /* checks that need the whole run */
    bool background;                   /* over when the other jobs are */
} Mode;

struct Slot { /* one request in flight: its own bytes, then a body shared among many */
    uint8_t *bytes;
    size_t len;
    const uint8_t *body;
    size_t body_len;
    size_t payload; /* bytes of record batches */
    uint32_t id;
    int32_t partition;
    int64_t start_ns; /* sent, or when paced: meant to be sent */
};

struct Conn {
    Job *job;
    int fd, number;
    uint32_t events;
    Slot *slots; /* a ring: head <= sent <= tail, all free running */
    uint32_t mask, head, sent, tail;
    size_t sent_bytes; /* of the slot `sent` */
    uint8_t *in;
    size_t in_len, in_cap;
    void *state; /* the mode's */
};

struct Job {
    Run *run;
    const Mode *mode;
    Options o;
    Conn *conns;
    bool stopped, counting;
    uint64_t submitted_bytes, requests, records, bytes, errors, unsent;
    int64_t begin_ns, end_ns;
    int64_t next_due_ns; /* paced: when the next request is meant to leave */
    double due_ns;
    long next_conn;
    Histogram latency;
    char first_error[200];
    void *state; /* the mode's */
};

extern const Mode produce_mode, fetch_mode, tail_mode, heartbeat_mode, idle_mode;

/* batch.c */
typedef struct Batch {
    uint8_t *bytes;
    size_t len;
} Batch;
typedef struct Batches {
    Batch *items;
    int count;
} Batches;
uint32_t crc32c(const uint8_t *p, size_t n);
Batches batches_make(const Options *o);
void batch_stamp(uint8_t *batch, int64_t ns, size_t len);
int64_t batch_read_stamp(const uint8_t *batch, size_t len);
enum { BATCH_HEAD = 61 };

/* engine.c */
void engine_run(Run *run);
void window_close(Run *run);
void job_error(Job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
void job_count(Job *job, uint64_t requests, uint64_t records, uint64_t bytes, int64_t start_ns,
               int64_t now_ns);
int64_t now_ns(void);

/* net.c: sockets, and blocking calls for what happens before and after the loop */
int net_connect(Run *run);
void net_send(int fd, const uint8_t *p, size_t n);
Reader net_receive(int fd, uint32_t id, uint8_t **buf);
Reader net_call(int fd, const uint8_t *p, size_t n, uint32_t id, uint8_t **buf);
void net_check_versions(Run *run);
int64_t *net_offsets(Run *run, const char *topic, long partitions, int64_t timestamp);
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void *alloc(size_t n);

/* stats.c */
void histogram_add(Histogram *h, int64_t ns);
double cpu_of(long pid);
void pin(long core);
void print_job(const Job *job);

/* responder.c */
void responder_start(Run *run);
void responder_stop(void);

#endif
