#include "client/base/handle.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/base/error.h"

#define SLOTS_MAX ((size_t)1 << 20)
#define TAG       0xca1u /* in the top bits: no address of ours or anyone's looks so */

struct slot {
    void *object;
    cairn_handle_free_fn release;
    uint32_t generation; /* grows with every use of the slot; 31 bits of it are in the handle */
    uint32_t refs;       /* 0: the slot is free */
    enum cairn_handle_kind kind;
    int open;
    pid_t process;    /* that opened it */
    size_t next_free; /* index + 1; 0 = none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pid_t process; /* this one */
static struct slot *slots;
static size_t slot_count;
static size_t first_free; /* index + 1; 0 = none */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    process = getpid();
    pthread_mutex_unlock(&lock);
}

static void begin(void)
{
    process = getpid();
    pthread_atfork(before_fork, after_fork, in_child);
}

static void *handle_of(size_t index)
{
    const uint64_t bits = (uint64_t)TAG << 52 |
                          (uint64_t)(slots[index].generation & 0xffffffffu) << 20 | index;
    return (void *)(uintptr_t)bits;
}

/* The slot that a handle names, open or not; NULL if there is none. Under the lock. */
static struct slot *find(const void *handle)
{
    const uint64_t bits = (uintptr_t)handle;
    const size_t index = bits & (SLOTS_MAX - 1);
    if (bits >> 52 != TAG || index >= slot_count) return NULL;
    struct slot *slot = &slots[index];
    if (slot->refs == 0 || slot->generation != (uint32_t)(bits >> 20)) return NULL;
    return slot;
}

static int add_slots(void)
{
    const size_t count = slot_count == 0 ? 64 : slot_count * 2;
    if (count > SLOTS_MAX) return 0;
    struct slot *more = realloc(slots, count * sizeof *more);
    if (more == NULL) return 0;
    slots = more;
    for (size_t i = slot_count; i < count; i++)
        slots[i] = (struct slot) { .next_free = i + 1 < count ? i + 2 : 0 };
    first_free = slot_count + 1;
    slot_count = count;
    return 1;
}

void *cairn_handle_open(enum cairn_handle_kind kind, void *object, cairn_handle_free_fn release)
{
    void *handle = NULL;
    pthread_once(&once, begin);
    pthread_mutex_lock(&lock);
    if (first_free != 0 || add_slots()) {
        const size_t index = first_free - 1;
        struct slot *slot = &slots[index];
        first_free = slot->next_free;
        *slot = (struct slot) { .object = object,
                                .release = release,
                                .generation = slot->generation + 1,
                                .refs = 1,
                                .kind = kind,
                                .open = 1,
                                .process = process };
        handle = handle_of(index);
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

static int is_open(const struct slot *slot, enum cairn_handle_kind kind)
{
    return slot != NULL && slot->open && slot->kind == kind && slot->process == process;
}

void *cairn_handle_get(enum cairn_handle_kind kind, const void *handle)
{
    void *object = NULL;
    pthread_mutex_lock(&lock);
    struct slot *slot = find(handle);
    if (is_open(slot, kind)) {
        slot->refs++;
        object = slot->object;
    }
    pthread_mutex_unlock(&lock);
    return object;
}

void cairn_handle_hold(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct slot *slot = find(handle);
    if (slot != NULL) slot->refs++;
    pthread_mutex_unlock(&lock);
}

/* Gives one reference back and the slot with the last. Unlocks. */
static void drop(struct slot *slot)
{
    void *object = NULL;
    cairn_handle_free_fn release = slot->release;
    if (--slot->refs == 0) {
        object = slot->object;
        slot->next_free = first_free;
        first_free = (size_t)(slot - slots) + 1;
    }
    pthread_mutex_unlock(&lock);
    if (object != NULL && release != NULL) release(object);
}

void cairn_handle_put(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct slot *slot = find(handle);
    if (slot == NULL) {
        pthread_mutex_unlock(&lock);
        return;
    }
    drop(slot);
}

int cairn_handle_close(enum cairn_handle_kind kind, const void *handle)
{
    pthread_mutex_lock(&lock);
    struct slot *slot = find(handle);
    if (!is_open(slot, kind)) {
        pthread_mutex_unlock(&lock);
        return 0;
    }
    slot->open = 0;
    drop(slot);
    return 1;
}

cairn_status cairn_handle_fail(const void *handle, const char *what)
{
    pthread_mutex_lock(&lock);
    const struct slot *slot = find(handle);
    const pid_t owner = slot != NULL && slot->open ? slot->process : process;
    pthread_mutex_unlock(&lock);
    if (owner == process) return cairn_client_fail(CAIRN_ERR_HANDLE, "not an open %s", what);
    return cairn_client_fail(CAIRN_ERR_HANDLE,
                             "this %s is of process %ld, and a process that was forked cannot use "
                             "it: start the new one by exec, and open a session there",
                             what, (long)owner);
}
