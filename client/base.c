#include "client/base.h"

#include <cairn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/text.h"
#include "proto/geometry/layout.h"
#include "proto/spec/spec.h"

/* ==== error ==== */

#define ROWS_MAX   64
#define TEXT_BYTES 8192

static _Thread_local char last_error[2048];

/* The differences that belong to `last_error`. */
static _Thread_local struct {
    char text[TEXT_BYTES];
    size_t used;
    struct cairn_difference rows[ROWS_MAX];
    size_t count;
} differences;

cairn_status client_fail(cairn_status status, const char *fmt, ...)
{
    va_list arguments;
    va_start(arguments, fmt);
    vsnprintf(last_error, sizeof last_error, fmt, arguments);
    va_end(arguments);
    text_mend(last_error, "\n"); // quoted text may contain anything
    differences.used = differences.count = 0;
    return status;
}

const char *cairn_status_name(int status)
{
    return status_code_name(status);
}

const char *cairn_version(void)
{
    return CAIRN_VERSION;
}

const char *cairn_error(void)
{
    return last_error;
}

/* Returns a copy; NULL for NULL. */
static const char *keep(const char *text)
{
    if (text == NULL) return NULL;
    char *at = differences.text + differences.used;
    const size_t bytes = strlen(text) + 1;
    memcpy(at, text, bytes);
    text_mend(at, "");
    differences.used += bytes;
    return at;
}

void client_differ(const Cairn__Difference *row)
{
    struct spec_difference d;
    char text[CAIRN_DIFFERENCE_TEXT_MAX];
    difference_of_message(row, &d);
    difference_text(&d, "here", "on the servers", text);
    const bool of_tensor = d.object == CAIRN_SPEC_OF_TENSOR;
    const char *side = d.here != NULL ? "only here" : "only there";
    struct cairn_difference own = {
        .struct_size = sizeof own,
        .text = text,
        .key = d.key,
        .value = d.value,
        .change = (cairn_change)d.change,
        .tensor = of_tensor ? d.name : NULL,
        .field = !of_tensor        ? NULL
                 : d.field != NULL ? d.field
                                   : side,
        .there = d.field != NULL ? d.there : NULL,
    };
    const char **const texts[] = { &own.text,   &own.key,   &own.value,
                                   &own.tensor, &own.field, &own.there };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        bytes += *texts[i] != NULL ? strlen(*texts[i]) + 1 : 0;
    if (differences.count == ROWS_MAX || bytes > TEXT_BYTES - differences.used) return;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) *texts[i] = keep(*texts[i]);
    differences.rows[differences.count++] = own;
}

cairn_status cairn_error_difference(size_t index, struct cairn_difference *out)
{
    const size_t least = offsetof(struct cairn_difference, change) + sizeof out->change;
    if (!struct_fits(out, least))
        return client_fail(CAIRN_ERR_INVALID, "out must be given, its struct_size at least %zu",
                           least);
    if (index >= differences.count) return CAIRN_ERR_NOT_FOUND;
    struct_copy_out(out, &differences.rows[index], sizeof differences.rows[index]);
    return CAIRN_OK;
}

/* ==== fork ==== */

/* Closes, in a forked process, the parent session's connection to the coordinator. If a data loader's
 * process kept its copy open, the coordinator would not notice that the trainer was killed. */

struct watched {
    const void *owner;
    int fd;
    dev_t device;
    ino_t inode; /* to detect that the number is another thread's file by now */
};

static pthread_mutex_t watched_lock = PTHREAD_MUTEX_INITIALIZER;
static struct watched *watched_list; /* [count], owned, under the lock */
static size_t watched_count;

static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
/* guards the handles' slots, below */
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t process; /* the id of this process */

static void before_fork(void)
{
    pthread_mutex_lock(&watched_lock);
    pthread_mutex_lock(&slots_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&slots_lock);
    pthread_mutex_unlock(&watched_lock);
}

static void in_child(void)
{
    struct stat now;
    for (size_t i = 0; i < watched_count; i++)
        if (fstat(watched_list[i].fd, &now) == 0 && now.st_dev == watched_list[i].device &&
            now.st_ino == watched_list[i].inode)
            close(watched_list[i].fd);
    watched_count = 0;
    process = getpid();
    after_fork();
}

static void listen_for_forks(void)
{
    process = getpid();
    pthread_atfork(before_fork, after_fork, in_child);
}

void fork_watch(const void *owner, int fd)
{
    struct stat now;
    if (fstat(fd, &now) != 0) return;
    pthread_once(&forks_once, listen_for_forks);
    HOLD_LOCK(&watched_lock);
    struct watched *larger = realloc(watched_list, (watched_count + 1) * sizeof *watched_list);
    if (larger != NULL) {
        watched_list = larger;
        watched_list[watched_count++] = (struct watched) { owner, fd, now.st_dev, now.st_ino };
    }
}

/* fd -1: all that the owner has. */
static void forget(const void *owner, int fd)
{
    HOLD_LOCK(&watched_lock);
    for (size_t i = 0; i < watched_count; i++)
        if (watched_list[i].owner == owner && (fd < 0 || watched_list[i].fd == fd))
            watched_list[i--] = watched_list[--watched_count];
    if (watched_count == 0) {
        free(watched_list);
        watched_list = NULL;
    }
}

void fork_forget_socket(const void *owner, int fd)
{
    forget(owner, fd);
}

void fork_forget(const void *owner)
{
    forget(owner, -1);
}

/* ==== handle ==== */

#define SLOTS_MAX ((size_t)1 << 20)
#define TAG       0xca1u /* in the top bits: no real address has these */

struct slot {
    void *object;
    handle_free_fn release;
    uint32_t generation; /* grows with every use of the slot; all 32 bits are in the handle */
    uint32_t refs;       /* 0: the slot is free */
    enum handle_kind kind;
    int open;
    pid_t process;    /* the process that opened the handle */
    size_t next_free; /* index + 1; 0 = none */
};

static struct slot *slots;
static size_t slot_count;
static size_t first_free; /* index + 1; 0 = none */

static void *handle_of(size_t index)
{
    const uint64_t bits = (uint64_t)TAG << 52 |
                          (uint64_t)(slots[index].generation & 0xffffffffu) << 20 | index;
    return (void *)(uintptr_t)bits;
}

/* Returns the slot that a handle names, open or not; NULL if there is none. Under the lock. */
static struct slot *find_slot(const void *handle)
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

void *handle_open(enum handle_kind kind, void *object, handle_free_fn release)
{
    void *handle = NULL;
    pthread_once(&forks_once, listen_for_forks);
    HOLD_LOCK(&slots_lock);
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
    return handle;
}

static int is_open(const struct slot *slot, enum handle_kind kind)
{
    return slot != NULL && slot->open && slot->kind == kind && slot->process == process;
}

void *handle_get(enum handle_kind kind, const void *handle)
{
    void *object = NULL;
    HOLD_LOCK(&slots_lock);
    struct slot *slot = find_slot(handle);
    if (is_open(slot, kind)) {
        slot->refs++;
        object = slot->object;
    }
    return object;
}

void handle_hold(const void *handle)
{
    HOLD_LOCK(&slots_lock);
    struct slot *slot = find_slot(handle);
    if (slot != NULL) slot->refs++;
}

/* Releases a reference, and with the last reference the slot. Called under the lock, which this
 * function releases. */
static void drop(struct slot *slot)
{
    void *object = NULL;
    handle_free_fn release = slot->release;
    if (--slot->refs == 0) {
        object = slot->object;
        slot->next_free = first_free;
        first_free = (size_t)(slot - slots) + 1;
    }
    pthread_mutex_unlock(&slots_lock);
    if (object != NULL && release != NULL) release(object);
}

void handle_put(const void *handle)
{
    pthread_mutex_lock(&slots_lock);
    struct slot *slot = find_slot(handle);
    if (slot == NULL) {
        pthread_mutex_unlock(&slots_lock);
        return;
    }
    drop(slot);
}

int handle_close(enum handle_kind kind, const void *handle)
{
    pthread_mutex_lock(&slots_lock);
    struct slot *slot = find_slot(handle);
    if (!is_open(slot, kind)) {
        pthread_mutex_unlock(&slots_lock);
        return 0;
    }
    slot->open = 0;
    drop(slot);
    return 1;
}

cairn_status handle_fail(const void *handle, const char *what)
{
    pthread_mutex_lock(&slots_lock);
    const struct slot *slot = find_slot(handle);
    const pid_t owner = slot != NULL && slot->open ? slot->process : process;
    pthread_mutex_unlock(&slots_lock);
    if (owner == process) return client_fail(CAIRN_ERR_HANDLE, "not an open %s", what);
    return client_fail(CAIRN_ERR_HANDLE,
                       "this %s belongs to process %ld, and a forked process cannot use it: start "
                       "that one by exec, and open a session there",
                       what, (long)owner);
}

/* ==== struct ==== */

#define SIZE_MAX_SANE 65536 /* no caller sets a larger struct_size */

static size_t size_of(const void *caller)
{
    size_t size;
    memcpy(&size, caller, sizeof size);
    return size;
}

bool struct_fits(const void *out, size_t least_bytes)
{
    return out != NULL && size_of(out) >= least_bytes && size_of(out) <= SIZE_MAX_SANE;
}

bool struct_copy_in(void *to, size_t bytes, size_t least_bytes, const void *from)
{
    if (!struct_fits(from, least_bytes)) return false;
    const size_t size = size_of(from);
    const unsigned char *byte = from;
    for (size_t i = bytes; i < size; i++)
        if (byte[i] != 0) return false;
    memset(to, 0, bytes);
    memcpy(to, from, size < bytes ? size : bytes);
    memcpy(to, &bytes, sizeof bytes);
    return true;
}

void struct_copy_out(void *out, const void *from, size_t bytes)
{
    const size_t size = size_of(out);
    memset(out, 0, size);
    memcpy(out, from, size < bytes ? size : bytes);
    memcpy(out, &size, sizeof size);
}

const void *struct_at(const void *first, size_t i)
{
    return (const unsigned char *)first + i * size_of(first);
}

/* ==== strides ==== */

/* ---- judging ---- */

/* Returns true if the byte offset to the end of the last element fits into ptrdiff_t. */
static bool reaches(const struct strides *s, size_t elem_bytes)
{
    uint64_t last = 0, far;
    for (uint32_t d = 0; d < s->rank; d++) {
        if (__builtin_mul_overflow(s->extent[d] - 1, s->stride[d], &far) ||
            __builtin_add_overflow(last, far, &last))
            return false;
    }
    return last < PTRDIFF_MAX / elem_bytes;
}

/* Adds an inner dimension. The new dimension is merged with the previous one if the previous one's
 * stride spans exactly the new dimension. */
static void add_dimension(struct strides *s, uint64_t extent, uint64_t stride)
{
    uint64_t over;
    if (extent == 1) return;
    const bool joins = s->rank > 0 && !__builtin_mul_overflow(extent, stride, &over) &&
                       s->stride[s->rank - 1] == over;
    if (!joins) s->extent[s->rank++] = 1;
    s->extent[s->rank - 1] *= extent;
    s->stride[s->rank - 1] = stride;
}

static cairn_status judge_number(int64_t stride, uint32_t d, uint32_t rank, struct sentence *why)
{
    if (stride < 0)
        return fail_with(why, CAIRN_ERR_INVALID,
                         "mem.stride[%" PRIu32 "] is %" PRId64 "; allowed: 0 or more", d, stride);
    if (stride == 0 || d < rank) return CAIRN_OK;
    return fail_with(why, CAIRN_ERR_INVALID,
                     "mem.stride[%" PRIu32 "] is %" PRId64 ", and there are %" PRIu32
                     " dimensions; those behind them are 0",
                     d, stride, rank);
}

cairn_status strides_judge(const int64_t stride[8], const struct cairn_box *box, size_t elem_bytes,
                           struct strides *out, struct sentence *why)
{
    struct strides s = { .given = false };
    bool any = false;
    for (uint32_t d = 0; d < 8; d++) {
        CAIRN_TRY(judge_number(stride[d], d, box->rank, why));
        any = any || stride[d] != 0;
    }
    if (any && box_element_count(box) > 0) {
        for (uint32_t d = 0; d < box->rank; d++)
            add_dimension(&s, box->extent[d], (uint64_t)stride[d]);
        if (!reaches(&s, elem_bytes))
            return fail_with(why, CAIRN_ERR_INVALID,
                             "mem.stride: the last element lies beyond the address space");
        s.given = s.rank > 1 || (s.rank == 1 && s.stride[0] != 1);
    }
    *out = s;
    return CAIRN_OK;
}

bool strides_apart(const struct strides *s)
{
    uint64_t spanned = 1; // elements that the dimensions in `done` span
    bool done[8] = { false };
    for (uint32_t n = 0; s->given && n < s->rank; n++) {
        uint32_t least = s->rank;
        for (uint32_t d = 0; d < s->rank; d++)
            if (!done[d] && (least == s->rank || s->stride[d] < s->stride[least])) least = d;
        done[least] = true;
        if (s->stride[least] < spanned) return false;
        spanned += (s->extent[least] - 1) * s->stride[least];
    }
    return true;
}

size_t strides_span(const struct strides *s, uint64_t elems, size_t elem_bytes)
{
    if (!s->given) return (size_t)elems * elem_bytes;
    uint64_t last = 0;
    for (uint32_t d = 0; d < s->rank; d++) last += (s->extent[d] - 1) * s->stride[d];
    return ((size_t)last + 1) * elem_bytes;
}

/* ---- walking ---- */

/* A position in a piece during iteration. */
struct walk {
    const struct strides *strides;
    uint64_t at[8]; /* the index in each dimension */
    uint64_t elem;  /* offset from the caller's pointer */
};

static struct walk walk_from(const struct strides *s, uint64_t first)
{
    struct walk walk = { .strides = s };
    for (uint32_t d = s->rank; d-- > 0; first /= s->extent[d]) {
        walk.at[d] = first % s->extent[d];
        walk.elem += walk.at[d] * s->stride[d];
    }
    return walk;
}

/* Returns how many elements, at most `left`, follow along the last dimension from here. */
static uint64_t along(const struct walk *walk, uint64_t left)
{
    const uint32_t last = walk->strides->rank - 1;
    const uint64_t run = walk->strides->extent[last] - walk->at[last];
    return run < left ? run : left;
}

static void go_on(struct walk *walk, uint64_t run)
{
    const struct strides *s = walk->strides;
    uint32_t d = s->rank - 1;
    walk->at[d] += run;
    walk->elem += run * s->stride[d];
    for (; d > 0 && walk->at[d] == s->extent[d]; d--) {
        walk->elem -= s->extent[d] * s->stride[d];
        walk->at[d] = 0;
        walk->at[d - 1]++;
        walk->elem += s->stride[d - 1];
    }
}

/* Copies `count` elements; `to_step` and `from_step` are byte strides. */
static void copy_elems(uint8_t *to, size_t to_step, const uint8_t *from, size_t from_step,
                       size_t elem_bytes, uint64_t count)
{
    if (to_step == elem_bytes && from_step == elem_bytes)
        memcpy(to, from, count * elem_bytes);
    else if (elem_bytes == 4)
        for (uint64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, 4);
    else if (elem_bytes == 2)
        for (uint64_t i = 0; i < count; i++) memcpy(to + i * to_step, from + i * from_step, 2);
    else
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * to_step, from + i * from_step, elem_bytes);
}

void strides_gather(const struct strides *s, const void *base, size_t elem_bytes, uint64_t first,
                    uint64_t count, void *out)
{
    const size_t step = (size_t)s->stride[s->rank - 1] * elem_bytes;
    struct walk walk = walk_from(s, first);
    uint8_t *to = out;
    for (uint64_t left = count, run; left > 0; left -= run) {
        run = along(&walk, left);
        copy_elems(to, elem_bytes, (const uint8_t *)base + walk.elem * elem_bytes, step, elem_bytes,
                   run);
        to += run * elem_bytes;
        go_on(&walk, run);
    }
}

void strides_scatter(const struct strides *s, void *base, size_t elem_bytes, uint64_t first,
                     uint64_t count, const void *in)
{
    const size_t step = (size_t)s->stride[s->rank - 1] * elem_bytes;
    struct walk walk = walk_from(s, first);
    const uint8_t *from = in;
    for (uint64_t left = count, run; left > 0; left -= run) {
        run = along(&walk, left);
        copy_elems((uint8_t *)base + walk.elem * elem_bytes, step, from, elem_bytes, elem_bytes,
                   run);
        from += run * elem_bytes;
        go_on(&walk, run);
    }
}

/* ==== step times ==== */

void step_times_waited(struct step_times *times, enum step_phase_times phase, uint64_t from_us)
{
    // A wait that began before the last commit counts only from that commit on.
    if (from_us < times->committed_us) from_us = times->committed_us;
    times->us[phase] += monotonic_us() - from_us;
}

void step_times_ended(struct step_times *times, uint64_t from_us)
{
    uint64_t pushed_us = times->pushed_us;
    if (pushed_us < from_us) pushed_us = from_us;
    times->us[CAIRN_TIME_PUSH] += pushed_us - from_us;
    step_times_waited(times, CAIRN_TIME_WAIT, pushed_us);
}

bool step_times_commit(struct step_times *times, uint64_t round, Cairn__StepTimes *out)
{
    const uint64_t now_us = monotonic_us(), begin_us = times->committed_us;
    uint64_t waited_us = 0;
    if (round == times->committed_round) return false;
    for (int p = CAIRN_TIME_PUSH; p < CAIRN_TIMES; p++) waited_us += times->us[p];
    const uint64_t all_us = now_us - begin_us; // waits of several threads may overlap
    times->us[CAIRN_TIME_COMPUTE] = all_us > waited_us ? all_us - waited_us : 0;
    for (int p = 0; p < CAIRN_TIMES; p++)
        times->reported[p] = times->us[p] < UINT32_MAX ? (uint32_t)times->us[p] : UINT32_MAX;
    memset(times->us, 0, sizeof times->us);
    times->committed_round = round;
    times->committed_us = now_us;
    if (begin_us == 0) return false;
    cairn__step_times__init(out);
    out->us = times->reported;
    out->n_us = CAIRN_TIMES;
    return true;
}
