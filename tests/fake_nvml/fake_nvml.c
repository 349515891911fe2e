/* A libnvidia-ml.so.1 of two kinds: one odd card that refuses half of the calls, and with -DHOPPER cards that answer
   all of them. INIT, COUNT, GPM, LOSE_AFTER, BOARD, SLOW_UTIL_US, SLOW_ENERGY_US, STRANGER, FAN and HANG bend them. With -DFULL
   beside -DHOPPER they also tell what stays as it is: limits, links, modes. -DSLICE is what a container with one MIG slice sees: the
   whole GPU, without its utilisation and memory. */
#include <string.h>
#include <unistd.h>

#ifndef INIT
#define INIT 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef LOSE_AFTER
#define LOSE_AFTER 1000000
#endif
#ifndef GPM
#define GPM 1
#endif
#ifndef NAME
#define NAME "NVIDIA Odd 9000"
#endif
#ifndef SLOW_UTIL_US
#define SLOW_UTIL_US 0
#endif
#ifndef SLOW_ENERGY_US
#define SLOW_ENERGY_US 0
#endif

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

static int clock_calls, temperature_calls;

int nvmlInit_v2(void) {
#ifdef HANG
    sleep(600);
#endif
    return INIT;
}
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "570.00.01", n); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return OK; }
static int handles[8];
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= COUNT) return INVALID_ARGUMENT;
    *device = &handles[index];
    return OK;
}
int nvmlDeviceGetName(void *d, char *text, unsigned n) { strncpy(text, NAME, n); return OK; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned n) {
    strncpy(text, "GPU-odd0", n);
    text[7] = '0' + ((int *)d - handles);
    return OK;
}
#ifdef BOARD
int nvmlDeviceGetBoardId(void *d, unsigned *board) { *board = BOARD; return OK; }
#endif
int nvmlDeviceGetClockInfo(void *d, unsigned kind, unsigned *mhz) {
    if (++clock_calls > LOSE_AFTER) return GPU_IS_LOST;
    *mhz = kind == 1 ? 1500 : 9000;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(void *d, unsigned kind, unsigned *mhz) { *mhz = kind == 1 ? 2000 : 9500; return OK; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 123456; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *mask) { *mask = 0x404; return OK; }

#ifndef HOPPER
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { return NO_PERMISSION; }
int nvmlDeviceGetUtilizationRates(void *d, void *rates) { return NOT_SUPPORTED; }
/* Asked a second time after its refusal it would answer: the reading must stay away nevertheless. */
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *c) {
    *c = 66;
    return temperature_calls++ ? OK : NOT_SUPPORTED;
}
/* nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetFieldValues and nvmlDeviceGetTemperatureThreshold are not there at all. */
#else
#ifndef POWER_LIMIT_W
#define POWER_LIMIT_W 700
#endif
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { *mw = POWER_LIMIT_W * 1000; return OK; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *rates) {
#ifdef SLICE
    return NOT_SUPPORTED;
#endif
    usleep(SLOW_UTIL_US);
    rates[0] = 90, rates[1] = 40;
    return OK;
}
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *c) { *c = 66; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) {
    static unsigned long long spent = 1000;
    usleep(SLOW_ENERGY_US);
    *mj = spent += 500;
    return OK;
}
/* Power is there, the counters of heat are not, and the memory's temperature may not be read. */
struct field { unsigned id, scope; long long at, latency; int type, result; unsigned long long value; };
int nvmlDeviceGetFieldValues(void *d, int n, struct field *fields) {
    for (int i = 0; i < n; i++) {
        fields[i].result = OK, fields[i].type = 3;
        switch (fields[i].id) {
        case 186: fields[i].value = 612500, fields[i].type = 1; break;
        case 74: fields[i].value = 7000000000ull; break;
        case 75: case 76: case 77: case 79: fields[i].value = fields[i].id; break;
        case 82: fields[i].result = NO_PERMISSION; break;
        default: fields[i].result = NOT_SUPPORTED;
        }
    }
    return OK;
}
struct process { unsigned pid; unsigned long long mem; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *out) {
#ifdef STRANGER
    if (*n < 1) { *n = 1; return INSUFFICIENT_SIZE; }
    *n = 1;
    out[0].pid = 1, out[0].mem = 9ull << 30;
#else
    *n = 0;
#endif
    return OK;
}
/* As a driver does it: a large buffer is asked for, one entry with the mean since then is filled; none of an idle process.
   STRANGER=2 does not report it. */
struct use { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; };
int nvmlDeviceGetProcessUtilization(void *d, struct use *out, unsigned *n, unsigned long long since) {
#ifdef STRANGER
    if (STRANGER == 2) return NOT_SUPPORTED;
    if (!out) { *n = 72; return INSUFFICIENT_SIZE; }
    *n = 1;
    memset(out, 0, sizeof *out);
    out->pid = 1, out->at = since + 900000, out->sm = 42, out->mem = 17;
    return OK;
#else
    *n = 72;
    return out ? NOT_FOUND : INSUFFICIENT_SIZE;
#endif
}
#ifdef FAN
struct rpm { unsigned version, fan, speed; };
int nvmlDeviceGetFanSpeed_v2(void *d, unsigned fan, unsigned *pct) { *pct = FAN; return fan ? INVALID_ARGUMENT : OK; }
int nvmlDeviceGetFanSpeedRPM(void *d, struct rpm *rpm) { rpm->speed = FAN * 30; return OK; }
#else
int nvmlDeviceGetFanSpeed_v2(void *d, unsigned fan, unsigned *pct) { return INVALID_ARGUMENT; }
#endif
/* GPM: the tensor pipe is refused, the rest counts. */
struct support { unsigned version, supported; };
int nvmlGpmQueryDeviceSupport(void *d, struct support *s) { s->supported = GPM; return OK; }
int nvmlGpmSampleAlloc(void **sample) { static int samples; *sample = &samples; return OK; }
int nvmlGpmSampleFree(void *sample) { return OK; }
int nvmlGpmSampleGet(void *d, void *sample) { return OK; }
struct metric { unsigned id; int result; double value; const char *names[3]; };
struct metrics { unsigned version, n; void *first, *second; struct metric metrics[210]; };
int nvmlGpmMetricsGet(struct metrics *get) {
    for (unsigned i = 0; i < get->n; i++) {
        get->metrics[i].result = get->metrics[i].id == 5 ? NOT_SUPPORTED : OK;
        get->metrics[i].value = get->metrics[i].id;
    }
    return OK;
}
#ifdef FULL
#ifndef LANES
#define LANES 16
#endif
#ifndef MIG
#ifdef SLICE
#define MIG 1
#else
#define MIG 0
#endif
#endif
#ifndef PERSISTENCE
#define PERSISTENCE 1
#endif
#ifndef CUDA
#define CUDA 13000
#endif
#ifndef SLOWDOWN_C
#define SLOWDOWN_C 92
#endif
#ifndef LOST_BITS
#define LOST_BITS 0
#endif
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return OK; }
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *d, struct memory *m) {
#ifdef SLICE
    return NO_PERMISSION;
#endif
    m->total = 141ull << 30, m->reserved = 0, m->used = 1ull << 30, m->free = 140ull << 30;
    return OK;
}
int nvmlDeviceGetMigMode(void *d, unsigned *current, unsigned *pending) { *current = *pending = MIG; return OK; }
int nvmlDeviceGetVirtualizationMode(void *d, unsigned *mode) { *mode = 0; return OK; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { *major = 9, *minor = 0; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *d, unsigned *mw) { *mw = 700000; return OK; }
int nvmlDeviceGetPowerManagementLimitConstraints(void *d, unsigned *least, unsigned *most) {
    *least = 200000, *most = 700000;
    return OK;
}
int nvmlDeviceGetApplicationsClock(void *d, unsigned kind, unsigned *mhz) { *mhz = 2000; return OK; }
int nvmlDeviceGetTemperatureThreshold(void *d, unsigned kind, unsigned *c) { *c = SLOWDOWN_C; return OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *n) { *n = 5; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *n) { *n = 16; return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *n) { *n = 1; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *n) { *n = LANES; return OK; }
int nvmlDeviceGetPersistenceMode(void *d, unsigned *mode) { *mode = PERSISTENCE; return OK; }
int nvmlDeviceGetTotalEccErrors(void *d, unsigned kind, unsigned since, unsigned long long *n) {
    *n = kind == 1 ? LOST_BITS : 0;
    return OK;
}
#endif
#endif
