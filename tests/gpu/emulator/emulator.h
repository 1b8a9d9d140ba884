/* The emulated CUDA driver: a libcuda.so.1 for tests, harsher than a card. This header is what its rooms
 * share:
 *
 *   calls_*.c ──► memory.c   handles (memfds), reservations, mappings; host.c: pinned host memory
 *     the ABI ──► stream.c   queues, who runs next; event.c; order.c: clocks, and who clashes with whom
 *             ──► copy.c, launch.c   what a queue's operations do
 *             ──► faults.c   what was asked to go wrong: the environment's CAIRN_EMULATOR, or control.h
 *
 * One lock (emulator_lock) guards all of it; a call holds it but while it runs an operation. Functions here
 * expect it held. Results are CUresult numbers (enum emulator_result), 0 is good.
 *
 * Nothing here orders processes: accesses of another process to exported memory are not seen. */
#ifndef CAIRN_TESTS_GPU_EMULATOR_H
#define CAIRN_TESTS_GPU_EMULATOR_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The numbers of cuda.h. */
enum emulator_result {
    EMULATOR_OK = 0,
    EMULATOR_INVALID_VALUE = 1,
    EMULATOR_OUT_OF_MEMORY = 2,
    EMULATOR_NOT_INITIALIZED = 3,
    EMULATOR_NO_DEVICE = 100,
    EMULATOR_INVALID_DEVICE = 101,
    EMULATOR_INVALID_IMAGE = 200,
    EMULATOR_INVALID_CONTEXT = 201,
    EMULATOR_ECC_UNCORRECTABLE = 214,
    EMULATOR_OPERATING_SYSTEM = 304,
    EMULATOR_INVALID_HANDLE = 400,
    EMULATOR_NOT_FOUND = 500,
    EMULATOR_NOT_READY = 600,
    EMULATOR_ILLEGAL_ADDRESS = 700,
    EMULATOR_ALREADY_REGISTERED = 712,
    EMULATOR_NOT_REGISTERED = 713,
    EMULATOR_MISALIGNED_ADDRESS = 716,
    EMULATOR_LAUNCH_FAILED = 719,
    EMULATOR_NOT_SUPPORTED = 801,
    EMULATOR_CAPTURE_UNSUPPORTED = 900,
    EMULATOR_CAPTURE_IMPLICIT = 906,
    EMULATOR_UNKNOWN = 999, /* a card that has fallen off its bus */
};

#define EMULATOR_PAGE   ((uint64_t)2 << 20) /* the granularity of memory, as cards have it */
#define EMULATOR_POISON 0xA5 /* where a copy will write to host memory, until it has */

extern pthread_mutex_t emulator_lock;
extern pthread_cond_t emulator_progress; /* an operation has ended */

/* ---- faults.c: options, chance, words ---- */

#define EMULATOR_DEVICES 8

/* Calls that the driver may refuse, each with a result of its own: NAME_fails and NAME_at in control.h. */
enum emulator_call {
    EMULATOR_RESERVE,
    EMULATOR_MAP,
    EMULATOR_READ_ONLY, /* cuMemSetAccess for reading alone */
    EMULATOR_IMPORT,
    EMULATOR_EXPORT_HANDLE,
    EMULATOR_REGISTER,
    EMULATOR_CALLS
};

struct emulator_refusal {
    uint64_t result; /* 0: none */
    uint64_t at;     /* only the n-th from now on; 0: each */
};

struct emulator_options {
    uint64_t seed, total, others; /* total, others: bytes */
    uint64_t alloc_fails, launch_fails, ecc_at,
        lost_at; /* the n-th from now on, 1 is the next; 0: none */
    uint64_t result, init_fails, open_fails, load_fails, call_fails, copy_fails; /* control.h */
    uint64_t copy_rate;       /* bytes a second; 0: as fast as it goes */
    uint64_t driver, devices; /* 13000: 13.0 */
    uint64_t no_pinning, no_export, no_reach, unordered, peers, mps, mode;
    uint64_t captured, queues, stuck, peeks, maps_wait; /* control.h */
    uint64_t count, quiet; /* count: what is misused is counted, and nothing aborts */
    struct emulator_refusal refusals[EMULATOR_CALLS];
};

extern struct emulator_options emulator_options;

/* "seed=5,total=8G,count=1": sets what it names. False: it names nothing of the above. */
bool emulator_options_set(const char *text);
/* What the environment's CAIRN_EMULATOR says; aborts if that is not understood. */
void emulator_options_begin(void);
/* The next number of the seed. */
uint64_t emulator_chance(uint64_t below);

/* A misuse that a real card may let pass in silence: said on stderr, then abort, or counted where it should
 * be. */
__attribute__((format(printf, 1, 2))) void emulator_complain(const char *format, ...);
/* Why a call returns an error. */
__attribute__((format(printf, 1, 2))) void emulator_say(const char *format, ...);
uint64_t emulator_complaints(void);
const char *emulator_words(void); /* the last of either */

/* Counts towards a fault; what to return, or what the device has failed with. */
enum emulator_result emulator_fault_alloc(void);
enum emulator_result emulator_fault_launch(void);
enum emulator_result emulator_fault_call(uint64_t *left); /* an option: init_fails and its kin */
enum emulator_result emulator_fault_run(void);            /* a copy or a launch, when it runs */
enum emulator_result emulator_fault_refusal(enum emulator_call call);
/* The error that all calls of the device return from now on; 0: none. */
enum emulator_result emulator_sticky(uint32_t device);
void emulator_fail(uint32_t device, enum emulator_result result);
void emulator_fail_not(uint32_t device); /* the context is gone, and what failed in it */

/* ---- handles: never addresses, so that who follows one dies; one that is gone is known ---- */

enum emulator_kind {
    EMULATOR_MEMORY = 0xA1,
    EMULATOR_CONTEXT,
    EMULATOR_STREAM,
    EMULATOR_EVENT,
    EMULATOR_LIBRARY,
    EMULATOR_KERNEL
};

static inline uint64_t emulator_handle(enum emulator_kind kind, uint32_t generation, uint32_t index)
{
    return (uint64_t)kind << 56 | (uint64_t)(generation & 0xFFFFFF) << 24 | (index & 0xFFFFFF);
}
static inline uint32_t emulator_handle_index(uint64_t handle)
{
    return (uint32_t)(handle & 0xFFFFFF);
}

/* ---- order.c: what operations touch, and what orders them ---- */

#define EMULATOR_SLOTS 128 /* streams at a time; 0 is the null stream */

struct emulator_clock {
    uint64_t at[EMULATOR_SLOTS]; /* by stream: its operations up to this one are known to be over */
};

struct emulator_range {
    uint64_t from, to;
};
struct emulator_ranges {
    struct emulator_range *at; /* owned; after emulator_touch_sort in order, and apart */
    size_t count, room;
};
/* The bytes of an operation: of host memory by address, of device memory by a number of the memory itself,
 * which two mappings of it share. */
struct emulator_touch {
    struct emulator_ranges reads, writes;
    bool to_host; /* it copies to host memory: it may peek (control.h) */
};

void emulator_clock_join(struct emulator_clock *clock, const struct emulator_clock *other);
void emulator_touch_add(struct emulator_touch *touch, uint64_t from, uint64_t bytes, bool writes);
void emulator_touch_sort(struct emulator_touch *touch);
void emulator_touch_release(struct emulator_touch *touch);

/* What the host knows to be over; joined with a stream's or event's clock when it has waited for it. */
extern struct emulator_clock emulator_host;
void emulator_host_learns(const struct emulator_clock *clock);

/* Notes what an operation of `slot` with this number touches, and complains of each that it clashes with
 * and that nothing orders. clock: as it was when the operation was put into the queue. touch: sorted; taken
 * over. name: static. In the order of the calls, or in that in which they run: clashes are the same. */
void emulator_order_add(uint32_t slot, uint64_t number, const struct emulator_clock *clock,
                        const char *name, struct emulator_touch *touch);
/* It has run. */
void emulator_order_ran(uint32_t slot, uint64_t number);
/* Some operation that was noted and has not run yet writes (or, with `reads`, reads) some of it. */
bool emulator_order_pending(uint64_t from, uint64_t bytes, bool reads);
/* Some operation that is still noted has written some of it. */
bool emulator_order_written(uint64_t from, uint64_t bytes);
/* The host does `what` to these bytes: complains of operations that it does not know to be over. */
void emulator_order_host(const struct emulator_touch *touch, const char *what);

/* ---- memory.c ---- */

/* Where kernels and copies find what lies at an address in the device: at the address + this. */
extern uint64_t emulator_distance;
bool emulator_memory_has(uint64_t address); /* it lies among the addresses that are given out */
bool emulator_memory_at(uint64_t address,
                        uint32_t *device_out); /* memory is mapped there: of which */

struct emulator_memory_info {
    uint64_t total, free;
};
enum emulator_result emulator_memory_create(uint32_t device, uint64_t bytes, bool exportable,
                                            uint64_t *handle_out);
enum emulator_result emulator_memory_release(uint64_t handle);
enum emulator_result emulator_memory_export(uint64_t handle, int *descriptor_out);
enum emulator_result emulator_memory_import(int descriptor, uint64_t *handle_out);
/* The handle of what is mapped there, to be released. */
enum emulator_result emulator_memory_retain(uint64_t address, uint64_t *handle_out);
enum emulator_result emulator_memory_device(uint64_t handle, uint32_t *device_out);
enum emulator_result emulator_memory_reserve(uint64_t bytes, uint64_t alignment,
                                             uint64_t *address_out);
enum emulator_result emulator_memory_unreserve(uint64_t address, uint64_t bytes);
enum emulator_result emulator_memory_map(uint64_t address, uint64_t bytes, uint64_t offset,
                                         uint64_t handle);
enum emulator_result emulator_memory_unmap(uint64_t address, uint64_t bytes);
/* Kernels and copies of the device may read (and write) it. */
enum emulator_result emulator_memory_access(uint64_t address, uint64_t bytes, uint32_t device,
                                            bool reads, bool writes);
void emulator_memory_info(uint32_t device, struct emulator_memory_info *info_out);
uint64_t emulator_memory_left(void); /* handles that nobody has released, and reservations */

/* Adds what an operation touches at an address of either memory; ILLEGAL_ADDRESS (and words) if it may not.
 * */
enum emulator_result emulator_memory_touch(struct emulator_touch *touch, uint32_t device,
                                           uint64_t address, uint64_t bytes, bool writes,
                                           const char *who);
/* The address, in text, of a number that a touch has. */
void emulator_memory_name(uint64_t number, char *text, size_t text_bytes);

/* ---- host.c: pinned host memory ---- */

enum emulator_pinned { EMULATOR_PAGEABLE, EMULATOR_PINNED, EMULATOR_PARTLY_PINNED };
enum emulator_pinned emulator_host_pinned(uint64_t address, uint64_t bytes);
enum emulator_result emulator_host_alloc(uint64_t bytes, uint32_t device, void **memory_out);
enum emulator_result emulator_host_free(uint64_t address);
enum emulator_result emulator_host_register(uint64_t address, uint64_t bytes, uint32_t device);
enum emulator_result emulator_host_unregister(uint64_t address);
void emulator_host_forget(uint32_t device);
enum emulator_result emulator_host_to_device(uint64_t address, uint64_t *at_out);
uint64_t emulator_host_from_device(uint64_t at);
uint64_t emulator_host_left(void);
extern int emulator_host_node; /* of what was pinned last; -1: of any */

/* ---- stream.c ---- */

struct emulator_op {
    const char *name;
    /* With the lock, just before it runs: what it touches, where that is not known earlier; or NULL. */
    enum emulator_result (*touch)(struct emulator_op *op, struct emulator_touch *touch);
    enum emulator_result (*run)(
        struct emulator_op *op);           /* without the lock; NULL: nothing, or it waits */
    void (*close)(struct emulator_op *op); /* frees it */
    bool counts;                           /* towards the faults of what runs */
    /* the queue's */
    struct emulator_op *next;
    uint64_t number;
    uint64_t turn; /* among those of all streams */
    uint32_t device;
    uint32_t awaited_slot;
    uint64_t awaited_number; /* of that slot; 0: it waits for nothing */
    /* it waits until the host has made this `value` or more; NULL: for none */
    const uint32_t *word;
    uint32_t value;
    bool is_late; /* behind a word: what it touches is noted as it runs */
    struct emulator_touch late_touch;
    struct emulator_clock clock;
};

enum emulator_result emulator_stream_open(uint32_t device, bool blocks, bool is_above,
                                          uint64_t *stream_out);
enum emulator_result emulator_stream_close(uint64_t stream);
/* The slot of a stream of the device; 0 for NULL. */
enum emulator_result emulator_stream_slot(uint64_t stream, uint32_t device, uint32_t *slot_out);
/* Puts it into the queue; touch as for emulator_order_add, or NULL. `op` is the queue's from now on. */
void emulator_stream_put(uint32_t slot, uint32_t device, struct emulator_op *op,
                         struct emulator_touch *touch);
/* What is in the queue now, as a number and a clock. */
struct emulator_mark {
    struct emulator_clock clock;
    uint64_t number; /* 0: nothing */
    uint32_t slot, device;
};
struct emulator_mark emulator_stream_mark(uint32_t slot, uint32_t device);
/* What comes next waits for the mark. */
void emulator_stream_await(uint32_t slot, uint32_t device, const struct emulator_mark *mark);
/* What comes next waits for the word. */
void emulator_stream_await_word(uint32_t slot, uint32_t device, const uint32_t *word,
                                uint32_t value);
/* Runs what may run until the mark is over; the host learns of it. */
enum emulator_result emulator_stream_wait(const struct emulator_mark *mark);
enum emulator_result emulator_stream_query(const struct emulator_mark *mark);
/* A call that a driver may let wait for all that the device has under way (maps_wait in control.h). */
void emulator_stream_wait_all(uint32_t device);
void emulator_stream_forget(uint32_t device); /* all of the device's: the context is gone */
uint64_t emulator_stream_left(void);
/* All that wait in queues are ordered after this operation. */
bool emulator_stream_all_know(uint32_t slot, uint64_t number);

/* ---- event.c ---- */

enum emulator_result emulator_event_open(bool spins, uint64_t *event_out);
extern uint64_t emulator_spins;   /* waits that kept a processor busy */
extern uint64_t emulator_events;  /* that were made */
extern uint64_t emulator_waits;   /* for events */
extern uint64_t emulator_flushes; /* of what network cards wrote */
enum emulator_result emulator_event_close(uint64_t event);
enum emulator_result emulator_event_record(uint64_t event, uint32_t slot, uint32_t device);
/* Of an event that was never recorded nothing waits, as documented. */
enum emulator_result emulator_event_await(uint64_t event, uint32_t slot, uint32_t device);
enum emulator_result emulator_event_wait(uint64_t event);
enum emulator_result emulator_event_query(uint64_t event);
uint64_t emulator_event_left(void);

/* ---- copy.c, launch.c: operations ---- */

enum emulator_way { EMULATOR_TO_DEVICE, EMULATOR_TO_HOST, EMULATOR_IN_DEVICE };
enum emulator_result emulator_copy(uint64_t to, uint64_t from, uint64_t bytes,
                                   enum emulator_way way, uint32_t slot, uint32_t device);
enum emulator_result emulator_fill(uint64_t to, uint8_t value, uint64_t bytes, uint32_t slot,
                                   uint32_t device);

struct emulator_grid {
    uint32_t blocks[3], threads[3], shared_bytes;
};
enum emulator_result emulator_kernel_find(const char *name, uint64_t *kernel_out);
bool emulator_kernel_known(uint64_t kernel);
enum emulator_result emulator_launch(uint64_t kernel, const struct emulator_grid *grid,
                                     uint32_t slot, uint32_t device, void **parameters);
extern uint64_t emulator_launches, emulator_gaps; /* control.h */

#endif
