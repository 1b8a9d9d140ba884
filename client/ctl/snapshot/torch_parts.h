/* The elements of torch's files: text, the opcodes of a pickle, archives. Private to torch_*.c. */
#ifndef CAIRN_CTL_SNAPSHOT_TORCH_PARTS_H
#define CAIRN_CTL_SNAPSHOT_TORCH_PARTS_H

#include "client/ctl/snapshot/torch_file.h"

/* A file of an archive. */
struct ctl_torch_member {
    char name[40];
    uint64_t header_at, bytes; /* of the archive */
    size_t sum_at[2];          /* where its CRC-32 stands in the text */
    uint32_t sum;
};
/* A storage: a plane of a tensor. */
struct ctl_torch_store {
    uint32_t tensor, plane;
    cairn_dtype dtype;                  /* as it is read */
    const struct ctl_number_type *type; /* as torch is told */
    uint64_t bytes;
};

struct ctl_torch_file {
    uint8_t *text;                    /* owned */
    struct ctl_torch_member *members; /* owned, of all archives */
    struct ctl_torch_store *stores;   /* owned */
    size_t text_bytes, text_capacity, member_count, member_capacity, store_count, store_capacity;
    bool failed; /* there was no memory */
};

/* ---- torch_pickle.c: text, and the few opcodes that it takes ---- */

void cairn_ctl_put(struct ctl_torch_file *t, const void *from, size_t bytes); /* NULL: zeros */
void cairn_ctl_put_number(struct ctl_torch_file *t, uint64_t value, size_t bytes);
void cairn_ctl_put_text(struct ctl_torch_file *t, const char *text);
void cairn_ctl_say(struct ctl_torch_file *t, const char *text);
void cairn_ctl_say_number(struct ctl_torch_file *t, uint64_t value);
void cairn_ctl_say_real(struct ctl_torch_file *t, double value);
void cairn_ctl_say_flag(struct ctl_torch_file *t, bool value);
/* A tensor of a storage: all of it, or a box. `first_of_archive`: the store that is data/0. */
void cairn_ctl_say_tensor(struct ctl_torch_file *t, size_t store, size_t first_of_archive,
                          const struct cairn_shape *shape, const struct cairn_box *box);
size_t cairn_ctl_torch_add_store(struct ctl_torch_file *t, struct ctl_torch_store store);
/* Text from there on, the caller's from now on, and no more the file's. NULL if there was no memory. */
uint8_t *cairn_ctl_torch_take_text(struct ctl_torch_file *t, size_t from, size_t *bytes_out);

/* ---- torch_archive.c ---- */

/* An archive behind what the file has: the pickle, which was taken and is freed, and these stores. */
void cairn_ctl_torch_pack(struct ctl_torch_file *t, struct cairn_snapshot_file *file,
                          const char *folder, uint8_t *pickle, size_t pickle_bytes,
                          size_t first_store, size_t store_count);

/* ---- torch_order.c: parameters and groups as torch's optimizer has them ---- */

struct ctl_torch_order {
    const struct cairn_manifest *manifest;
    const struct cairn_job_spec_data *spec;
    size_t *tensors; /* owned: as their maker listed them, those of no place behind, by name */
    size_t *groups;  /* owned: group by group, as torch has them */
};
bool cairn_ctl_torch_order(const struct cairn_manifest *manifest, struct ctl_torch_order *out);
void cairn_ctl_torch_order_release(struct ctl_torch_order *o);
bool cairn_ctl_torch_is_whole(const struct cairn_tensor_spec *t);
/* Calls `each` for every parameter of the group, from number `next` on; the number behind them. */
size_t cairn_ctl_torch_walk(const struct ctl_torch_order *o, size_t group, size_t next,
                            void (*each)(void *context, size_t tensor, size_t number),
                            void *context);

enum ctl_torch_option_kind { CTL_OPTION_REAL, CTL_OPTION_PAIR, CTL_OPTION_FLAG, CTL_OPTION_NONE };
struct ctl_torch_option {
    const char *name;
    enum ctl_torch_option_kind kind;
    double value, second;
};
#define CTL_TORCH_OPTIONS_MAX 16
/* Gives the options of a group at the snapshot's step, and returns how many there are.
 * `always_initial`: initial_lr even without a schedule. */
size_t cairn_ctl_torch_options(const struct ctl_torch_order *o, size_t group, bool always_initial,
                               struct ctl_torch_option out[CTL_TORCH_OPTIONS_MAX]);
void cairn_ctl_say_option(struct ctl_torch_file *t, const struct ctl_torch_option *option);

#endif
