#include "proto/snapshot/manifest_spec.h"

#include <stdlib.h>
#include <string.h>

/* ---- what is missing ---- */

/* Takes `defaults`. False: no memory, or not an object. */
static bool fill(json_t *object, json_t *defaults)
{
    const bool ok = json_is_object(object) && json_object_update_missing(object, defaults) == 0;
    json_decref(defaults);
    return ok;
}

static bool fill_group(json_t *group)
{
    const struct cairn_group_spec d = cairn_group_default();
    json_t *names = json_pack("{s:s, s:s}", "name", "default", "optimizer", "adamw");
    return fill(group, cairn_spec_fields_json(names, &cairn_group_fields, CAIRN_SPEC_ALL, &d));
}

static bool fill_tensor(json_t *tensor, const char *group)
{
    const char *name = json_string_value(json_object_get(tensor, "name"));
    const char *kind = json_string_value(json_object_get(tensor, "kind"));
    const bool is_blob = kind != NULL && strcmp(kind, "blob") == 0;
    const bool is_trained = kind == NULL || strcmp(kind, "trained") == 0;
    const char *dtype = is_blob ? "u8" : "f32";
    if (name == NULL) return false;
    return fill(tensor, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "unit", name, "group",
                                  is_trained ? group : "", "kind", "trained", "wire", dtype,
                                  "reduce", "f32", "master", dtype, "whole", 0));
}

static bool fill_top(json_t *root)
{
    struct cairn_job_spec_data d;
    cairn_spec_init(&d);
    json_t *top = json_pack("{s:s, s:i}", "name", "plan", "revision", 0);
    const bool ok = fill(root,
                         cairn_spec_fields_json(top, &cairn_spec_fields, CAIRN_SPEC_FIRST, &d));
    cairn_spec_release(&d);
    if (ok && json_object_get(root, "groups") == NULL)
        json_object_set_new(root, "groups", json_pack("[{}]"));
    return ok;
}

static int by_name(const void *left, const void *right)
{
    const char *a = json_string_value(json_object_get(*(json_t *const *)left, "name"));
    const char *b = json_string_value(json_object_get(*(json_t *const *)right, "name"));
    return strcmp(a, b);
}

/* All have a name. A new array; NULL: no memory. */
static json_t *sorted(json_t *tensors)
{
    const size_t count = json_array_size(tensors);
    json_t *out = json_array(), **list = calloc(count + 1, sizeof(json_t *));
    for (size_t i = 0; list != NULL && i < count; i++) list[i] = json_array_get(tensors, i);
    if (list != NULL) qsort(list, count, sizeof *list, by_name);
    for (size_t i = 0; list != NULL && i < count; i++) json_array_append(out, list[i]);
    free(list);
    return out;
}

static cairn_status complete(json_t *root, struct cairn_sentence *why)
{
    json_t *groups, *tensors = json_object_get(root, "tensors");
    if (!fill_top(root) || !json_is_array(tensors))
        return cairn_fail(why, CAIRN_ERR_MALFORMED,
                          "an object with \"tensors\", a list, is wanted");
    groups = json_object_get(root, "groups");
    for (size_t i = 0; i < json_array_size(groups); i++)
        if (!fill_group(json_array_get(groups, i)))
            return cairn_fail(why, CAIRN_ERR_MALFORMED, "group %zu is not an object", i);
    const char *group = json_string_value(json_object_get(json_array_get(groups, 0), "name"));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        if (!fill_tensor(json_array_get(tensors, i), group != NULL ? group : ""))
            return cairn_fail(why, CAIRN_ERR_MALFORMED,
                              "tensor %zu is not an object with \"name\" and \"shape\"", i);
    json_object_set_new(root, "tensors", sorted(tensors));
    return CAIRN_OK;
}

cairn_status cairn_spec_of_json(const char *text, size_t text_bytes,
                                struct cairn_job_spec_data *out, struct cairn_sentence *why)
{
    static const char prefix[] = "manifest: ";
    json_error_t error;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return cairn_fail(why, CAIRN_ERR_MALFORMED, "not JSON: %s (line %d)", error.text,
                          error.line);
    struct cairn_job_spec_data spec;
    struct cairn_sentence reason = { "" };
    cairn_spec_init(&spec);
    cairn_status status = complete(root, &reason);
    if (status == CAIRN_OK) status = cairn_manifest_read_spec(root, &spec, &reason);
    json_decref(root);
    if (status == CAIRN_OK) {
        *out = spec;
        return CAIRN_OK;
    }
    cairn_spec_release(&spec);
    const bool is_prefixed = strncmp(reason.text, prefix, sizeof prefix - 1) == 0;
    return cairn_fail(why, status == CAIRN_ERR_CORRUPT ? CAIRN_ERR_MALFORMED : status, "%s",
                      reason.text + (is_prefixed ? sizeof prefix - 1 : 0));
}
