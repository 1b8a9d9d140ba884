#include "client/ctl/snapshot/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "proto/spec/planes.h"
#include "proto/spec/schedule.h"

#define FOLDER     "checkpoint/"
#define PLANE_TEXT CAIRN_PLANE_COUNT
#define ALIGN      64 // where a tensor begins, as torch has it
#define NOTHING    SIZE_MAX

/* A file of the archive. */
struct member {
    char name[40];
    uint64_t header_at, bytes; /* of the file */
    size_t text_at;            /* of what it holds, if that is text; else NOTHING */
    size_t sum_at[2];          /* where its CRC-32 stands in the text */
    uint32_t sum;
};
/* A storage: a plane of a tensor. */
struct store {
    uint32_t tensor, plane;
    cairn_dtype dtype;
    uint64_t elems;
};

struct ctl_torch_file {
    uint8_t *text; /* owned */
    struct member
        *members;         /* owned; data.pkl first, then byteorder, then the stores, then version */
    struct store *stores; /* owned */
    size_t text_bytes, text_capacity, member_count, store_count, store_capacity;
    bool failed; /* there was no memory */
};
#define FIRST_STORE 2 // which member

bool cairn_ctl_torch_is_text(const struct cairn_safetensors_entry *entry)
{
    return entry->plane == PLANE_TEXT;
}

/* ---- text ---- */

static void put(struct ctl_torch_file *t, const void *from, size_t bytes)
{
    if (t->text_capacity - t->text_bytes < bytes && !t->failed) {
        const size_t wanted = (t->text_capacity + bytes) * 2 + 4096;
        uint8_t *grown = realloc(t->text, wanted);
        t->failed = grown == NULL;
        if (grown != NULL) {
            t->text = grown;
            t->text_capacity = wanted;
        }
    }
    if (t->failed) return;
    if (from != NULL) memcpy(t->text + t->text_bytes, from, bytes);
    if (from == NULL) memset(t->text + t->text_bytes, 0, bytes);
    t->text_bytes += bytes;
}

static void put_number(struct ctl_torch_file *t, uint64_t value, size_t bytes)
{
    uint8_t text[8];
    for (size_t i = 0; i < 8; i++) text[i] = (uint8_t)(value >> 8 * i);
    put(t, text, bytes);
}

static void put_text(struct ctl_torch_file *t, const char *text)
{
    put(t, text, strlen(text));
}

/* ---- the pickle: the few opcodes that it takes ---- */

static void say(struct ctl_torch_file *t, const char *text)
{
    put_text(t, "X"); // BINUNICODE
    put_number(t, strlen(text), 4);
    put_text(t, text);
}

static void say_number(struct ctl_torch_file *t, uint64_t value)
{
    const bool is_small = value <= INT32_MAX;
    put(t, is_small ? "J" : "\x8a\x09", is_small ? 1 : 2); // BININT, or LONG1 of nine bytes
    put_number(t, value, is_small ? 4 : 8);
    if (!is_small) put_number(t, 0, 1);
}

static void say_real(struct ctl_torch_file *t, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_text(t, "G"); // BINFLOAT, the highest byte first
    for (size_t i = 8; i-- > 0;) put_number(t, bits >> 8 * i, 1);
}

static void say_flag(struct ctl_torch_file *t, bool value)
{
    put_text(t, value ? "\x88" : "\x89");
}

/* An option, its value behind it. */
static void option_real(struct ctl_torch_file *t, const char *name, double value)
{
    say(t, name);
    say_real(t, value);
}

static void option_flag(struct ctl_torch_file *t, const char *name, bool value)
{
    say(t, name);
    say_flag(t, value);
}

static void option_none(struct ctl_torch_file *t, const char *name)
{
    say(t, name);
    put_text(t, "N");
}

/* A tensor of a storage: all of it, or a box. */
static void say_tensor(struct ctl_torch_file *t, size_t store, const struct cairn_shape *shape,
                       const struct cairn_box *box)
{
    const struct store *s = &t->stores[store];
    char key[24];
    uint64_t strides[CAIRN_RANK_MAX], first = 0, stride = 1;
    for (uint32_t d = shape->rank; d-- > 0; stride *= shape->dim[d]) {
        strides[d] = stride;
        if (box != NULL) first += box->start[d] * stride;
    }
    snprintf(key, sizeof key, "%zu", store);
    put_text(t, "ctorch._utils\n_rebuild_tensor_v2\n((");
    say(t, "storage");
    put_text(t, s->dtype == CAIRN_BF16 ? "ctorch\nBFloat16Storage\n" : "ctorch\nFloatStorage\n");
    say(t, key);
    say(t, "cpu");
    say_number(t, s->elems);
    put_text(t, "tQ"); // a reference to what lies beside the pickle
    say_number(t, first);
    put_text(t, "(");
    for (uint32_t d = 0; d < shape->rank; d++)
        say_number(t, box != NULL ? box->extent[d] : shape->dim[d]);
    put_text(t, "t(");
    for (uint32_t d = 0; d < shape->rank; d++) say_number(t, strides[d]);
    put_text(t, "t");
    say_flag(t, false);
    put_text(t, "ccollections\nOrderedDict\n)RtR");
}

/* ---- what there is ---- */

struct planning {
    struct ctl_torch_file *t;
    const struct cairn_manifest *manifest;
    const struct cairn_job_spec_data *spec;
    uint32_t step_plane;
    cairn_dtype dtype;
    size_t
        *order; /* owned: tensors as their maker listed them, those of no place behind, by name */
    size_t *groups; /* owned: group by group, as torch has them */
    size_t *stored; /* owned: which storage has the parameter of a tensor */
};

struct sorting {
    const struct cairn_job_spec_data *spec;
    size_t *first; // of a group: the least place of a tensor of it
};

static uint32_t place_of(const struct cairn_tensor_spec *t)
{
    return t->order > 0 ? t->order : UINT32_MAX;
}

static int by_order(const void *a, const void *b, void *context)
{
    const struct sorting *s = context;
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const uint32_t at = place_of(&s->spec->tensors[x]), there = place_of(&s->spec->tensors[y]);
    if (at != there) return at < there ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* from_torch calls them default, group1, group2, ... by their place; others go by their first tensor. */
static uint64_t rank_of(const struct sorting *s, size_t group)
{
    const char *name = s->spec->groups[group].name;
    unsigned number;
    int end = 0;
    if (strcmp(name, "default") == 0) return 0;
    if (sscanf(name, "group%u%n", &number, &end) == 1 && name[end] == '\0') return number;
    return UINT64_C(1) << 32 | s->first[group];
}

static int by_rank(const void *a, const void *b, void *context)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    const uint64_t at = rank_of(context, x), there = rank_of(context, y);
    if (at != there) return at < there ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool is_whole_tensor(const struct cairn_tensor_spec *t)
{
    return t->kind != CAIRN_BLOB && t->alias_of == NULL;
}

static bool sort_all(struct planning *p)
{
    const struct cairn_job_spec_data *spec = p->spec;
    p->order = calloc(spec->tensor_count + 1, sizeof *p->order);
    p->groups = calloc(spec->group_count + 1, sizeof *p->groups);
    p->stored = calloc(spec->tensor_count + 1, sizeof *p->stored);
    struct sorting s = { spec, calloc(spec->group_count + 1, sizeof *s.first) };
    bool ok = p->order != NULL && p->groups != NULL && p->stored != NULL && s.first != NULL;
    for (size_t i = 0; i < spec->tensor_count && ok; i++) p->order[i] = i;
    for (size_t g = 0; g < spec->group_count && ok; g++) p->groups[g] = g;
    if (ok) qsort_r(p->order, spec->tensor_count, sizeof *p->order, by_order, &s);
    for (size_t i = spec->tensor_count; i-- > 0 && ok;) {
        const struct cairn_tensor_spec *t = &spec->tensors[p->order[i]];
        const size_t g = t->kind == CAIRN_TRAINED ? cairn_spec_find_group(spec, t->group)
                                                  : SIZE_MAX;
        if (g < spec->group_count) s.first[g] = i;
    }
    if (ok) qsort_r(p->groups, spec->group_count, sizeof *p->groups, by_rank, &s);
    free(s.first);
    return ok;
}

static size_t add_store(struct planning *p, size_t tensor, uint32_t plane, cairn_dtype dtype,
                        uint64_t elems)
{
    struct ctl_torch_file *t = p->t;
    if (t->store_count == t->store_capacity && !t->failed) {
        const size_t wanted = t->store_capacity * 2 + 64;
        struct store *grown = realloc(t->stores, wanted * sizeof *grown);
        t->failed = grown == NULL;
        if (grown != NULL) {
            t->stores = grown;
            t->store_capacity = wanted;
        }
    }
    if (t->failed) return 0;
    t->stores[t->store_count] = (struct store) { (uint32_t)tensor, plane, dtype, elems };
    return t->store_count++;
}

static uint64_t elems_of(const struct cairn_shape *shape)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < shape->rank; d++) elems *= shape->dim[d];
    return elems;
}

static void say_model(struct planning *p)
{
    const struct cairn_job_spec_data *spec = p->spec;
    put_text(p->t, "}(");
    for (size_t i = 0; i < spec->tensor_count; i++)
        if (is_whole_tensor(&spec->tensors[i]))
            p->stored[i] = add_store(p, i, CAIRN_PLANE_PARAM, p->dtype,
                                     elems_of(&spec->tensors[i].shape));
    for (size_t i = 0; i < spec->tensor_count && !p->t->failed; i++) {
        const size_t tensor = p->order[i];
        const struct cairn_tensor_spec *t = &spec->tensors[tensor];
        if (t->kind == CAIRN_BLOB) continue;
        const size_t target = t->alias_of != NULL ? cairn_spec_target(spec, tensor) : tensor;
        if (spec->tensors[target].kind == CAIRN_BLOB) continue;
        say(p->t, t->name);
        say_tensor(p->t, p->stored[target], &spec->tensors[target].shape, t->alias_box);
    }
    put_text(p->t, "u");
}

static void say_plane(struct planning *p, size_t tensor, uint32_t plane, const char *name)
{
    static const struct cairn_shape scalar = { 0 };
    const struct cairn_shape *shape = plane == p->step_plane ? &scalar
                                                             : &p->spec->tensors[tensor].shape;
    say(p->t, name);
    const size_t store = add_store(p, tensor, plane, CAIRN_F32, elems_of(shape));
    if (!p->t->failed) say_tensor(p->t, store, shape, NULL);
}

static void say_state(struct planning *p, size_t tensor, size_t number)
{
    const uint32_t planes = cairn_spec_planes(p->spec, tensor);
    const bool has_square = (planes & 1u << CAIRN_PLANE_EXP_AVG_SQ) != 0;
    if ((planes & 1u << CAIRN_PLANE_EXP_AVG) == 0) return; // none, as torch's SGD has it
    say_number(p->t, number);
    put_text(p->t, "}(");
    if (has_square) {
        say_plane(p, tensor, p->step_plane, "step");
        say_plane(p, tensor, CAIRN_PLANE_EXP_AVG, "exp_avg");
        say_plane(p, tensor, CAIRN_PLANE_EXP_AVG_SQ, "exp_avg_sq");
    } else {
        say_plane(p, tensor, CAIRN_PLANE_EXP_AVG, "momentum_buffer");
    }
    put_text(p->t, "u");
}

/* Whether torch's optimizer has this one in that group. */
static bool is_member(const struct planning *p, size_t tensor, size_t group)
{
    const struct cairn_tensor_spec *t = &p->spec->tensors[tensor];
    return is_whole_tensor(t) && t->kind == CAIRN_TRAINED &&
           cairn_spec_find_group(p->spec, t->group) == group;
}

/* Calls `each` for every parameter of the group, from number `next` on; the number behind them. */
static size_t walk(struct planning *p, size_t group, size_t next,
                   void (*each)(struct planning *, size_t tensor, size_t number))
{
    for (size_t i = 0; i < p->spec->tensor_count; i++)
        if (is_member(p, p->order[i], group)) each(p, p->order[i], next++);
    return next;
}

static void say_its_number(struct planning *p, size_t tensor, size_t number)
{
    (void)tensor;
    say_number(p->t, number);
}

static void say_its_name(struct planning *p, size_t tensor, size_t number)
{
    (void)number;
    say(p->t, p->spec->tensors[tensor].name);
}

static void say_options(struct planning *p, const struct cairn_group_spec *g)
{
    struct ctl_torch_file *t = p->t;
    const bool is_sgd = strcmp(g->optimizer, "sgd") == 0;
    option_real(t, "lr", cairn_schedule_lr(&g->schedule, g->lr, p->manifest->step));
    if (g->schedule.kind != CAIRN_SCHEDULE_CONSTANT || g->schedule.warmup_steps > 0)
        option_real(t, "initial_lr", g->lr);
    option_real(t, "weight_decay", g->weight_decay);
    option_flag(t, "maximize", false);
    option_none(t, "foreach");
    option_flag(t, "differentiable", false);
    option_none(t, "fused");
    if (is_sgd) {
        option_real(t, "momentum", g->momentum);
        option_real(t, "dampening", 0);
        option_flag(t, "nesterov", g->nesterov);
        return;
    }
    say(t, "betas");
    say_real(t, g->beta1);
    say_real(t, g->beta2);
    put_text(t, "\x86"); // of both, a tuple
    option_real(t, "eps", g->eps);
    option_flag(t, "amsgrad", false);
    option_flag(t, "capturable", false);
    option_flag(t, "decoupled_weight_decay", strcmp(g->optimizer, "adamw") == 0);
}

static void say_groups(struct planning *p)
{
    size_t next = 0;
    put_text(p->t, "](");
    for (size_t i = 0; i < p->spec->group_count && !p->t->failed; i++) {
        put_text(p->t, "}(");
        say_options(p, &p->spec->groups[p->groups[i]]);
        say(p->t, "params");
        put_text(p->t, "](");
        const size_t end = walk(p, p->groups[i], next, say_its_number);
        put_text(p->t, "e");
        say(p->t, "param_names");
        put_text(p->t, "](");
        walk(p, p->groups[i], next, say_its_name);
        put_text(p->t, "eu");
        next = end;
    }
    put_text(p->t, "e");
}

static void say_all(struct planning *p)
{
    struct ctl_torch_file *t = p->t;
    size_t next = 0;
    put(t, "\x80\x02}(", 4);
    say(t, "model");
    say_model(p);
    say(t, "optimizer");
    put_text(t, "}(");
    say(t, "state");
    put_text(t, "}(");
    for (size_t i = 0; i < p->spec->group_count && !t->failed; i++)
        next = walk(p, p->groups[i], next, say_state);
    put_text(t, "u");
    say(t, "param_groups");
    say_groups(p);
    put_text(t, "u");
    say(t, "step");
    say_number(t, p->manifest->step);
    put_text(t, "u.");
}

/* ---- the archive ---- */

struct packing {
    struct ctl_torch_file *t;
    struct cairn_snapshot_file *file;
    size_t text_from; /* of text that no entry has yet */
    uint64_t at;      /* byte of the file */
};

static void add_entry(struct packing *k, struct cairn_safetensors_entry entry, uint64_t bytes)
{
    struct cairn_snapshot_file *f = k->file;
    if (f->entry_count == f->entry_capacity) {
        const size_t wanted = f->entry_capacity * 2 + 64;
        struct cairn_safetensors_entry *grown = realloc(f->entries, wanted * sizeof *grown);
        k->t->failed |= grown == NULL;
        if (grown == NULL) return;
        f->entries = grown;
        f->entry_capacity = wanted;
    }
    entry.begin = f->file_bytes;
    entry.end = f->file_bytes += bytes;
    f->entries[f->entry_count++] = entry;
}

/* What was put since becomes a piece of the file. */
static void flush(struct packing *k)
{
    const size_t bytes = k->t->text_bytes - k->text_from;
    if (bytes > 0)
        add_entry(k,
                  (struct cairn_safetensors_entry) {
                      .dtype = CAIRN_U8, .plane = PLANE_TEXT, .first_elem = k->text_from },
                  bytes);
    k->text_from = k->t->text_bytes;
}

static uint64_t position(const struct packing *k)
{
    return k->file->file_bytes + (k->t->text_bytes - k->text_from);
}

/* What the headers of a member have alike, from the version to the CRC. */
static void put_head(struct ctl_torch_file *t)
{
    put_number(t, 45, 2);                 // zip64
    put_number(t, 1u << 3 | 1u << 11, 2); // the sum stands behind; names are UTF-8
    put_number(t, 0, 2);                  // stored
    put_number(t, 0, 2);                  // time
    put_number(t, 0x21, 2);               // of 1980-01-01: the same snapshot, the same bytes
}

static void put_local(struct packing *k, struct member *m)
{
    struct ctl_torch_file *t = k->t;
    const size_t name = strlen(m->name);
    m->header_at = position(k);
    const uint64_t bare = m->header_at + 30 + name + 20 + 4;
    const size_t pad = (size_t)(-bare & (ALIGN - 1));
    put_text(t, "PK\3\4");
    put_head(t);
    put_number(t, 0, 4);
    put_number(t, UINT32_MAX, 4);
    put_number(t, UINT32_MAX, 4);
    put_number(t, name, 2);
    put_number(t, 20 + 4 + pad, 2);
    put_text(t, m->name);
    put_number(t, 1, 2); // sizes of zip64
    put_number(t, 16, 2);
    put_number(t, m->bytes, 8);
    put_number(t, m->bytes, 8);
    put_text(t, "FB"); // torch's, for what is aligned
    put_number(t, pad, 2);
    put(t, NULL, pad);
}

static void put_descriptor(struct packing *k, struct member *m)
{
    put_text(k->t, "PK\7\b");
    m->sum_at[0] = k->t->text_bytes;
    put_number(k->t, 0, 4);
    put_number(k->t, m->bytes, 8);
    put_number(k->t, m->bytes, 8);
}

static void put_central(struct packing *k, struct member *m)
{
    struct ctl_torch_file *t = k->t;
    put_text(t, "PK\1\2");
    put_number(t, 45, 2);
    put_head(t);
    m->sum_at[1] = t->text_bytes;
    put_number(t, 0, 4);
    put_number(t, UINT32_MAX, 4);
    put_number(t, UINT32_MAX, 4);
    put_number(t, strlen(m->name), 2);
    put_number(t, 28, 2);
    put(t, NULL, 2 + 2 + 2 + 4);
    put_number(t, UINT32_MAX, 4);
    put_text(t, m->name);
    put_number(t, 1, 2);
    put_number(t, 24, 2);
    put_number(t, m->bytes, 8);
    put_number(t, m->bytes, 8);
    put_number(t, m->header_at, 8);
}

static void put_end(struct packing *k, uint64_t central_at)
{
    struct ctl_torch_file *t = k->t;
    const uint64_t end_at = position(k);
    put_text(t, "PK\6\6");
    put_number(t, 44, 8);
    put_number(t, 45, 2);
    put_number(t, 45, 2);
    put(t, NULL, 8);
    put_number(t, t->member_count, 8);
    put_number(t, t->member_count, 8);
    put_number(t, end_at - central_at, 8);
    put_number(t, central_at, 8);
    put_text(t, "PK\6\7");
    put_number(t, 0, 4);
    put_number(t, end_at, 8);
    put_number(t, 1, 4);
    put_text(t, "PK\5\6");
    put(t, NULL, 4);
    put_number(t, UINT64_MAX, 4); // both counts, the size and the place: those of zip64
    put_number(t, UINT64_MAX, 8);
    put_number(t, 0, 2);
}

static void set_sum(struct ctl_torch_file *t, const struct member *m)
{
    for (size_t i = 0; i < 2; i++)
        for (size_t byte = 0; byte < 4; byte++)
            t->text[m->sum_at[i] + byte] = (uint8_t)(m->sum >> 8 * byte);
}

/* A member whose bytes are text: put between its headers. */
static void pack_text(struct packing *k, struct member *m, const char *name, const void *from,
                      size_t bytes)
{
    snprintf(m->name, sizeof m->name, FOLDER "%s", name);
    m->bytes = bytes;
    m->sum = (uint32_t)crc32_z(0, from, bytes);
    put_local(k, m);
    put(k->t, from, bytes);
    put_descriptor(k, m);
}

static void pack_store(struct packing *k, struct member *m, size_t number)
{
    const struct store *s = &k->t->stores[number];
    snprintf(m->name, sizeof m->name, FOLDER "data/%zu", number);
    m->bytes = s->elems * cairn_dtype_bytes((int)s->dtype);
    put_local(k, m);
    flush(k);
    add_entry(k,
              (struct cairn_safetensors_entry) { .dtype = s->dtype,
                                                 .tensor = s->tensor,
                                                 .plane = s->plane,
                                                 .box = { .rank = 1, .start = { number } } },
              m->bytes);
    put_descriptor(k, m);
}

static void pack(struct ctl_torch_file *t, struct cairn_snapshot_file *file, const uint8_t *pickle,
                 size_t pickle_bytes)
{
    struct packing k = { .t = t, .file = file, .text_from = t->text_bytes };
    t->member_count = t->store_count + 3;
    t->members = calloc(t->member_count, sizeof *t->members);
    t->failed |= t->members == NULL;
    if (t->failed) return;
    pack_text(&k, &t->members[0], "data.pkl", pickle, pickle_bytes);
    pack_text(&k, &t->members[1], "byteorder", "little", 6);
    for (size_t i = 0; i < t->store_count && !t->failed; i++)
        pack_store(&k, &t->members[FIRST_STORE + i], i);
    pack_text(&k, &t->members[t->member_count - 1], "version", "3\n", 2);
    const uint64_t central_at = position(&k);
    for (size_t i = 0; i < t->member_count; i++) put_central(&k, &t->members[i]);
    put_end(&k, central_at);
    flush(&k);
    for (size_t i = 0; i < t->member_count && !t->failed; i++) set_sum(t, &t->members[i]);
}

/* ---- the interface ---- */

cairn_status cairn_ctl_torch_plan(const struct cairn_manifest *manifest, cairn_dtype dtype,
                                  uint32_t step_plane, struct cairn_snapshot_file *file,
                                  struct ctl_torch_file **out)
{
    struct ctl_torch_file *t = calloc(1, sizeof *t);
    struct planning p = { .t = t,
                          .manifest = manifest,
                          .spec = &manifest->spec,
                          .step_plane = step_plane,
                          .dtype = dtype };
    cairn_status status = t != NULL && sort_all(&p) ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
    if (status == CAIRN_OK) {
        say_all(&p);
        // The pickle goes, and what was its text becomes the archive's.
        uint8_t *pickle = t->text;
        const size_t bytes = t->text_bytes;
        t->text = NULL;
        t->text_bytes = t->text_capacity = 0;
        if (!t->failed) pack(t, file, pickle, bytes);
        free(pickle);
        if (t->failed) status = CAIRN_ERR_NO_MEMORY;
        if (status == CAIRN_OK && t->store_count == 0) status = CAIRN_ERR_NOT_FOUND;
    }
    free(p.order);
    free(p.groups);
    free(p.stored);
    if (status == CAIRN_OK)
        *out = t;
    else
        cairn_ctl_torch_free(t);
    return status;
}

void cairn_ctl_torch_text(const struct ctl_torch_file *t, uint64_t first, uint64_t count, void *to)
{
    memcpy(to, t->text + first, count);
}

void cairn_ctl_torch_pass(struct ctl_torch_file *t, const struct cairn_safetensors_entry *entry,
                          const void *from, uint64_t bytes)
{
    struct member *m = &t->members[FIRST_STORE + entry->box.start[0]];
    m->sum = (uint32_t)crc32_z(m->sum, from, bytes);
    set_sum(t, m);
}

void cairn_ctl_torch_free(struct ctl_torch_file *t)
{
    if (t == NULL) return;
    free(t->text);
    free(t->members);
    free(t->stores);
    free(t);
}
