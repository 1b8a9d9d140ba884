#include "tests/support/memory_storage.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OBJECTS_MAX 4096
#define NAME_BYTES  600

struct object {
    char name[NAME_BYTES]; /* "mem:x/toy/step-...": a folder's ends in no slash */
    bool is_folder, is_hidden;
    uint8_t *bytes; /* owned */
    size_t count;
};

struct memory_put {
    struct storage_put put; /* first */
    struct object *object;
};
struct memory_file {
    struct storage_file file; /* first */
    struct object *object;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER;
static struct object objects[OBJECTS_MAX];
static size_t object_count;
static uint64_t calls, fails_at, read_bytes, opened[2]; /* opened: by others, by who is confined */
static cairn_status fails_with;
static bool hangs;

static const struct storage memory_storage;

/* ---- under the mutex ---- */

static struct object *find(const char *name)
{
    for (size_t i = 0; i < object_count; i++)
        if (strcmp(objects[i].name, name) == 0) return &objects[i];
    return NULL;
}

static struct object *add(const char *name, bool is_folder)
{
    ck_assert_uint_lt(object_count, OBJECTS_MAX);
    struct object *object = &objects[object_count++];
    *object = (struct object) { .is_folder = is_folder };
    snprintf(object->name, sizeof object->name, "%s", name);
    return object;
}

static void forget(struct object *object)
{
    free(object->bytes);
    *object =
        (struct object) { .name = "" }; // never an object's name: open ones stay where they are
}

static void name_of(char out[NAME_BYTES], const char *at, const char *path)
{
    const int length = snprintf(out, NAME_BYTES, "%s%s%s", at, path[0] != '\0' ? "/" : "", path);
    ck_assert_int_lt(length, NAME_BYTES);
}

static cairn_status may_fail(const char *step, const char *path, struct sentence *why)
{
    if (++calls != fails_at) return CAIRN_OK;
    return fail_with(why, fails_with, "%s of %s: a fault of the test", step, path);
}

/* ---- the storage ---- */

static cairn_status resolve(const char *at, char **out, struct sentence *why)
{
    (void)why;
    *out = strdup(at);
    ck_assert_ptr_nonnull(*out);
    return CAIRN_OK;
}

static cairn_status make(const char *at, const char *path, bool exclusive, struct sentence *why)
{
    char name[NAME_BYTES];
    name_of(name, at, path);
    pthread_mutex_lock(&mutex);
    cairn_status status = may_fail("mkdir", path, why);
    if (status == CAIRN_OK && find(name) == NULL)
        add(name, true);
    else if (status == CAIRN_OK && exclusive)
        status = fail_with(why, CAIRN_ERR_EXISTS, "%s is there", path);
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status list(const char *at, const char *path, storage_name_fn on_name, void *context,
                         struct sentence *why)
{
    char name[NAME_BYTES];
    name_of(name, at, path);
    const size_t length = strlen(name);
    pthread_mutex_lock(&mutex);
    const bool is_there = path[0] == '\0' || find(name) != NULL;
    for (size_t i = 0; is_there && i < object_count; i++) {
        const struct object *o = &objects[i];
        if (o->is_hidden || strncmp(o->name, name, length) != 0 || o->name[length] != '/') continue;
        if (strchr(o->name + length + 1, '/') == NULL)
            on_name(context, o->name + length + 1, o->is_folder);
    }
    pthread_mutex_unlock(&mutex);
    return is_there ? CAIRN_OK : fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no %s", name);
}

static cairn_status stat_object(const char *at, const char *path, uint64_t *bytes_out,
                                struct sentence *why)
{
    char name[NAME_BYTES];
    name_of(name, at, path);
    pthread_mutex_lock(&mutex);
    const struct object *o = find(name);
    const bool is_there = o != NULL && !o->is_hidden && (path[0] == '\0') == o->is_folder;
    *bytes_out = is_there ? o->count : 0;
    pthread_mutex_unlock(&mutex);
    return is_there ? CAIRN_OK : fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no %s", name);
}

static cairn_status remove_object(const char *at, const char *path, bool is_folder,
                                  uint64_t *bytes_out, struct sentence *why)
{
    char name[NAME_BYTES];
    (void)is_folder;
    name_of(name, at, path);
    pthread_mutex_lock(&mutex);
    struct object *o = find(name);
    cairn_status status = may_fail("removing", path, why);
    if (status == CAIRN_OK && o == NULL)
        status = fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no %s", name);
    *bytes_out = status == CAIRN_OK ? o->count : 0;
    if (status == CAIRN_OK) forget(o);
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status settle(const char *at, const char *path, struct sentence *why)
{
    (void)at;
    pthread_mutex_lock(&mutex);
    const cairn_status status = may_fail("fsync", path, why);
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status put_begin(const char *at, const char *path, uint64_t bytes,
                              struct storage_put **put_out, struct sentence *why)
{
    char name[NAME_BYTES];
    name_of(name, at, path);
    pthread_mutex_lock(&mutex);
    cairn_status status = may_fail("open", path, why);
    if (status == CAIRN_OK && find(name) != NULL)
        status = fail_with(why, CAIRN_ERR_EXISTS, "%s is there", path);
    if (status == CAIRN_OK) {
        struct memory_put *put = calloc(1, sizeof *put);
        put->put.storage = &memory_storage;
        put->object = add(name, false);
        put->object->is_hidden = true;
        put->object->bytes = calloc(1, bytes + 1);
        put->object->count = bytes;
        *put_out = &put->put;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status put_write(struct storage_put *p, uint64_t offset, const void *from,
                              size_t count, struct sentence *why)
{
    struct memory_put *put = (struct memory_put *)p;
    pthread_mutex_lock(&mutex);
    while (hangs) pthread_cond_wait(&let_go, &mutex);
    const cairn_status status = may_fail("write", put->object->name, why);
    ck_assert_uint_eq(offset % CAIRN_STORAGE_ALIGN, 0);
    ck_assert_uint_eq((uintptr_t)from % CAIRN_STORAGE_ALIGN, 0);
    ck_assert_uint_le(offset + count, put->object->count);
    if (status == CAIRN_OK) memcpy(put->object->bytes + offset, from, count);
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status put_end(struct storage_put *p, cairn_status status, struct sentence *why)
{
    struct memory_put *put = (struct memory_put *)p;
    pthread_mutex_lock(&mutex);
    if (status == CAIRN_OK) status = may_fail("fsync", put->object->name, why);
    if (status == CAIRN_OK)
        put->object->is_hidden = false;
    else
        forget(put->object);
    pthread_mutex_unlock(&mutex);
    free(put);
    return status;
}

static cairn_status commit(const char *at, const char *path, const void *bytes, size_t count,
                           bool replace, struct sentence *why)
{
    char name[NAME_BYTES];
    name_of(name, at, path);
    pthread_mutex_lock(&mutex);
    struct object *o = find(name);
    cairn_status status = may_fail("commit", path, why);
    if (status == CAIRN_OK && o != NULL && !replace)
        status = fail_with(why, CAIRN_ERR_EXISTS, "%s is there already", path);
    if (status == CAIRN_OK) {
        if (o != NULL) forget(o);
        o = add(name, false);
        o->bytes = malloc(count + 1);
        memcpy(o->bytes, bytes, count);
        o->count = count;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status open_object(const char *at, const char *path, bool is_direct,
                                struct storage_file **file_out, struct sentence *why)
{
    char name[NAME_BYTES];
    (void)is_direct;
    name_of(name, at, path);
    const bool is_manifest = strcmp(path, "manifest.json") == 0;
    const int fd = is_manifest ? open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    const bool is_confined = fd < 0;
    if (fd >= 0) close(fd);
    pthread_mutex_lock(&mutex);
    if (is_manifest) opened[is_confined]++;
    struct object *o = find(name);
    cairn_status status = may_fail("open", path, why);
    if (status == CAIRN_OK && (o == NULL || o->is_hidden || o->is_folder))
        status = fail_with(why, CAIRN_ERR_NOT_FOUND, "there is no %s", name);
    if (status == CAIRN_OK) {
        struct memory_file *file = calloc(1, sizeof *file);
        file->file = (struct storage_file) { &memory_storage, o->count, false };
        file->object = o;
        *file_out = &file->file;
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static cairn_status read_object(struct storage_file *f, uint64_t offset, void *to, size_t count,
                                size_t *got_out, struct sentence *why)
{
    const struct object *o = ((struct memory_file *)f)->object;
    pthread_mutex_lock(&mutex);
    const cairn_status status = may_fail("read", o->name, why);
    const size_t have = offset < o->count ? o->count - (size_t)offset : 0;
    *got_out = have < count ? have : count;
    if (status == CAIRN_OK && *got_out > 0) memcpy(to, o->bytes + offset, *got_out);
    read_bytes += *got_out;
    pthread_mutex_unlock(&mutex);
    return status;
}

static void close_object(struct storage_file *file)
{
    free(file);
}

static const struct storage memory_storage = { .scheme = "mem",
                                               .resolve = resolve,
                                               .make = make,
                                               .list = list,
                                               .stat = stat_object,
                                               .remove = remove_object,
                                               .settle = settle,
                                               .put_begin = put_begin,
                                               .put_write = put_write,
                                               .put_end = put_end,
                                               .commit = commit,
                                               .open = open_object,
                                               .read = read_object,
                                               .close = close_object };

/* ---- the test's ---- */

void cairn_memory_storage_open(void)
{
    static bool registered;
    if (!registered) storage_register(&memory_storage);
    registered = true;
    for (size_t i = 0; i < object_count; i++) free(objects[i].bytes);
    object_count = 0;
    calls = fails_at = read_bytes = opened[0] = opened[1] = 0;
}

uint64_t cairn_memory_storage_opened(bool by_confined)
{
    pthread_mutex_lock(&mutex);
    const uint64_t count = opened[by_confined];
    pthread_mutex_unlock(&mutex);
    return count;
}

void cairn_memory_storage_fail(uint64_t n, cairn_status status)
{
    pthread_mutex_lock(&mutex);
    fails_at = n == 0 ? 0 : calls + n;
    fails_with = status;
    pthread_mutex_unlock(&mutex);
}

uint64_t cairn_memory_storage_calls(void)
{
    pthread_mutex_lock(&mutex);
    const uint64_t count = calls;
    pthread_mutex_unlock(&mutex);
    return count;
}

uint64_t cairn_memory_storage_read_bytes(void)
{
    pthread_mutex_lock(&mutex);
    const uint64_t bytes = read_bytes;
    pthread_mutex_unlock(&mutex);
    return bytes;
}

void cairn_memory_storage_hang(bool does)
{
    pthread_mutex_lock(&mutex);
    hangs = does;
    pthread_cond_broadcast(&let_go);
    pthread_mutex_unlock(&mutex);
}

uint8_t *cairn_memory_storage_bytes(const char *at, const char *path, size_t *count_out)
{
    char name[NAME_BYTES];
    name_of(name, at, path);
    struct object *o = find(name);
    *count_out = o != NULL ? o->count : 0;
    return o != NULL ? o->bytes : NULL;
}
