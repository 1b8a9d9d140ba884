#include "client/ctl/job/plan_spec.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/ctl/ctl.h"
#include "proto/base/text.h"
#include "proto/safetensors/safetensors_folder.h"
#include "proto/snapshot/manifest.h"
#include "proto/snapshot/manifest_spec.h"
#include "proto/spec/optimizer.h"

/* The caller's. NULL: `why` says it. */
static char *read_all(const char *path, size_t *bytes_out, struct cairn_sentence *why)
{
    struct stat s;
    FILE *file = fopen(path, "re");
    char *text = NULL;
    if (file != NULL && fstat(fileno(file), &s) == 0 && s.st_size >= 0 &&
        (uint64_t)s.st_size <= CAIRN_MANIFEST_BYTES_MAX)
        text = malloc((size_t)s.st_size + 1);
    const int error = errno;
    *bytes_out = text != NULL ? fread(text, 1, (size_t)s.st_size, file) : 0;
    if (file == NULL)
        cairn_sentence_set(why, "cannot be read: %s", strerror(error));
    else if (text == NULL)
        cairn_sentence_set(why, "is no file of at most %zu bytes", CAIRN_MANIFEST_BYTES_MAX);
    if (file != NULL) fclose(file);
    return text;
}

static cairn_status of_manifest(const char *path, struct cairn_job_spec_data *out,
                                struct cairn_sentence *why)
{
    struct cairn_manifest manifest;
    size_t bytes;
    char *text = read_all(path, &bytes, why);
    if (text == NULL) return CAIRN_ERR_IO;
    cairn_status status = cairn_manifest_decode(text, bytes, &manifest, why);
    free(text);
    if (status != CAIRN_OK) return status;
    status = cairn_spec_copy(&manifest.spec, out);
    if (status != CAIRN_OK) cairn_sentence_set(why, "out of memory");
    cairn_manifest_release(&manifest);
    return status;
}

static cairn_status of_json(const char *path, struct cairn_job_spec_data *out,
                            struct cairn_sentence *why)
{
    size_t bytes;
    char *text = read_all(path, &bytes, why);
    if (text == NULL) return CAIRN_ERR_IO;
    const cairn_status status = cairn_spec_of_json(text, bytes, out, why);
    free(text);
    return status;
}

/* Trained by AdamW, on the wire as it is stored, where that is possible. */
static cairn_status add_weight(struct cairn_job_spec_data *spec, const struct cairn_weight *weight)
{
    char *name = (char *)(uintptr_t)weight->key, *group = (char *)(uintptr_t) "default";
    const struct cairn_box *box = &weight->entry->box;
    struct cairn_tensor_spec tensor = {
        .name = name,
        .group = group,
        .kind = CAIRN_TRAINED,
        .wire = weight->entry->dtype == CAIRN_BF16 ? CAIRN_BF16 : CAIRN_F32,
        .reduce = CAIRN_F32,
        .master = CAIRN_F32,
        .shape = { .rank = box->rank },
    };
    for (uint32_t d = 0; d < box->rank; d++) tensor.shape.dim[d] = box->extent[d];
    return cairn_spec_add_tensor(spec, &tensor);
}

/* All that a job could read. The rest, whole numbers, has no optimizer, and is said. */
static cairn_status add_weights(struct cairn_job_spec_data *spec,
                                const struct cairn_weights *weights)
{
    struct cairn_sentence rest = { "" };
    size_t rest_count = 0;
    cairn_status status = CAIRN_OK;
    for (size_t i = 0; i < weights->weight_count && status == CAIRN_OK; i++) {
        const struct cairn_weight *weight = &weights->weights[i];
        if (cairn_weight_readable(weight))
            status = add_weight(spec, weight);
        else if (rest_count++ < CAIRN_WEIGHTS_NAMES_MAX)
            cairn_sentence_add(&rest, "%s%s (%s)", rest_count > 1 ? ", " : "", weight->key,
                               weight->entry->dtype_name);
    }
    cairn_text_mend(rest.text, "");
    if (rest_count > 0)
        fprintf(stderr, "cairn: job plan: left out, since no job reads such numbers: %s%s\n",
                rest.text, rest_count > CAIRN_WEIGHTS_NAMES_MAX ? ", and more" : "");
    return status;
}

static cairn_status of_weights(const char *path, struct cairn_job_spec_data *out,
                               struct cairn_sentence *why)
{
    char absolute[PATH_MAX];
    struct cairn_weights weights;
    struct cairn_job_spec_data spec;
    struct cairn_group_spec group = cairn_group_default();
    if (realpath(path, absolute) == NULL)
        return cairn_fail(why, CAIRN_ERR_IO, "cannot be read: %s", strerror(errno));
    cairn_status status = cairn_weights_open("/", absolute, &weights, why);
    if (status != CAIRN_OK) return status;
    group.name = (char *)(uintptr_t) "default";
    group.optimizer = (char *)(uintptr_t) "adamw";
    cairn_spec_init(&spec);
    cairn_sentence_set(why, "more tensors than a job may have, or out of memory");
    status = cairn_spec_set_name(&spec, "weights");
    if (status == CAIRN_OK) status = cairn_spec_add_group(&spec, &group);
    if (status == CAIRN_OK) status = add_weights(&spec, &weights);
    cairn_weights_close(&weights);
    cairn_spec_canonicalize(&spec);
    if (status == CAIRN_OK) status = cairn_spec_check(&spec, cairn_optimizer_names(), why);
    if (status == CAIRN_OK)
        *out = spec;
    else
        cairn_spec_release(&spec);
    return status;
}

cairn_status cairn_ctl_plan_spec(const char *path, struct cairn_job_spec_data *out,
                                 struct cairn_sentence *why)
{
    static const char weights[] = ".safetensors";
    char manifest[PATH_MAX];
    struct stat s;
    const size_t length = strlen(path);
    const bool is_folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    snprintf(manifest, sizeof manifest, "%s/%s", path, CAIRN_MANIFEST_NAME);
    if (is_folder && stat(manifest, &s) == 0) return of_manifest(manifest, out, why);
    if (is_folder ||
        (length >= sizeof weights && strcmp(path + length - (sizeof weights - 1), weights) == 0))
        return of_weights(path, out, why);
    return of_json(path, out, why);
}
