/* Where a job's initial state comes from, as its spec says. */
#include <stdlib.h>
#include <string.h>

#include "proto/base/text.h"
#include "proto/spec/spec.h"
#include "proto/spec/spec_names.h"

static cairn_status copy_text(const char *text, char **copy_out)
{
    *copy_out = NULL;
    if (text == NULL || text[0] == '\0') return CAIRN_OK;
    *copy_out = strdup(text);
    return *copy_out != NULL ? CAIRN_OK : CAIRN_ERR_NO_MEMORY;
}

cairn_status cairn_spec_set_init_from(struct cairn_job_spec_data *spec, const char *path,
                                      const char *prefix)
{
    char *path_copy, *prefix_copy = NULL;
    cairn_status status = copy_text(path, &path_copy);
    if (status == CAIRN_OK) status = copy_text(prefix, &prefix_copy);
    if (status != CAIRN_OK) {
        free(path_copy);
        return status;
    }
    free(spec->init_from);
    free(spec->init_prefix);
    spec->init_from = path_copy;
    spec->init_prefix = prefix_copy;
    return CAIRN_OK;
}

cairn_status cairn_spec_check_origin(const struct cairn_job_spec_data *spec,
                                     struct cairn_sentence *why)
{
    const char *path = spec->init_from, *prefix = spec->init_prefix;
    cairn_status status = CAIRN_OK;
    if (path != NULL && path[0] != '/')
        return cairn_fail(
            why, CAIRN_ERR_INVALID,
            "init_from is not an absolute path; it is looked up where the shards are");
    if (path != NULL) status = cairn_text_check("init_from", path, CAIRN_SPEC_PATH_MAX, why);
    if (status == CAIRN_OK && prefix != NULL && prefix[0] != '\0')
        status = cairn_text_check("init_prefix", prefix, CAIRN_NAME_MAX, why);
    if (status != CAIRN_OK) return status;
    if (prefix != NULL && path == NULL) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "init_prefix \"%s\" without init_from has no effect", prefix);
    }
    if (spec->init_nonfinite_ok && path == NULL) {
        return cairn_fail(why, CAIRN_ERR_INVALID,
                          "init_nonfinite_ok without init_from has no effect");
    }
    if (spec->init_extra_ok && path == NULL)
        return cairn_fail(why, CAIRN_ERR_INVALID, "init_extra_ok without init_from has no effect");
    return CAIRN_OK;
}

bool cairn_spec_has_origin(const struct cairn_job_spec_data *spec, size_t tensor)
{
    const struct cairn_tensor_spec *t = &spec->tensors[tensor];
    if (t->kind == CAIRN_BLOB) return false;
    return spec->init_from != NULL || t->init.kind != CAIRN_INIT_NONE;
}

/* There is nothing to put. */
static bool is_empty(const struct cairn_tensor_spec *t)
{
    return t->alias_of != NULL || cairn_geometry_of(&t->shape).elems == 0;
}

bool cairn_spec_initializes_itself(const struct cairn_job_spec_data *spec)
{
    bool any = false;
    for (size_t i = 0; i < spec->tensor_count; i++) {
        const bool has = cairn_spec_has_origin(spec, i);
        if (!has && !is_empty(&spec->tensors[i])) return false;
        any = any || has;
    }
    return any;
}
