// A program that decodes with a model of four layers, as its GPU would show it: program MODE STEPS [EXIT_CODE]
// MODE is eager or graph, with letters after a colon: p profiles itself in the middle, w starts two workers, k ends by SIGKILL, x by
// _exit, f forks a child that does nothing, n has 100,000 kernel names, q is quick (no waiting between steps),
// c says how often CUPTI was called before the first kernel, u goes on until SIGTERM, t has its variables
// overwritten by a title, as servers in Python do. Under a profiler that starts it, nothing begins
// before it records, and a sudden end comes when CUPTI has delivered its records.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern int cuptiGetTimestamp(uint64_t *);
extern int cuptiActivityFlushAll(uint32_t);
extern int standin_enabled(uint32_t);
extern int standin_pending(void);
extern void standin_take(int);
extern int standin_calls_meanwhile(void);
extern void standin_kernel(const char *, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, uint64_t);
extern void standin_copy(uint8_t, uint64_t, uint64_t, uint64_t, uint32_t);
extern void standin_graph(uint64_t, uint64_t, uint32_t, uint32_t);

static uint32_t correlation = 100;
extern char **environ;

// The variables move to the heap, and the place that the system shows is written over.
static void title(void) {
    int count = 0;
    while (environ[count]) count++;
    char **moved = calloc(count + 1, sizeof *moved);
    for (int i = 0; i < count; i++) {
        moved[i] = strdup(environ[i]);
        memset(environ[i], 0, strlen(environ[i]));
    }
    environ = moved;
}

static void sleep_ms(double ms) {
    struct timespec time = {(time_t)(ms / 1000), (long)((ms - 1000 * (time_t)(ms / 1000)) * 1e6)};
    nanosleep(&time, NULL);
}

static uint64_t now(void) { uint64_t ns; cuptiGetTimestamp(&ns); return ns; }

// What the driver does when CUDA is initialised.
static void initialise(void) {
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (!path) return;
    void *library = dlopen(path, RTLD_NOW);
    int (*start)(void) = library ? dlsym(library, "InitializeInjection") : NULL;
    if (!start || !start()) fprintf(stderr, "the library does not start: %s\n", dlerror());
}

static const char *LAYER[] = {
    "void rms_norm_kernel<__nv_bfloat16>(T1 *, const T1 *, float, int)", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
    "void rotary_embedding_kernel<__nv_bfloat16>(T1 *, int)",
    "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128, (int)64>, (bool)0>(Flash_fwd_params)",
    "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", "void rms_norm_kernel<__nv_bfloat16>(T1 *, const T1 *, float, int)",
    "nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT", "void act_and_mul_kernel<__nv_bfloat16, silu_kernel>(T1 *, const T1 *, int)",
    "nvjet_sm90_tst_64x8_64x16_1x4_v_bz_splitK_TNT"};
static const int RUNS_US[] = {3, 12, 2, 9, 8, 3, 40, 2, 20};

static uint64_t at;
static int quick;
static uint32_t graph_id;
static uint64_t node;

static void kernel(const char *name, int us, uint32_t blocks) {
    // One launch for all nodes of a graph.
    standin_kernel(name, at, at + us * 1000ull, graph_id ? correlation : ++correlation, blocks, graph_id, graph_id ? ++node : 0);
    at += us * 1000ull + 1000;
}

static void forward(int tokens) {
    kernel("void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(T1)", 2, tokens);
    for (int layer = 0; layer < 4; layer++)
        for (int i = 0; i < 9; i++) {
            int wide = i == 0 || i == 2 || i == 5 || i == 7;
            kernel(LAYER[i], RUNS_US[i] * (tokens > 1 ? 4 : 1), wide ? tokens : 132);
        }
    kernel("void rms_norm_kernel<__nv_bfloat16>(T1 *, const T1 *, float, int)", 3, tokens);
    kernel("nvjet_sm90_tst_256x8_64x4_2x1_v_bz_TNT", 60, 594);
}

static void step(int tokens, int graph, const char *name) {
    // Without waiting, steps take as long as they say, whatever the clock says.
    at = quick ? at + 50000 : now() - 600000;
    if (graph && tokens == 1 && !standin_enabled(10)) {
        standin_graph(at, at + 500000, ++correlation, 5);
        at += 501000;
    } else {
        if (graph && tokens == 1) { correlation++; graph_id = 5; node = 0; }
        forward(tokens);
        graph_id = 0;
    }
    if (name) kernel(name, 1, 1);
    kernel("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long, 4, 4>>(T3)", 5, 1);
    standin_copy(2, 8, at, at + 1000, ++correlation);
}

static volatile sig_atomic_t is_ended;
static void end(int signal) { is_ended = 1; }

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "graph";
    int steps = count > 2 ? atoi(arguments[2]) : 100, code = count > 3 ? atoi(arguments[3]) : 0;
    const char *colon = strchr(mode, ':'), *extras = colon ? colon + 1 : "";
    int graph = !strncmp(mode, "graph", 5);
    pid_t workers[2] = {0};
    if (strchr(extras, 'w'))
        for (int i = 0; i < 2; i++)
            if (!(workers[i] = fork())) {
                char rank[2] = {'0' + i, 0};
                setenv("RANK", rank, 1);
                execl("/proc/self/exe", "worker", graph ? "graph" : "eager", arguments[2], "0", NULL);
                _exit(99);
            }
    if (!workers[0]) initialise();
    int was_on = standin_enabled(2);
    if (strchr(extras, 'f') && !fork()) { sleep_ms(50); exit(0); }
    int is_endless = strchr(extras, 'u') != NULL;
    if (strchr(extras, 't')) title();
    if (is_endless) { signal(SIGTERM, end); printf("ready\n"); fflush(stdout); }
    for (int waits = 0; getenv("STANDIN_WAITS") && !workers[0] && !(standin_enabled(1) && standin_enabled(2) && standin_enabled(10)) && waits < 20000; waits++) sleep_ms(1);
    // The first step is said to have begun 0.6 ms before: after recording had.
    sleep_ms(20);
    quick = strchr(extras, 'q') != NULL;
    at = now();
    char *names = strchr(extras, 'n') ? malloc(100000 * 24) : NULL;
    for (int i = 0; !workers[0] && (is_endless ? !is_ended : i < steps); i++) {
        if (i == steps / 3 && strchr(extras, 'p')) standin_take(1);
        if (i == 2 * steps / 3 && strchr(extras, 'p')) standin_take(0);
        if (names)
            for (int k = 0; k < 1000 && i * 1000 + k < 100000; k++) {
                char *name = names + (i * 1000 + k) * 24;
                snprintf(name, 24, "made_up_%d", i * 1000 + k);
                at = now() - 100000;
                standin_kernel(name, at, at + 100, ++correlation, 1, 0, 0);
            }
        step(i % 64 ? 1 : 128, graph, NULL);
        if (!quick) sleep_ms(5);
    }
    for (int i = 0; i < 2; i++) if (workers[i]) waitpid(workers[i], NULL, 0);
    if (strchr(extras, 'c')) printf("recording when CUDA was ready: %d, %d calls of CUPTI before the first kernel\n", was_on, standin_calls_meanwhile());
    printf("%d steps\n", steps);
    fflush(stdout);
    if (strpbrk(extras, "kx")) for (int waits = 0; standin_pending() && waits < 20000; waits++) sleep_ms(1);
    if (strchr(extras, 'k')) kill(getpid(), SIGKILL);
    if (strchr(extras, 'x')) _exit(code);
    return code;
}
