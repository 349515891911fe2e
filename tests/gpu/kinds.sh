#!/usr/bin/env bash
# What each kind of CUPTI's records costs a program that launches every kernel from the host: a library of its own with one kind switched on from the start,
# decode.py eager, each setting ROUNDS times in turn. kinds.sh [ROUNDS]. Needs gcc, PyTorch and a GPU.
P=$(cd "$(dirname "$0")" && pwd); mkdir -p /tmp/kinds; cd /tmp/kinds
cat > kinds.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static void requested(uint8_t **buffer, size_t *size, size_t *records) { *size = 1 << 18; *buffer = aligned_alloc(8, *size); *records = 0; }
static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) { (void)context; (void)stream; (void)size; (void)valid; free(buffer); }
int InitializeInjection(void) {
    const char *setting = getenv("KINDS");
    if (!setting || !strcmp(setting, "nothing")) return 1;
    void *cupti = dlopen(getenv("CUPTI"), RTLD_NOW | RTLD_GLOBAL);
    if (!cupti || !strcmp(setting, "open")) return 1;
    int (*registers)(void *, void *) = dlsym(cupti, "cuptiActivityRegisterCallbacks");
    int (*enable)(int) = dlsym(cupti, "cuptiActivityEnable");
    int (*disable)(int) = dlsym(cupti, "cuptiActivityDisable");
    registers((void *)requested, (void *)completed);
    int off = setting[0] == '-';
    for (char *rest = strdup(setting + off), *one; (one = strsep(&rest, "+"));) { int kind = atoi(one); if (kind) enable(kind); if (kind && off) disable(kind); }
    return 1;
}
C
gcc -shared -fPIC -O2 -o kinds.so kinds.c -ldl || exit 1
export CUPTI=$(python3 -c "
import glob, sysconfig
print(sorted(glob.glob(sysconfig.get_paths()['purelib'] + '/nvidia/**/libcupti.so*', recursive=True))[0])")
echo "CUPTI: $CUPTI"
# 1 copies, 2 memsets, 38 waits, 10 kernels; a minus: switched on and off again.
for n in $(seq ${1:-2}); do
  for kinds in alone nothing open register 1 2 38 1+2+38 -1+2+38 10; do
    if [ $kinds = alone ]; then python3 $P/decode.py 0.5b eager 6 64 > one.json 2> one.err
    else CUDA_INJECTION64_PATH=$PWD/kinds.so KINDS=$kinds python3 $P/decode.py 0.5b eager 6 64 > one.json 2> one.err; fi
    python3 -c "
import json
p = json.loads(open('one.json').read().strip().splitlines()[-1]); times = sorted(r['tpot_ms'] for r in p['rounds'])
print(f'$kinds'.ljust(10), ' '.join(f'{t:6.2f}' for t in times))" || tail -2 one.err
  done
done
