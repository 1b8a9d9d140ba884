/* Reads the environment: the address of the process's cluster, and the process's rank and world.
 *
 * Each value comes from the first of these sources that has the value: the caller, CAIRN_*,
 * torchrun, Slurm, Open MPI, the default. An empty variable counts as not set. Rank and world come
 * from the same launcher: a rank from one and a world from another would name a process that does
 * not exist. Every other value is looked up separately. For example, CAIRN_RUN_ID alone renames a
 * run of torchrun; a process under srun whose RANK was set by hand gets its local rank from Slurm.
 *
 * Rank is not identity. A launcher gives the same rank to the process that replaces a dead one, and
 * another rank to the same work after a change of membership. Members are told apart by the
 * incarnation that every session draws; in a job, a newer incarnation with the same rank fences the
 * older one.
 *
 * Pure, except for `get` and for finding the socket that exists. */
#ifndef CAIRN_CLIENT_ENV_H
#define CAIRN_CLIENT_ENV_H

#include <stdint.h>

#include "proto/base/text.h"

#define CAIRN_ENV_TEXT_BYTES 288 /* the size of a value, its NUL included */
#define CAIRN_ENV_ID_BYTES   128 /* the size of a run id */

enum env_key {
    /* of the cluster */
    CAIRN_ENV_ENDPOINT,      /* default: the socket of this host's coordinator (address_find) */
    CAIRN_ENV_FABRIC,        /* default ucx */
    CAIRN_ENV_DEVICE,        /* default "": the devices of the routes to the shards (datapath.c) */
    CAIRN_ENV_HOST,          /* the name of this host; default "": the kernel's */
    CAIRN_ENV_TRANSPORTS,    /* UCX's; default "": the fabric's own choice */
    CAIRN_ENV_ONE_SIDED,     /* auto, on or off (proto/fabric/fabric.h); default auto */
    CAIRN_ENV_DEVICE_MEMORY, /* auto or host (proto/fabric/fabric.h); default auto */
    CAIRN_ENV_PORTS, /* for the process's bulk data, "first-last"; default "": any free ports */
    /* of the process */
    CAIRN_ENV_RANK,       /* default 0 */
    CAIRN_ENV_WORLD,      /* default 1 */
    CAIRN_ENV_LOCAL_RANK, /* the rank among the processes of the same node; default 0 */
    CAIRN_ENV_NODE_RANK,  /* the rank of the process's node; default 0 */
    CAIRN_ENV_RUN_ID,     /* default "" */
    CAIRN_ENV_RESTARTS,   /* how often the launcher has restarted the run; default 0 */
    CAIRN_ENV_KEYS,
    CAIRN_ENV_PROCESS = CAIRN_ENV_RANK /* the first value of the process */
};

/* A value from the caller, which takes precedence over the environment. */
struct env_given {
    const char *text;   /* NULL: not given */
    const char *source; /* the name of the value in errors: "--endpoint" */
};

struct env_input {
    /* borrowed; returns the value of a variable; NULL: the variable is not set */
    const char *(*get)(void *context, const char *variable);
    void *context;
    struct env_given given[CAIRN_ENV_KEYS];
};

struct env_value {
    char text[CAIRN_ENV_TEXT_BYTES];
    const char *source; /* a variable's name, or the caller's source; NULL: the default */
    uint64_t number;    /* the value of `text`, if the key is a number */
};

struct env_report {
    struct env_value values[CAIRN_ENV_KEYS];
    /* the source of rank and world: cairn, torchrun, slurm, openmpi, single */
    const char *launcher;
};

/* A `get` function that calls getenv and ignores the context. */
const char *env_get(void *context, const char *variable);

/* Returns the name of a value for messages, such as "rank". Never NULL. */
const char *env_key_name(enum env_key key);

/* Fills in one value: the caller's, else the first launcher's, else the default. Not for rank and
 * world. */
CAIRN_MUST_CHECK cairn_status env_find(const struct env_input *input, enum env_key key,
                                       struct env_report *report, struct sentence *why);
/* Fills in the values of the cluster: endpoint, fabric, device, host, transports, one_sided,
 * device_memory. CAIRN_ERR_INVALID names the source, the value and the allowed values; the report
 * is then unusable. */
CAIRN_MUST_CHECK cairn_status env_find_cluster(const struct env_input *input,
                                               struct env_report *report, struct sentence *why);
/* Fills in the values of the process. CAIRN_ERR_INVALID: as for env_find_cluster, or only one of
 * rank and world is set. */
CAIRN_MUST_CHECK cairn_status env_find_process(const struct env_input *input,
                                               struct env_report *report, struct sentence *why);

#endif
