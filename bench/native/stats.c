/* Latency histogram, CPU time of a process and its children, pinning, and the JSON line of a job. */
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

void histogram_add(Histogram *h, int64_t ns) {
    uint64_t v = ns < 0 ? 0 : (uint64_t)ns;
    int shift = v >> SUB_BITS ? 63 - __builtin_clzll(v) - SUB_BITS : 0;
    h->buckets[((size_t)shift << SUB_BITS) + (v >> shift)]++;
    h->count++, h->sum += v;
    if (v > h->max) h->max = v;
}

/* The upper end of the bucket that holds the given share of all values, in us. */
static double percentile_us(const Histogram *h, double share) {
    uint64_t rank = (uint64_t)((double)h->count * share), seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen > rank || (seen == h->count && seen)) {
            size_t shift = i >> SUB_BITS ? (i >> SUB_BITS) - 1 : 0;
            /* Index i stands for the values v with (shift << SUB_BITS) + (v >> shift) == i. */
            uint64_t top = ((i - (shift << SUB_BITS)) << shift) + ((1ull << shift) - 1);
            return (double)(top < h->max ? top : h->max) / 1e3;
        }
    }
    return 0;
}

/* User and system seconds of a process with all its threads, in ns precision; 0 where there is none.
 * /proc/PID/stat counts in steps of 10 ms, too coarse for a paced load. */
static double cpu_of_threads(long pid) {
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid((pid_t)pid, &clock) || clock_gettime(clock, &t)) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The children that have ended and were waited for. */
static double cpu_of_ended(long pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    char *after = strrchr(line, ')'); /* the name may hold anything */
    long user = 0, system = 0;
    if (!after || sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %ld %ld",
                         &user, &system) != 2)
        return 0;
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* A process and all its descendants: what helper processes of a broker do is its work, too. */
static double cpu_of_tree(long pid, int depth) {
    char path[300];
    double sum = cpu_of_threads(pid) + cpu_of_ended(pid);
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *tasks = depth ? opendir(path) : NULL;
    if (!tasks) return sum;
    for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
        snprintf(path, sizeof path, "/proc/%ld/task/%s/children", pid, task->d_name);
        FILE *f = *task->d_name == '.' ? NULL : fopen(path, "r");
        if (!f) continue;
        for (long child; fscanf(f, "%ld", &child) == 1;) sum += cpu_of_tree(child, depth - 1);
        fclose(f);
    }
    closedir(tasks);
    return sum;
}

double cpu_of(long pid) { return pid > 0 ? cpu_of_tree(pid, 4) : 0; }

/* This process to one core; -1: wherever the kernel likes. */
void pin(long core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (core >= 0 && sched_setaffinity(0, sizeof set, &set)) perror("load: pin");
}

static void print_text(const char *s) {
    putchar('"');
    for (; *s; s++)
        if (*s == '"' || *s == '\\') printf("\\%c", *s);
        else if ((unsigned char)*s < 32) printf("\\u%04x", *s);
        else putchar(*s);
    putchar('"');
}

void print_job(const Job *job) {
    const Histogram *h = &job->latency;
    double s = (double)(job->end_ns - job->begin_ns) / 1e9;
    if (s <= 0) s = 1e-9;
    printf("{\"mode\": \"%s\", \"requests\": %lu, \"records\": %lu, \"bytes\": %lu, ",
           job->mode->name, job->requests, job->records, job->bytes);
    printf("\"seconds\": %.6f, \"requests_s\": %.1f, \"records_s\": %.1f, \"mb_s\": %.3f, ", s,
           (double)job->requests / s, (double)job->records / s, (double)job->bytes / s / 1e6);
    printf("\"latency_us\": {\"count\": %lu, \"mean\": %.1f, \"p50\": %.1f, \"p90\": %.1f, "
           "\"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}, ",
           h->count, h->count ? (double)h->sum / (double)h->count / 1e3 : 0.0,
           percentile_us(h, .5), percentile_us(h, .9), percentile_us(h, .99),
           percentile_us(h, .999), (double)h->max / 1e3);
    printf("\"unsent\": %lu, \"server_cpu_s\": %.3f, \"client_cpu_s\": %.3f, \"errors\": %lu, "
           "\"error\": ", job->unsent, job->run->server_cpu_s, job->run->client_cpu_s, job->errors);
    if (job->errors) print_text(job->first_error);
    else fputs("null", stdout);
    puts("}");
}
