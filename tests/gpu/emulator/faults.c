/* What a test asks to go wrong, where chance comes from, and the words for what was misused. */
#include "tests/gpu/emulator/emulator.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t emulator_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t emulator_progress = PTHREAD_COND_INITIALIZER;

struct emulator_options emulator_options = { .total = (uint64_t)8 << 30,
                                             .driver = 13000,
                                             .devices = 1 };

static uint64_t chance;
static uint64_t complaints;
static char words[1024];
static enum emulator_result sticky[EMULATOR_DEVICES];

/* Two rows of the table of options. */
#define REFUSAL(name, call)                       \
    { name "_fails", &o->refusals[call].result }, \
    {                                             \
        name "_at", &o->refusals[call].at         \
    }

static uint64_t *option(const char *name, size_t length)
{
    struct emulator_options *o = &emulator_options;
    const struct {
        const char *name;
        uint64_t *at;
    } table[] = {
        { "seed", &o->seed },
        { "total", &o->total },
        { "others", &o->others },
        { "alloc_fails", &o->alloc_fails },
        { "launch_fails", &o->launch_fails },
        { "ecc_at", &o->ecc_at },
        { "lost_at", &o->lost_at },
        { "result", &o->result },
        { "init_fails", &o->init_fails },
        { "open_fails", &o->open_fails },
        { "load_fails", &o->load_fails },
        { "call_fails", &o->call_fails },
        { "copy_fails", &o->copy_fails },
        { "copy_rate", &o->copy_rate },
        { "driver", &o->driver },
        { "devices", &o->devices },
        { "no_pinning", &o->no_pinning },
        { "mps", &o->mps },
        { "mode", &o->mode },
        { "no_export", &o->no_export },
        { "no_reach", &o->no_reach },
        { "unordered", &o->unordered },
        { "peers", &o->peers },
        { "captured", &o->captured },
        { "queues", &o->queues },
        { "stuck", &o->stuck },
        { "peeks", &o->peeks },
        { "maps_wait", &o->maps_wait },
        { "count", &o->count },
        { "quiet", &o->quiet },
        REFUSAL("reserve", EMULATOR_RESERVE),
        REFUSAL("map", EMULATOR_MAP),
        REFUSAL("read_only", EMULATOR_READ_ONLY),
        REFUSAL("import", EMULATOR_IMPORT),
        REFUSAL("export", EMULATOR_EXPORT_HANDLE),
        REFUSAL("register", EMULATOR_REGISTER),
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return table[i].at;
    return NULL;
}

bool emulator_options_set(const char *text)
{
    while (*text != '\0') {
        const size_t length = strcspn(text, "=");
        uint64_t *at = option(text, length);
        if (at == NULL || text[length] != '=' || !isdigit((unsigned char)text[length + 1]))
            return false;
        char *end;
        uint64_t value = strtoull(text + length + 1, &end, 10);
        const char *units = "KMG", *unit = *end == '\0' ? NULL : strchr(units, *end);
        if (unit != NULL) {
            value <<= 10 * (unit - units + 1);
            end++;
        }
        if (*end != '\0' && *end != ',') return false;
        *at = value;
        if (at == &emulator_options.seed) chance = value;
        text = *end == ',' ? end + 1 : end;
    }
    return emulator_options.devices <= EMULATOR_DEVICES;
}

void emulator_options_begin(void)
{
    const char *text = getenv("CAIRN_EMULATOR");
    if (text == NULL || emulator_options_set(text)) return;
    fprintf(stderr, "emulated card: CAIRN_EMULATOR is not understood: %s\n", text);
    abort();
}

/* splitmix64 */
uint64_t emulator_chance(uint64_t below)
{
    uint64_t z = chance += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % below;
}

static void speak(const char *format, va_list list)
{
    vsnprintf(words, sizeof words, format, list);
    if (!emulator_options.quiet) fprintf(stderr, "emulated card: %s\n", words);
}

void emulator_complain(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    speak(format, list);
    va_end(list);
    complaints++;
    if (!emulator_options.count) abort();
}

void emulator_say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    speak(format, list);
    va_end(list);
}

uint64_t emulator_complaints(void)
{
    return complaints;
}

const char *emulator_words(void)
{
    return words;
}

/* True when `*left` has come down to its last. */
static bool strikes(uint64_t *left)
{
    return *left != 0 && --*left == 0;
}

enum emulator_result emulator_fault_alloc(void)
{
    return strikes(&emulator_options.alloc_fails) ? EMULATOR_OUT_OF_MEMORY : EMULATOR_OK;
}

enum emulator_result emulator_fault_launch(void)
{
    if (!strikes(&emulator_options.launch_fails)) return EMULATOR_OK;
    return emulator_options.result == 0 ? EMULATOR_LAUNCH_FAILED
                                        : (enum emulator_result)emulator_options.result;
}

enum emulator_result emulator_fault_call(uint64_t *left)
{
    return strikes(left) ? (enum emulator_result)emulator_options.result : EMULATOR_OK;
}

enum emulator_result emulator_fault_refusal(enum emulator_call call)
{
    struct emulator_refusal *refusal = &emulator_options.refusals[call];
    if (refusal->result == 0) return EMULATOR_OK;
    if (refusal->at > 1) return refusal->at--, EMULATOR_OK;
    const enum emulator_result result = (enum emulator_result)refusal->result;
    if (refusal->at == 1) *refusal = (struct emulator_refusal) { 0 };
    return result;
}

enum emulator_result emulator_fault_run(void)
{
    if (strikes(&emulator_options.ecc_at)) return EMULATOR_ECC_UNCORRECTABLE;
    return strikes(&emulator_options.lost_at) ? EMULATOR_UNKNOWN : EMULATOR_OK;
}

enum emulator_result emulator_sticky(uint32_t device)
{
    return sticky[device];
}

void emulator_fail(uint32_t device, enum emulator_result result)
{
    if (sticky[device] == EMULATOR_OK) sticky[device] = result;
}

void emulator_fail_not(uint32_t device)
{
    if (sticky[device] != EMULATOR_UNKNOWN) sticky[device] = EMULATOR_OK; // a lost card stays lost
}
