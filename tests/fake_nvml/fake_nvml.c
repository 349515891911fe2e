/* A libnvidia-ml.so.1 with one odd GPU: half of the calls are refused. INIT, COUNT and LOSE_AFTER bend it. */
#include <string.h>

#ifndef INIT
#define INIT 0
#endif
#ifndef COUNT
#define COUNT 1
#endif
#ifndef LOSE_AFTER
#define LOSE_AFTER 1000000
#endif

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, GPU_IS_LOST = 15 };

static int clock_calls, temperature_calls;

int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "570.00.01", n); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    static int handles[8];
    if (index >= COUNT) return INVALID_ARGUMENT;
    *device = &handles[index];
    return OK;
}
int nvmlDeviceGetName(void *d, char *text, unsigned n) { strncpy(text, "NVIDIA Odd 9000", n); return OK; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned n) { strncpy(text, "GPU-odd", n); return OK; }
int nvmlDeviceGetClockInfo(void *d, unsigned kind, unsigned *mhz) {
    if (++clock_calls > LOSE_AFTER) return GPU_IS_LOST;
    *mhz = kind == 1 ? 1500 : 9000;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(void *d, unsigned kind, unsigned *mhz) { *mhz = kind == 1 ? 2000 : 9500; return OK; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 123456; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { return NO_PERMISSION; }
int nvmlDeviceGetUtilizationRates(void *d, void *rates) { return NOT_SUPPORTED; }
/* Asked a second time after its refusal it would answer: the reading must stay away nevertheless. */
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *c) {
    *c = 66;
    return temperature_calls++ ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *mask) { *mask = 0x404; return OK; }
/* nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetFieldValues and nvmlDeviceGetTemperatureThreshold are not there at all. */
