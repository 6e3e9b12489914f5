/* A stand-in for the NVIDIA management library, driven by a text file.
 *
 * NVML_STUB_SCENARIO names the file, which is read again whenever it changes:
 *
 *   devices N                      how many there are
 *   set DEVICE KEY VALUE [RATE]    a value, and by how much it grows in a second
 *   error DEVICE FUNCTION CODE     the function fails with an nvmlReturn_t
 *   hang DEVICE FUNCTION           the function never returns
 *   event DEVICE CODE              an Xid, given once to whoever waits
 *
 * DEVICE is an index, or * for all. A symbol is left out by -DOMIT_<SYMBOL>, as in an
 * old driver. Layouts are those of nvml.h, as nvidia-ml-py declares them.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10, MOST = 16, RULES = 512 };

typedef struct { int index; } Device;
typedef struct { char verb[8]; int device; char key[64]; double value, rate; } Rule;

static Device devices[MOST];
static Rule rules[RULES];
static int rule_count, device_count, events_given;
static struct timespec changed, loaded;

static void load(void) {
    const char *path = getenv("NVML_STUB_SCENARIO");
    struct stat found;
    if (!path || stat(path, &found)) return;
    if (rule_count && !memcmp(&found.st_mtim, &changed, sizeof changed)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    changed = found.st_mtim;
    if (!loaded.tv_sec) clock_gettime(CLOCK_MONOTONIC, &loaded);
    char line[256], device[16];
    rule_count = 0;
    while (rule_count < RULES && fgets(line, sizeof line, file)) {
        Rule *rule = &rules[rule_count];
        memset(rule, 0, sizeof *rule);
        if (sscanf(line, "devices %d", &device_count) == 1) continue;
        if (sscanf(line, "event %15s %lf", device, &rule->value) == 2) strcpy(rule->verb, "event");
        else if (sscanf(line, "%7s %15s %63s %lf %lf", rule->verb, device, rule->key, &rule->value,
                        &rule->rate) < 3) continue;
        rule->device = device[0] == '*' ? -1 : atoi(device);
        rule_count++;
    }
    fclose(file);
    for (int i = 0; i < MOST; i++) devices[i].index = i;
}

static Rule *find(const char *verb, int device, const char *key) {
    for (int i = rule_count - 1; i >= 0; i--) {
        Rule *rule = &rules[i];
        if (!strcmp(rule->verb, verb) && !strcmp(rule->key, key) &&
            (rule->device < 0 || rule->device == device)) return rule;
    }
    return 0;
}

static double value(int device, const char *key, double otherwise) {
    Rule *rule = find("set", device, key);
    if (!rule) return otherwise;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (now.tv_sec - loaded.tv_sec) + (now.tv_nsec - loaded.tv_nsec) * 1e-9;
    return rule->value + rule->rate * passed;
}

static int enter(int device, const char *function) {
    load();
    if (find("hang", device, function)) for (;;) pause();
    Rule *rule = find("error", device, function);
    return rule ? (int)rule->value : OK;
}

#define CALL(device, name) do { int failed = enter(device, name); if (failed) return failed; } while (0)
#define DEVICE_CALL(name, type, key, otherwise)            \
    int name(Device *device, type *out) {                  \
        CALL(device->index, #name);                        \
        *out = (type)value(device->index, key, otherwise); \
        return OK;                                         \
    }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return enter(-2, "nvmlInitWithFlags"); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "stub 1"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    CALL(-2, "nvmlDeviceGetCount_v2");
    *count = device_count;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    CALL((int)index, "nvmlDeviceGetHandleByIndex_v2");
    *device = &devices[index];
    return OK;
}
int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
    CALL(device->index, "nvmlDeviceGetUUID");
    snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", device->index);
    return OK;
}
int nvmlDeviceGetName(Device *device, char *text, unsigned size) {
    CALL(device->index, "nvmlDeviceGetName");
    snprintf(text, size, "Stub H100");
    return OK;
}
struct Pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(Device *device, struct Pci *out) {
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02d:00.0", device->index);
    return OK;
}
struct Memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(Device *device, struct Memory *out) {
    CALL(device->index, "nvmlDeviceGetMemoryInfo");
    out->total = 80ull << 30;
    out->used = (unsigned long long)value(device->index, "mem_used", 1 << 30);
    out->free = out->total - out->used;
    return OK;
}
struct Rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(Device *device, struct Rates *out) {
    CALL(device->index, "nvmlDeviceGetUtilizationRates");
    out->gpu = (unsigned)value(device->index, "gpu_util", 50);
    out->memory = (unsigned)value(device->index, "mem_util", 25);
    return OK;
}
DEVICE_CALL(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_gen", 5)
DEVICE_CALL(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width", 16)
int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *out) {
    CALL(device->index, "nvmlDeviceGetNvLinkState");
    *out = link < (unsigned)value(device->index, "nvlinks", 0);
    return OK;
}
DEVICE_CALL(nvmlDeviceGetPowerUsage, unsigned, "power", 300000)
DEVICE_CALL(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy", 0)
#ifndef OMIT_nvmlDeviceGetCurrentClocksEventReasons
DEVICE_CALL(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle", 0)
#endif
DEVICE_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle", 0)
DEVICE_CALL(nvmlDeviceGetSupportedEventTypes, unsigned long long, "event_types", 0x8)
int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *out) {
    CALL(device->index, "nvmlDeviceGetClockInfo");
    *out = (unsigned)value(device->index, kind == 1 ? "sm_clock" : "mem_clock", 1980);
    return OK;
}
int nvmlDeviceGetMaxClockInfo(Device *device, unsigned kind, unsigned *out) {
    (void)kind;
    CALL(device->index, "nvmlDeviceGetMaxClockInfo");
    *out = 1980;
    return OK;
}
int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *out) {
    (void)sensor;
    CALL(device->index, "nvmlDeviceGetTemperature");
    *out = (unsigned)value(device->index, "temperature", 60);
    return OK;
}
int nvmlDeviceGetTotalEccErrors(Device *device, unsigned error, unsigned kind, unsigned long long *out) {
    (void)kind;
    CALL(device->index, "nvmlDeviceGetTotalEccErrors");
    *out = (unsigned long long)value(device->index, error ? "ecc_uncorrected" : "ecc_corrected", 0);
    return OK;
}
#ifndef OMIT_nvmlDeviceGetRemappedRows
int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    CALL(device->index, "nvmlDeviceGetRemappedRows");
    *corrected = (unsigned)value(device->index, "remapped_corrected", 0);
    *uncorrected = (unsigned)value(device->index, "remapped_uncorrected", 0);
    *pending = (unsigned)value(device->index, "remap_pending", 0);
    *failed = (unsigned)value(device->index, "remap_failed", 0);
    return OK;
}
#endif
struct Field {
    uint32_t id, scope;
    int64_t stamp, latency;
    unsigned type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
};
int nvmlDeviceGetFieldValues(Device *device, int count, struct Field *fields) {
    CALL(device->index, "nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) {
        char key[64];
        snprintf(key, sizeof key, "field_%u_%d", fields[i].id, (int)fields[i].scope);
        Rule *rule = find("set", device->index, key);
        fields[i].code = rule ? OK : NOT_SUPPORTED;
        fields[i].type = 3;
        if (rule) fields[i].value.ull = (unsigned long long)value(device->index, key, 0);
    }
    return OK;
}
struct Process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, struct Process *out) {
    CALL(device->index, "nvmlDeviceGetComputeRunningProcesses_v3");
    Rule *rule = find("set", device->index, "pid");
    unsigned room = *count;
    *count = rule != 0;
    if (!rule) return OK;
    if (!room || !out) return SMALL;
    *out = (struct Process){(unsigned)rule->value, 1ull << 30, ~0u, ~0u};
    return OK;
}
int nvmlEventSetCreate(void **set) { *set = &rules; return enter(-2, "nvmlEventSetCreate"); }
int nvmlDeviceRegisterEvents(Device *device, unsigned long long kinds, void *set) {
    (void)kinds, (void)set;
    return enter(device->index, "nvmlDeviceRegisterEvents");
}
struct Event { Device *device; unsigned long long kind, code; unsigned gpu, compute; };
int nvmlEventSetWait_v2(void *set, struct Event *event, unsigned timeout_ms) {
    (void)set;
    CALL(-2, "nvmlEventSetWait_v2");
    for (unsigned waited = 0; waited < timeout_ms; waited += 20) {
        load();
        int seen = 0;
        for (int i = 0; i < rule_count; i++) {
            if (strcmp(rules[i].verb, "event") || seen++ < events_given) continue;
            events_given++;
            *event = (struct Event){&devices[rules[i].device], 0x8, (unsigned long long)rules[i].value, ~0u, ~0u};
            return OK;
        }
        usleep(20000);
    }
    return TIMEOUT;
}
#ifndef OMIT_nvmlGpmQueryDeviceSupport
struct Support { unsigned version, supported; };
int nvmlGpmQueryDeviceSupport(Device *device, struct Support *out) {
    CALL(device->index, "nvmlGpmQueryDeviceSupport");
    out->supported = (unsigned)value(device->index, "gpm", 1);
    return OK;
}
#endif
struct Sample { int device; int taken; };
int nvmlGpmSampleAlloc(struct Sample **out) { *out = calloc(1, sizeof **out); return OK; }
int nvmlGpmSampleGet(Device *device, struct Sample *sample) {
    CALL(device->index, "nvmlGpmSampleGet");
    static int order;
    *sample = (struct Sample){device->index, ++order};
    return OK;
}
struct Metric { unsigned id, code; double value; const char *names[3]; };
struct Metrics { unsigned version, count; struct Sample *first, *second; struct Metric metrics[]; };
int nvmlGpmMetricsGet(struct Metrics *asked) {
    CALL(asked->second->device, "nvmlGpmMetricsGet");
    if (!asked->first->taken || asked->first->taken >= asked->second->taken) return 2;
    for (unsigned i = 0; i < asked->count; i++) {
        char key[64];
        snprintf(key, sizeof key, "gpm_%u", asked->metrics[i].id);
        asked->metrics[i].code = find("set", asked->second->device, key) ? OK : NOT_SUPPORTED;
        asked->metrics[i].value = value(asked->second->device, key, 0);
    }
    return OK;
}
