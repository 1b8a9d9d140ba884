/* The kernels of one instruction set, as one table: this file is compiled once for each, with what it may
 * use and these two names (see CMakeLists.txt). */
#include "gpu/host/host.h"
#include "gpu/host/isa/fold.h"
#include "gpu/host/isa/hash.h"
#include "gpu/host/isa/update.h"
#include "gpu/host/isa/vector.h"

const struct backend CAIRN_HOST_TABLE = {
    .name = "host",
    .isa = CAIRN_HOST_ISA_NAME,
    .fold = fold,
    .fold_leaves = fold_leaves,
    .sum_leaves = sum_leaves,
    .update = { [CAIRN_OPTIMIZER_ADAMW] = adamw,
                [CAIRN_OPTIMIZER_ADAM] = adam,
                [CAIRN_OPTIMIZER_SGD] = sgd },
    .convert = convert,
    .hash_each = hash_each,
};
