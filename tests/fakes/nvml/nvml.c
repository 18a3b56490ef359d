/* A stand-in for libnvidia-ml.so.1: the few calls the agent makes, answered from the file that FAKE_NVML names.

   Lines of the file (read anew at every nvmlInit and every nvmlDeviceGetCount):
     driver VERSION CUDA                       e.g. driver 580.65.06 13000
     init CODE                                 nvmlInit fails with this NVML error
     hang SECONDS                              nvmlDeviceGetCount sleeps
     gpu UUID TOTAL_MIB USED_MIB UTIL TEMP POWER_MW MAJOR.MINOR NAME...      "-" where the card does not tell
     nvlink GPU_INDEX GPU_INDEX                these two are joined; without such a line nothing is told of links
     proc GPU_INDEX PID USED_MIB               a compute process; "-" for unknown memory
   Built in the tests:  cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define MAX 16
#define MIB (1ULL << 20)
#define UNKNOWN (~0ULL)

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int gpu, memory; } rates_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } process_t;
typedef struct { char uuid[80], name[96]; long total, used, util, temp, power; int major, minor; } gpu_t;
typedef struct { int gpu; unsigned int pid; long used; } proc_t;

static gpu_t gpus[MAX];
static proc_t procs[64];
static int joined[MAX][MAX], n_links;
static int n_gpus, n_procs, init_code, hang, cuda;
static char driver[64];

static long number(const char *text) { return strcmp(text, "-") ? atol(text) : -1; }

static void load(void) {
    char line[512], f[8][96];
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(joined, 0, sizeof joined);
    n_links = n_gpus = n_procs = init_code = hang = cuda = 0;
    driver[0] = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        gpu_t *g = &gpus[n_gpus];
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "driver %63s %d", driver, &cuda) >= 1) continue;
        if (sscanf(line, "init %d", &init_code) == 1) continue;
        if (sscanf(line, "hang %d", &hang) == 1) continue;
        int a, b;
        if (sscanf(line, "nvlink %d %d", &a, &b) == 2) {
            joined[a % MAX][b % MAX] = joined[b % MAX][a % MAX] = 1;
            n_links++;
            continue;
        }
        if (sscanf(line, "gpu %79s %95s %95s %95s %95s %95s %95s %95[^\n]", g->uuid, f[0], f[1], f[2], f[3], f[4],
                   f[5], g->name) == 8 && n_gpus < MAX) {
            g->total = number(f[0]); g->used = number(f[1]); g->util = number(f[2]);
            g->temp = number(f[3]); g->power = number(f[4]);
            g->major = g->minor = -1;
            sscanf(f[5], "%d.%d", &g->major, &g->minor);
            n_gpus++;
        } else if (sscanf(line, "proc %d %u %95s", &procs[n_procs].gpu, &procs[n_procs].pid, f[0]) == 3) {
            procs[n_procs++].used = number(f[0]);
        }
    }
    fclose(file);
}

static int text(const char *value, char *out, unsigned int size) {
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; load(); return init_code; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned int size) { return text(driver, out, size); }
int nvmlSystemGetCudaDriverVersion(int *out) { *out = cuda; return cuda ? OK : NOT_SUPPORTED; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

int nvmlDeviceGetCount_v2(unsigned int *out) {
    load();
    if (hang) sleep(hang);
    if (init_code) return init_code;
    *out = n_gpus;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **out) {
    if ((int)index >= n_gpus) return INVALID_ARGUMENT;
    *out = &gpus[index];
    return OK;
}
int nvmlDeviceGetName(gpu_t *g, char *out, unsigned int size) { return text(g->name, out, size); }
int nvmlDeviceGetUUID(gpu_t *g, char *out, unsigned int size) { return text(g->uuid, out, size); }
int nvmlDeviceGetMemoryInfo(gpu_t *g, memory_t *out) {
    if (g->total < 0) return NOT_SUPPORTED;
    out->total = g->total * MIB; out->used = g->used * MIB; out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(gpu_t *g, memory_v2_t *out) {
    if (g->total < 0) return NOT_SUPPORTED;
    out->total = g->total * MIB; out->used = g->used * MIB; out->reserved = 0; out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(gpu_t *g, rates_t *out) {
    if (g->util < 0) return NOT_SUPPORTED;
    out->gpu = g->util; out->memory = 0;
    return OK;
}
int nvmlDeviceGetTemperature(gpu_t *g, int sensor, unsigned int *out) {
    (void)sensor;
    if (g->temp < 0) return NOT_SUPPORTED;
    *out = g->temp;
    return OK;
}
int nvmlDeviceGetPowerUsage(gpu_t *g, unsigned int *out) {
    if (g->power < 0) return NOT_SUPPORTED;
    *out = g->power;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(gpu_t *g, int *major, int *minor) {
    if (g->major < 0) return NOT_SUPPORTED;
    *major = g->major; *minor = g->minor;
    return OK;
}
int nvmlDeviceGetP2PStatus(gpu_t *a, gpu_t *b, int kind, int *out) {
    if (!n_links || kind != 2) return NOT_SUPPORTED;
    *out = joined[a - gpus][b - gpus] ? 0 : 5;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *g, unsigned int *count, process_t *out) {
    unsigned int room = *count, found = 0;
    for (int i = 0; i < n_procs; i++) {
        if (&gpus[procs[i].gpu] != g) continue;
        if (found < room && out) {
            process_t p = {procs[i].pid, procs[i].used < 0 ? UNKNOWN : procs[i].used * MIB, ~0u, ~0u};
            out[found] = p;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(gpu_t *g, unsigned int *count, process_t *out) {
    (void)g; (void)out;
    *count = 0;
    return OK;
}
