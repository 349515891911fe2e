// A stand-in for libcupti: records what a scripted program says, in CUPTI's layout, while the kinds are enabled.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MEMCPY = 1, MEMSET = 2, KERNEL = 10, SYNC = 38, GRAPH = 51, KINDS = 64 };

static atomic_int enabled[KINDS], taken, dropped;
// Calls but those that switch kinds on, from the first ones on to the first record: a program makes its contexts then.
static atomic_int switched_on, has_records, meanwhile;
// A library that a tool has loaded is taken down at exit before what was registered earlier; a call after that crashes.
static atomic_int is_down;
static void take_down(void) { is_down = 1; }
static void called(void) {
    if (is_down) abort();
    if (switched_on && !has_records) meanwhile++;
}
static void (*request)(uint8_t **, size_t *, size_t *);
static void (*complete)(void *, uint32_t, uint8_t *, size_t, size_t);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *buffer;
// Calls that hand a buffer to the tool: until they return, its records may be lost with the process.
static int delivering;
static size_t size, used;

static size_t bytes_of(uint32_t kind) {
    switch (kind) {
    case KERNEL: return 216;
    case MEMCPY: case MEMSET: return 128;
    case SYNC: return 56;
    case GRAPH: return 64;
    }
    return 0;
}

int cuptiGetVersion(uint32_t *version) {
    static atomic_int asked;
    if (!atomic_exchange(&asked, 1)) atexit(take_down);
    *version = 130001;
    return 0;
}
int cuptiGetTimestamp(uint64_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    *now = at.tv_sec * 1000000000ull + at.tv_nsec;
    return 0;
}
int cuptiActivityEnable(uint32_t kind) {
    if (kind >= KINDS) return 2;
    enabled[kind] = 1;
    if (kind == MEMSET) switched_on = 1;
    return 0;
}
int cuptiActivityDisable(uint32_t kind) {
    if (kind >= KINDS) return 2;
    called();
    enabled[kind] = 0;
    // As CUPTI 13.0 does.
    if (kind == MEMSET) enabled[MEMCPY] = 0;
    return 0;
}
int cuptiActivityRegisterCallbacks(void *a, void *b) { request = a; complete = b; return 0; }
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    *count = atomic_exchange(&dropped, 0);
    return 0;
}
typedef void (*Callback)(void *, int, uint32_t, const void *);
static pthread_mutex_t subscription = PTHREAD_MUTEX_INITIALIZER;
static Callback callback;
static void *callback_data;
static int callback_enabled;
int cuptiSubscribe(void **subscriber, Callback function, void *data) {
    called();
    if (taken || callback) return 39;
    pthread_mutex_lock(&subscription);
    callback = function; callback_data = data; callback_enabled = 0;
    pthread_mutex_unlock(&subscription);
    *subscriber = (void *)1;
    return 0;
}
int cuptiUnsubscribe(void *subscriber) {
    pthread_mutex_lock(&subscription);
    callback = NULL;
    pthread_mutex_unlock(&subscription);
    return 0;
}
// Of all calls only cuLaunchKernel is made here.
int cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t call) {
    if (domain == 1 && call == 307) callback_enabled = on;
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *base, size_t valid, uint8_t **record) {
    uint8_t *next = *record ? *record + bytes_of(*(uint32_t *)*record) : base;
    if (next >= base + valid) return 21;
    *record = next;
    return 0;
}
int cuptiActivityFlushAll(uint32_t flag) {
    called();
    pthread_mutex_lock(&lock);
    uint8_t *full = buffer;
    size_t valid = used, whole = size;
    buffer = NULL;
    used = 0;
    delivering++;
    pthread_mutex_unlock(&lock);
    if (full) complete(NULL, 0, full, whole, valid);
    pthread_mutex_lock(&lock);
    delivering--;
    pthread_mutex_unlock(&lock);
    return 0;
}

// What follows is for the scripted program.
int standin_enabled(uint32_t kind) { return enabled[kind]; }
void standin_take(int is_taken) { taken = is_taken; }
int standin_pending(void) {
    pthread_mutex_lock(&lock);
    int pending = used > 0 || delivering > 0;
    pthread_mutex_unlock(&lock);
    return pending;
}
// The program launches work with this correlation.
void standin_launch(uint32_t correlation) {
    struct { int site; const char *name; const void *parameters; void *result; const char *symbol; void *context; uint32_t number; uint64_t *data; uint32_t correlation; } call =
        {0, "cuLaunchKernel", NULL, NULL, NULL, NULL, 1, NULL, correlation};
    for (; call.site < 2; call.site++) {
        pthread_mutex_lock(&subscription);
        if (callback && callback_enabled) callback(callback_data, 1, 307, &call);
        pthread_mutex_unlock(&subscription);
    }
}
int standin_calls_meanwhile(void) { return meanwhile; }

static void record(uint32_t kind, const uint8_t *bytes) {
    size_t length = bytes_of(kind);
    if (!enabled[kind] || !request) return;
    has_records = 1;
    for (;;) {
        pthread_mutex_lock(&lock);
        if (!buffer) {
            size_t max;
            request(&buffer, &size, &max);
            used = 0;
        }
        if (!buffer) { dropped++; pthread_mutex_unlock(&lock); return; }
        if (used + length <= size) {
            memcpy(buffer + used, bytes, length);
            used += length;
            pthread_mutex_unlock(&lock);
            return;
        }
        pthread_mutex_unlock(&lock);
        cuptiActivityFlushAll(0);
    }
}
static uint32_t device;
void standin_device(uint32_t number) { device = number; }
#define PUT(at, type, value) do { type v = (value); memcpy(bytes + (at), &v, sizeof v); } while (0)
void standin_kernel(const char *name, uint64_t start, uint64_t end, uint32_t correlation, uint32_t blocks, uint32_t graph, uint64_t node) {
    uint8_t bytes[216] = {0};
    PUT(0, uint32_t, KERNEL); PUT(6, uint16_t, 40); PUT(16, uint64_t, start); PUT(24, uint64_t, end); PUT(40, uint32_t, device); PUT(48, uint32_t, 7);
    PUT(52, uint32_t, blocks); PUT(56, uint32_t, 1); PUT(60, uint32_t, 1); PUT(64, uint32_t, 128); PUT(68, uint32_t, 1); PUT(72, uint32_t, 1);
    PUT(92, uint32_t, correlation); PUT(104, const char *, name); PUT(144, uint64_t, node); PUT(156, uint32_t, graph);
    record(KERNEL, bytes);
}
void standin_copy(uint8_t direction, uint64_t length, uint64_t start, uint64_t end, uint32_t correlation) {
    uint8_t bytes[128] = {0};
    PUT(0, uint32_t, MEMCPY); PUT(4, uint8_t, direction); PUT(8, uint64_t, length); PUT(16, uint64_t, start); PUT(24, uint64_t, end);
    PUT(40, uint32_t, 7); PUT(44, uint32_t, correlation);
    record(MEMCPY, bytes);
}
void standin_graph(uint64_t start, uint64_t end, uint32_t correlation, uint32_t graph) {
    uint8_t bytes[64] = {0};
    PUT(0, uint32_t, GRAPH); PUT(4, uint32_t, correlation); PUT(8, uint64_t, start); PUT(16, uint64_t, end); PUT(28, uint32_t, graph);
    PUT(36, uint32_t, 7);
    record(GRAPH, bytes);
}
