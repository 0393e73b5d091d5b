/* Members of classic consumer groups that send heartbeats.
 *
 * Member j of a group lives on connection j (group_size <= connections), so that the JoinGroups of
 * one group never wait behind each other. All members first get their ids, then all join until they
 * are in the same generation: Kafka waits for every id it gave out, other brokers start a group
 * with the first member and want it to join again. Checked: each answer's error code; a
 * REBALANCE_IN_PROGRESS counts as an error, nothing should move. */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "load.h"

enum { ID_MAX = 256, TRIES = 200 };
enum { LOADING = 14, NOT_AVAILABLE = 15, NOT_COORDINATOR = 16, MEMBER_ID_REQUIRED = 79 };

typedef struct Member {
    char id[ID_MAX];
    int32_t generation;
    long group;
    bool waiting, leads;
} Member;

typedef struct Groups {
    Member *members; /* in group order; member i is number i % group_size of group i / group_size */
    char prefix[64];
    uint8_t *answer;
    long *next; /* per connection: the member whose turn it is */
} Groups;

static void group_name(const Groups *g, long group, char *name) {
    snprintf(name, 96, "%s-%ld", g->prefix, group);
}

static void find_coordinator(const Groups *g, int fd, long group, uint8_t **answer) {
    uint8_t request[256];
    char name[96];
    group_name(g, group, name);
    for (int i = 0; i < TRIES; i++) {
        Writer w = w_begin(request, FIND_COORDINATOR, FIND_COORDINATOR_V, 1);
        wstr(&w, name), *w.p++ = 0;
        Reader r = net_call(fd, request, w_end(&w), 1, answer);
        r32(&r);
        int error = r16(&r);
        if (!error) return;
        if (error != NOT_AVAILABLE && error != LOADING) die("FindCoordinator: error %d", error);
        usleep(100000);
    }
    die("no coordinator for %s", name);
}

static void send_join(Job *job, Conn *c, const char *name, Member *m) {
    uint8_t request[1024];
    static const uint8_t metadata[] = {0, 0, 0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 0}; /* topics ["t"] */
    Writer w = w_begin(request, JOIN_GROUP, JOIN_GROUP_V, 2);
    wstr(&w, name), w32(&w, (int32_t)job->o.session_ms), w32(&w, (int32_t)job->o.session_ms);
    wstr(&w, m->id), w16(&w, -1), wstr(&w, "consumer");
    w32(&w, 1), wstr(&w, "range"), w32(&w, sizeof metadata), wraw(&w, metadata, sizeof metadata);
    net_send(c->fd, request, w_end(&w));
    m->waiting = true;
}

/* Takes the answer's member id and generation; returns its error. */
static int receive_join(Groups *g, Conn *c, Member *m) {
    Reader r = net_receive(c->fd, 2, &g->answer);
    int leader_length, length;
    r32(&r);
    int error = r16(&r);
    m->generation = r32(&r);
    rstr(&r, &length); /* protocol */
    const char *leader = rstr(&r, &leader_length), *id = rstr(&r, &length);
    if (r.bad || length >= ID_MAX) die("JoinGroup: an answer that ends too early");
    memcpy(m->id, id, (size_t)length), m->id[length] = 0;
    m->leads = length == leader_length && !memcmp(leader, id, (size_t)length);
    m->waiting = false;
    return error;
}

static void send_sync(Job *job, Conn *c, const char *name, const Member *m) {
    long size = job->o.group_size;
    uint8_t *request = alloc(512 + (size_t)size * (ID_MAX + 8));
    Writer w = w_begin(request, SYNC_GROUP, SYNC_GROUP_V, 3);
    wstr(&w, name), w32(&w, m->generation), wstr(&w, m->id), w16(&w, -1);
    w32(&w, m->leads ? (int32_t)size : 0);
    const Member *first = &((Groups *)job->state)->members[m->group * size];
    for (long i = 0; m->leads && i < size; i++)
        wstr(&w, first[i].id), w32(&w, 4), w32(&w, (int32_t)i); /* any bytes do */
    net_send(c->fd, request, w_end(&w));
    free(request);
}

static void receive_sync(Groups *g, Conn *c) {
    Reader r = net_receive(c->fd, 3, &g->answer);
    r32(&r);
    int error = r16(&r);
    if (error || r.bad) die("SyncGroup: error %d", error);
}

/* Those that are behind join again; true when nobody is. */
static bool same_generation(Job *job, const char *name, Member *m) {
    long size = job->o.group_size, behind = 0;
    int32_t newest = 0;
    for (long i = 0; i < size; i++)
        if (m[i].generation > newest) newest = m[i].generation;
    for (long i = 0; i < size; i++)
        if (m[i].generation < newest) send_join(job, &job->conns[i], name, &m[i]), behind++;
    return !behind;
}

static void settle(Job *job, const char *name, Member *m) {
    Groups *g = job->state;
    long size = job->o.group_size;
    struct pollfd polls[size];
    for (long i = 0; i < size; i++) send_join(job, &job->conns[i], name, &m[i]);
    for (int tries = 0; tries < 10 * TRIES; tries++) {
        long waiting = 0;
        for (long i = 0; i < size; i++)
            if (m[i].waiting) polls[waiting++] = (struct pollfd){job->conns[i].fd, POLLIN, 0};
        if (!waiting && same_generation(job, name, m)) return;
        if (!waiting) continue;
        if (poll(polls, (nfds_t)waiting, 20) == 0) { /* they wait for those that have joined */
            for (long i = 0; i < size; i++)
                if (!m[i].waiting) send_join(job, &job->conns[i], name, &m[i]);
            continue;
        }
        for (long i = 0, k = 0; i < size; i++)
            if (m[i].waiting && polls[k++].revents) {
                int error = receive_join(g, &job->conns[i], &m[i]);
                if (error) die("JoinGroup: error %d", error);
            }
    }
    die("group %s does not settle", name);
}

/* The round trip that gives each member its id (KIP-394), all members of a group at once. */
static void get_ids(Job *job, const char *name, Member *m) {
    long size = job->o.group_size;
    for (long i = 0; i < size; i++) send_join(job, &job->conns[i], name, &m[i]);
    for (long i = 0; i < size; i++) {
        int error = receive_join(job->state, &job->conns[i], &m[i]);
        for (int tries = 0; tries < TRIES && (error == LOADING || error == NOT_COORDINATOR); tries++) {
            usleep(100000); /* a coordinator that has just been made */
            send_join(job, &job->conns[i], name, &m[i]);
            error = receive_join(job->state, &job->conns[i], &m[i]);
        }
        if (error != MEMBER_ID_REQUIRED) die("JoinGroup for an id: error %d", error);
    }
}

static void join(Job *job, long group) {
    Groups *g = job->state;
    long size = job->o.group_size;
    Member *m = &g->members[group * size];
    char name[96];
    group_name(g, group, name);
    if (!group) find_coordinator(g, job->conns[0].fd, group, &g->answer); /* there is one broker */
    for (long i = 0; i < size; i++) m[i].group = group;
    get_ids(job, name, m);
    settle(job, name, m);
    for (long i = 0; i < size; i++) send_sync(job, &job->conns[i], name, &m[i]);
    for (long i = 0; i < size; i++) receive_sync(g, &job->conns[i]);
}

static void prepare(Job *job) {
    Groups *g = job->state = alloc(sizeof *g);
    Options *o = &job->o;
    if (o->group_size > o->connections) o->group_size = o->connections;
    long groups = (o->members + o->group_size - 1) / o->group_size;
    o->members = groups * o->group_size;
    snprintf(g->prefix, sizeof g->prefix, "bench-%ld-%d", (long)(now_ns() / 1000), (int)getpid());
    g->members = alloc((size_t)o->members * sizeof *g->members);
    g->next = alloc((size_t)o->connections * sizeof *g->next);
    for (long i = 0; i < o->connections; i++) job->conns[i].fd = net_connect(job->run), g->next[i] = i;
    for (long i = 0; i < groups; i++) join(job, i);
}

static void open_slots(Job *job, Conn *c) {
    (void)job;
    for (uint32_t i = 0; i <= c->mask; i++) c->slots[i].bytes = alloc(128 + 96 + ID_MAX);
}

static void fill(Conn *c, Slot *s) {
    Groups *g = c->job->state;
    const Member *m = &g->members[g->next[c->number] % c->job->o.members];
    char name[96];
    g->next[c->number] += c->job->o.connections;
    group_name(g, m->group, name);
    Writer w = w_begin(s->bytes, HEARTBEAT, HEARTBEAT_V, s->id);
    wstr(&w, name), w32(&w, m->generation), wstr(&w, m->id), w16(&w, -1);
    s->len = w_end(&w);
}

static void answer(Conn *c, Slot *s, Reader *r, int64_t now) {
    r32(r);
    int error = r16(r);
    if (error) job_error(c->job, "Heartbeat: error %d", error);
    job_count(c->job, 1, 0, 0, s->start_ns, now);
}

static void finish(Job *job) {
    if (!job->requests) job_error(job, "no heartbeat was answered");
}

const Mode heartbeat_mode = {"heartbeat", prepare, open_slots, fill, answer, finish, false};
