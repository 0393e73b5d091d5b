/* load NAME=VALUE... mode NAME=VALUE... [+ mode NAME=VALUE...]
 *
 * Before the first mode: options of the run. A `+` starts another job in the same run. Each job
 * prints one JSON line; exit code 1 when any check failed, 2 when the run could not go on. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "load.h"

typedef struct Option {
    const char *name;
    size_t at;
    enum { LONG, TEXT, REAL } type;
    const char *value, *about;
} Option;

#define O(field) offsetof(Options, field)
static const Option job_options[] = {
    {"topic", O(topic), TEXT, NULL, "it must exist, with the partitions below"},
    {"client", O(client), TEXT, "bench", "client id of produce, fetch and tail, at most 64 bytes"},
    {"connections", O(connections), LONG, "16", ""},
    {"inflight", O(inflight), LONG, "1", "requests under way per connection (closed loop)"},
    {"acks", O(acks), LONG, "1", "0, 1, -1"},
    {"record_bytes", O(record_bytes), LONG, "100", "value of a record"},
    {"records", O(records), LONG, "1", "per batch"},
    {"variants", O(variants), LONG, "8", "different batches, used in turn"},
    {"payload", O(payload), TEXT, NULL, "file of compressed record sets (u32 length, bytes)..."},
    {"codec", O(codec), LONG, "0", "of the payload: 1 gzip, 2 snappy, 3 lz4, 4 zstd"},
    {"partitions", O(partitions), LONG, "1", "of the topic; requests go over them in turn"},
    {"per_request", O(per_request), LONG, "1", "partitions in a request"},
    {"rate", O(rate), LONG, "0", "requests a second, open loop; 0: closed loop"},
    {"stamp", O(stamp), LONG, "0", "1: send time in the record, for tail"},
    {"max_bytes", O(max_bytes), LONG, "1048576", "of a fetch answer"},
    {"partition_max_bytes", O(partition_max_bytes), LONG, "1048576", ""},
    {"max_wait_ms", O(max_wait_ms), LONG, "500", "long poll"},
    {"crc", O(crc), LONG, "0", "1: check every CRC fetched"},
    {"members", O(members), LONG, "100", "heartbeat: group members in all"},
    {"group_size", O(group_size), LONG, "10", "heartbeat: members of a group"},
    {"session_ms", O(session_ms), LONG, "120000", "heartbeat: session and rebalance timeout"},
    {"bytes", O(bytes), LONG, "0", "stop after so many (produce: sent; fetch: received)"},
};

#define R(field) offsetof(Run, field)
static const Option run_options[] = {
    {"host", R(host), TEXT, "127.0.0.1", ""},
    {"port", R(port), LONG, "9092", ""},
    {"warmup", R(warmup), REAL, "0", "seconds before the window"},
    {"seconds", R(seconds), REAL, "2", "of the window, at most"},
    {"server_pid", R(server_pid), LONG, "0", "whose CPU time to read, with all its children"},
    {"spin", R(spin), LONG, "1", "paced: poll without sleeping (a core of its own)"},
    {"ceiling", R(ceiling), LONG, "0", "1: against a responder of our own, not a broker"},
    {"client_core", R(client_core), LONG, "-1", "pin to it"},
    {"server_core", R(server_core), LONG, "-1", "pin the responder to it"},
};
enum { JOB_OPTIONS = sizeof job_options / sizeof *job_options,
       RUN_OPTIONS = sizeof run_options / sizeof *run_options };

static void set(const Option *o, void *base, const char *value) {
    void *field = (char *)base + o->at;
    char *end = NULL;
    if (o->type == TEXT) *(const char **)field = value;
    else if (o->type == LONG) *(long *)field = strtol(value, &end, 10);
    else *(double *)field = strtod(value, &end);
    if (end && (*end || end == value)) die("%s: not a number: %s", o->name, value);
}

static void defaults(const Option *o, int n, void *base) {
    for (; n > 0; n--, o++)
        if (o->value) set(o, base, o->value);
}

static void assign(const Option *o, int n, void *base, const char *text) {
    const char *equals = strchr(text, '=');
    for (; equals && n > 0; n--, o++)
        if (strlen(o->name) == (size_t)(equals - text) && !strncmp(o->name, text, strlen(o->name))) {
            set(o, base, equals + 1);
            return;
        }
    die("unknown option: %s", text);
}

static void usage(void) {
    puts("load RUN-OPTION=VALUE... MODE JOB-OPTION=VALUE... [+ MODE ...]");
    puts("modes: produce fetch tail heartbeat idle\n\nrun options:");
    for (const Option *o = run_options; o < run_options + RUN_OPTIONS; o++)
        printf("  %-20s %-10s %s\n", o->name, o->value ? o->value : "", o->about);
    puts("\njob options:");
    for (const Option *o = job_options; o < job_options + JOB_OPTIONS; o++)
        printf("  %-20s %-10s %s\n", o->name, o->value ? o->value : "", o->about);
    exit(0);
}

static const Mode *find_mode(const char *name) {
    static const Mode *modes[] = {&produce_mode, &fetch_mode, &tail_mode, &heartbeat_mode,
                                  &idle_mode};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(modes[i]->name, name)) return modes[i];
    return NULL;
}

static void check(const Job *job) {
    const Options *o = &job->o;
    bool topic = job->mode != &heartbeat_mode && job->mode != &idle_mode;
    if (topic && !o->topic) die("%s: no topic", job->mode->name);
    if (o->connections < 1 || o->inflight < 1 || o->records < 1 || o->record_bytes < 0 ||
        o->variants < 1 || o->partitions < 1 || o->per_request < 1)
        die("%s: a count below one", job->mode->name);
    if (strlen(o->client) > 64) die("%s: a client id over 64 bytes", job->mode->name);
    if (o->payload && (o->codec < 1 || o->codec > 4)) die("a payload needs a codec");
    if (o->acks == 0 && job->mode != &produce_mode) die("acks=0 is for produce");
}

int main(int argc, char **argv) {
    static Job jobs[16];
    Run run = {.jobs = jobs};
    defaults(run_options, RUN_OPTIONS, &run);
    if (argc < 2) usage();
    bool fresh = true;
    for (int i = 1; i < argc; i++) {
        const Mode *mode = fresh ? find_mode(argv[i]) : NULL;
        if (mode) {
            if (run.job_count == sizeof jobs / sizeof *jobs) die("too many jobs");
            jobs[run.job_count].mode = mode;
            defaults(job_options, JOB_OPTIONS, &jobs[run.job_count++].o);
            fresh = false;
        } else if (!strcmp(argv[i], "+")) fresh = true;
        else if (fresh) assign(run_options, RUN_OPTIONS, &run, argv[i]);
        else assign(job_options, JOB_OPTIONS, &jobs[run.job_count - 1].o, argv[i]);
    }
    if (!run.job_count) usage();
    for (Job *j = jobs; j < jobs + run.job_count; j++) {
        check(j);
        if (j->o.acks == 0) run.warmup = 0; /* counted whole: there are no answers to count */
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    if (run.ceiling) responder_start(&run);
    pin(run.client_core);
    if (!run.ceiling) net_check_versions(&run);
    engine_run(&run);
    responder_stop();
    uint64_t errors = 0;
    for (Job *j = jobs; j < jobs + run.job_count; j++) print_job(j), errors += j->errors;
    return errors > 0;
}
