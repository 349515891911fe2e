// A tensor-parallel program of several ranks, as its GPUs would show it: ranks STEPS CODE WORLD SLOW EXTRA_US [LETTERS]
// Rank SLOW computes EXTRA_US longer in each of 16 layers. Times are planned, not measured: rank 0 sets the start of each step in shared
// memory, one period after the last one, or later where the machine was too busy to keep up. Under a profiler, nothing begins before it records.
// Letters: h the host of the slow rank is late instead, d it dies by SIGKILL in the middle, l the last rank joins late, s the last rank
// launches nothing, g one process drives all GPUs, v two sizes of messages, n NCCL's log on stdout, p each step is followed by a pause of
// nine times its length, so that the slowest reader can follow.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern int cuptiGetTimestamp(uint64_t *);
extern int standin_enabled(uint32_t);
extern void standin_device(uint32_t);
extern void standin_kernel(const char *, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, uint64_t);
extern void standin_copy(uint8_t, uint64_t, uint64_t, uint64_t, uint32_t);

enum { LAYERS = 16, COMPUTE_US = 100, TRANSFER_US = 20, GAP_US = 2, KERNEL = 10, RANKS = 64, AHEAD = 8, NOT_YET = -1, GONE = INT_MAX };
// A plan that is later than this is moved: records arrive within a fraction of a second.
static const uint64_t LATE_NS = 100000000;
static uint32_t correlation = 100;
static uint64_t now(void) { uint64_t ns; cuptiGetTimestamp(&ns); return ns; }
static void sleep_until(uint64_t ns) {
    struct timespec at = {ns / 1000000000ull, ns % 1000000000ull};
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL);
}

// NVTX's side of its protocol with a tool, as far as NCCL uses it.
typedef struct { uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color; int32_t payload_type, payloads; uint64_t payload; int32_t message_type; const void *message; } Attributes;
typedef struct { uint64_t flags, type; const char *name, *description; uint64_t detail, offset; const void *semantics, *reserved; } Entry;
typedef struct { uint64_t mask; const char *name; uint64_t type, flags; const Entry *entries; size_t count, bytes, align; uint64_t id; void *extension; } Schema;
typedef struct { size_t id, slots; intptr_t *functions; } Segment;
typedef struct { uint16_t version, size, module, compat; size_t count; Segment *segments; void *export; const void *info; } Module;
typedef struct { uint64_t schema; size_t bytes; const void *data; } Data;
typedef struct { uint64_t comm; size_t bytes; int op; } ReduceParams;
typedef struct { uint64_t comm; int ranks, rank, device; } InitParams;
static void *functions[16], **slots[17];
static int module_table(int module, void ****table, unsigned *size) {
    if (module != 5) return 0;
    for (int i = 0; i < 16; i++) slots[i] = &functions[i];
    *table = slots; *size = 16;
    return 1;
}
static struct { size_t bytes; int (*table)(int, void ****, unsigned *); } callbacks = {16, module_table};
static const void *export_table(uint32_t id) { return id == 1 ? &callbacks : NULL; }
static intptr_t extension[16];
static void *domain;
enum { SID_INIT = (1 << 24), SID_REDUCE };

static void nvtx(void) {
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    if (!library) return;
    int (*core)(void *) = dlsym(library, "InitializeInjectionNvtx2"), (*more)(void *) = dlsym(library, "InitializeInjectionNvtxExtension");
    if (core) core(export_table);
    Segment segment = {0, 16, extension};
    Module module = {3, sizeof module, 2, 0x104, 1, &segment, NULL, NULL};
    if (more) more(&module);
    if (functions[12]) domain = ((void *(*)(const char *))functions[12])("NCCL");
    Entry reduce[] = {{0, 18, "NCCL communicator ID", NULL, 0, 0}, {0, 22, "Message size [bytes]", NULL, 0, 8}, {0, (1 << 24) + 50, "Reduction operation", NULL, 0, 16}};
    Entry init[] = {{0, 18, "NCCL communicator ID", NULL, 0, 0}, {0, 5, "No. of ranks", NULL, 0, 8}, {0, 5, "Rank", NULL, 0, 12}, {0, 5, "CUDA device", NULL, 0, 16}};
    Schema all[] = {{1 << 8, "AllReduce", 1, 0, reduce, 3, sizeof(ReduceParams), 0, SID_REDUCE}, {1 << 8, "CommInitRank", 1, 0, init, 4, sizeof(InitParams), 0, SID_INIT}};
    for (int i = 0; i < 2; i++) if (extension[0]) ((uint64_t(*)(void *, const void *))extension[0])(domain, &all[i]);
}
static void call(const char *name, uint64_t schema, const void *data, size_t bytes) {
    if (!functions[4] || !functions[5]) return;
    Data payload = {schema, bytes, data};
    Attributes attributes = {3, sizeof attributes, 0, 0, 0, (int32_t)0xDFBD0009, 1, (uint64_t)&payload, 1, name};
    ((int (*)(void *, const void *))functions[4])(domain, &attributes);
    ((int (*)(void *))functions[5])(domain);
}

static void initialise(void) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : NULL;
    int (*start)(void) = library ? dlsym(library, "InitializeInjection") : NULL;
    if (path && (!start || !start())) fprintf(stderr, "the library does not start: %s\n", dlerror());
    nvtx();
}

// What the ranks agree on. The start of a step is valid once `step` has reached it.
typedef struct { atomic_int step, at[RANKS]; _Atomic uint64_t start_ns[2 * AHEAD]; } Plan;
static Plan alone, *plan = &alone;
static void nap(void) { usleep(200); }
static const uint64_t GIVE_UP_NS = 60000000000ull;

// Waits until another rank has advanced `value` to `wanted`, unless it stands still for a minute: that rank has failed.
static void await(const char *what, atomic_int *value, int wanted) {
    uint64_t since = now();
    for (int is, seen = *value; (is = *value) < wanted; nap()) {
        if (is != seen) since = now();
        seen = is;
        if (now() > since + GIVE_UP_NS) {
            fprintf(stderr, "ranks: %s has stood at %d for 60 s, and should reach %d\n", what, seen, wanted);
            exit(97);
        }
    }
}

static void await_recording(void) {
    uint64_t give_up = now() + 20000000000ull;
    while (getenv("CUDA_INJECTION64_PATH") && !(standin_enabled(1) && standin_enabled(2) && standin_enabled(KERNEL)) && now() < give_up) nap();
}

// When step `step` begins. Rank 0 decides, when no other rank is far behind and those that are to join have joined.
static uint64_t start_of(int rank, int world, int step, int joins_at, uint64_t period) {
    plan->at[rank] = step;
    if (rank) {
        await("the plan of rank 0", &plan->step, step);
        return plan->start_ns[step % (2 * AHEAD)];
    }
    for (int other = 1; other < world; other++) {
        int is_awaited = other < world - 1 || step >= joins_at;
        if (is_awaited) await("another rank", &plan->at[other], step - (step == joins_at || !step ? 0 : AHEAD));
    }
    uint64_t planned = step ? plan->start_ns[(step - 1) % (2 * AHEAD)] + period : 0, is = now();
    plan->start_ns[step % (2 * AHEAD)] = planned + LATE_NS < is ? is : planned;
    plan->step = step;
    return plan->start_ns[step % (2 * AHEAD)];
}

// The records of one step that began at `at`.
static void record(int rank, int slow, int extra, uint64_t at, const char *letters, int device) {
    int host = strchr(letters, 'h') != NULL;
    standin_device(device);
    standin_kernel("void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(T1)", at, at + 2000, ++correlation, 1, 0, 0);
    at += 3000;
    for (int layer = 0; layer < LAYERS; layer++) {
        size_t bytes = strchr(letters, 'v') && layer % 2 ? 8192 : 1 << 20;
        ReduceParams params = {0xabcdef, bytes, 0};
        call("ncclAllReduce", SID_REDUCE, &params, sizeof params);
        uint64_t late = rank == slow ? extra * 1000ull : 0, start = at + (host ? late : 0), end = at + COMPUTE_US * 1000ull + late;
        uint64_t part = (end - start) / 4;
        standin_kernel("void rms_norm_kernel<__nv_bfloat16>(T1 *, const T1 *, float, int)", start, start + part - 1000, ++correlation, 1, 0, 0);
        standin_kernel("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", start + part, start + 2 * part - 1000, ++correlation, 132, 0, 0);
        standin_kernel("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64>, (bool)0>(Flash_fwd_params)", start + 2 * part, start + 3 * part - 1000, ++correlation, 132, 0, 0);
        standin_kernel("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", start + 3 * part, end, ++correlation, 132, 0, 0);
        uint64_t last = at + (COMPUTE_US + extra) * 1000ull;
        standin_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", end, last + TRANSFER_US * 1000ull, ++correlation, 2, 0, 0);
        at = last + (TRANSFER_US + GAP_US) * 1000ull;
    }
    standin_kernel("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>>(T3)", at, at + 5000, ++correlation, 1, 0, 0);
    standin_copy(2, 8, at + 6000, at + 7000, ++correlation);
}

static int start_ranks(int world, const char *letters, char **arguments) {
    if (strchr(letters, 'n')) {
        printf("node:1:1 [0] NCCL INFO NCCL version 2.30.7+cuda13.3\nnode:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks %d cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 - Init COMPLETE\n", world);
        printf("node:1:1 [0] NCCL INFO Channel 00/24 : 0 1 2 3\nnode:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n");
        fflush(stdout);
    }
    int fd = memfd_create("plan", 0);
    if (fd < 0 || ftruncate(fd, sizeof(Plan))) return 98;
    plan = mmap(NULL, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    plan->step = NOT_YET;
    for (int i = 0; i < RANKS; i++) plan->at[i] = NOT_YET;
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    setenv("PLAN", text, 1);
    pid_t all[RANKS] = {0};
    int worst = 0, status;
    for (int i = 0; i < world && i < RANKS; i++)
        if (!(all[i] = fork())) {
            snprintf(text, sizeof text, "%d", i);
            setenv("RANK", text, 1); setenv("LOCAL_RANK", text, 1); setenv("CUDA_VISIBLE_DEVICES", text, 1);
            snprintf(text, sizeof text, "%d", world);
            setenv("WORLD_SIZE", text, 1);
            execv("/proc/self/exe", arguments);
            _exit(99);
        }
    for (int i = 0; i < world; i++) { waitpid(all[i], &status, 0); if (WIFEXITED(status) && WEXITSTATUS(status) > worst) worst = WEXITSTATUS(status); }
    return worst;
}

int main(int count, char **arguments) {
    if (count < 6) return 2;
    int steps = atoi(arguments[1]), code = atoi(arguments[2]), world = atoi(arguments[3]), slow = atoi(arguments[4]), extra = atoi(arguments[5]);
    const char *letters = count > 6 ? arguments[6] : "";
    const char *rank_text = getenv("RANK");
    int one_process = strchr(letters, 'g') != NULL;
    if (!rank_text && !one_process) {
        int worst = start_ranks(world, letters, arguments);
        printf("%d steps of %d ranks\n", steps, world);
        return worst ? worst : code;
    }
    int rank = rank_text ? atoi(rank_text) : 0, is_last = rank == world - 1, first = 0, joins_at = 0;
    if (getenv("PLAN")) plan = mmap(NULL, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(getenv("PLAN")), 0);
    if (strchr(letters, 'l')) joins_at = steps / 2;
    if (is_last && joins_at) {
        await("the plan of rank 0", &plan->step, steps / 4);
        first = joins_at;
    }
    initialise();
    await_recording();
    InitParams init = {0xabcdef, world, rank, 0};
    call("ncclCommInitRank", SID_INIT, &init, sizeof init);
    if (is_last && strchr(letters, 's')) {
        plan->at[rank] = GONE;
        await("the plan of rank 0", &plan->step, steps - 1);
        return code;
    }
    uint64_t period = (LAYERS * (COMPUTE_US + TRANSFER_US + GAP_US + extra) + 300) * 1000ull * (strchr(letters, 'p') ? 10 : 1);
    for (int step = first; step < steps; step++) {
        uint64_t at = start_of(rank, one_process ? 1 : world, step, joins_at, period);
        sleep_until(at + period);
        if (rank == slow && strchr(letters, 'd') && step == steps / 2) { plan->at[rank] = GONE; kill(getpid(), SIGKILL); }
        if (!one_process) record(rank, slow, extra, at, letters, 0);
        for (int gpu = 0; one_process && gpu < world; gpu++) record(gpu, slow, extra, at, letters, gpu);
    }
    plan->at[rank] = GONE;
    return code;
}
