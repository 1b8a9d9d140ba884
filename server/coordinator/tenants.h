/* Tenants: whose the jobs are, who made them, and how much an owner may have.
 *
 * An owner is a text such as "team-a" (of a token) or "uid:1000" (of a local user): see struct identity in
 * proto/secure/secure.h. A job belongs to the owner of the session that made it. access.h says what that
 * means; a request's row says what it wants of which job (struct coord_row), so no handler has to ask. To an
 * owner who may not even look at a job, the job does not exist, except that its name is taken. */
#ifndef CAIRN_COORDINATOR_TENANTS_H
#define CAIRN_COORDINATOR_TENANTS_H

#include <sys/queue.h>

#include "proto/base/text.h"
#include "proto/loop/loop.h"
#include "proto/secure/secure.h"
#include "proto/spec/spec.h"
#include "server/coordinator/access.h"
#include "server/coordinator/base.h"

/* ==== tenant ==== */

#define CAIRN_SHARED_BYTES 512 /* of a list of owners, with NUL */

/* A job's owner and maker. */
struct coord_tenant {
    /* "": the job is an admin's until it is given to somebody, because the store is older than owners, or
     * was made anew from the shards, who do not know it */
    char owner[CAIRN_OWNER_BYTES];
    /* other owners that may use the job: names with '*', separated by ','. shared: all but OWN
     * (access.h); shared_read: LOOK and READ */
    char shared[CAIRN_SHARED_BYTES], shared_read[CAIRN_SHARED_BYTES];
    /* "worker w3", and its address "10.0.0.3:4123" or "pid=4,uid=1000"; "": not known */
    char made_by[CAIRN_NAME_MAX + CAIRN_OWNER_BYTES + 32], made_from[CAIRN_ADDRESS_TEXT_BYTES];
    uint64_t made_unix_s; /* 0: not known */
};

/* The session makes the job now, for the owner that it has. */
void coord_tenant_make(struct coord_tenant *tenant, const struct coord_session *maker);
struct stored_tenant; /* store.h */
/* Returns the row for the store; its texts are borrowed from the job. */
struct stored_tenant coord_tenant_row(const struct coord_job *job);

/* ==== access ==== */

/* Returns who the session's peer is. */
const struct identity *coord_who(const struct coord_session *session);
/* Judges whether `who` may do this to the job. CAIRN_ERR_NOT_FOUND: `who` may not even know of it.
 * CAIRN_ERR_REFUSED. */
CAIRN_MUST_CHECK cairn_status coord_job_judge_access(const struct identity *who,
                                                     const struct coord_job *job,
                                                     enum access_kind kind, struct sentence *why);
/* True if the session is told of the job in a list. */
bool coord_job_is_seen(const struct coord_session *session, const struct coord_job *job);
/* Judges a request by the job that it names, whose row says what it wants of it. If there is no job of that
 * name, the handler finds that out. The same errors. */
CAIRN_MUST_CHECK cairn_status coord_judge_access(const struct coord_session *session,
                                                 const struct coord_row *row,
                                                 const ProtobufCMessage *message,
                                                 struct sentence *why);
/* Judges a request that begins a new job: a worker's, for a name that another owner's job may have.
 * CAIRN_ERR_REFUSED. */
CAIRN_MUST_CHECK cairn_status coord_judge_opener(const struct coord_session *session,
                                                 const struct coord_job *job, bool is_worker,
                                                 struct sentence *why);
/* True if the member, which was in the job before, may not open it for no other reason than that an adopted
 * job has no owner: it waits until an admin gives the job one. */
bool coord_job_lacks_owner(const struct coord_member *member, const struct coord_job *job);
/* Does the same for a job that does not exist, and belonged to this owner. Any thread. */
CAIRN_MUST_CHECK cairn_status coord_owner_judge_access(const struct identity *who, const char *job,
                                                       const char *owner, enum access_kind kind,
                                                       struct sentence *why);
/* True if a snapshot whose manifest says `owner` goes with the job of its name, which belongs to `of_job`:
 * the job's owner and those with whom the job is shared may then do with the snapshot what they may do with
 * the job. A manifest that says none is older than owners. */
bool coord_owner_is_jobs(const char *owner, const char *of_job);
/* Judges access to a snapshot of a job name, whose manifest says `owner`: by the job of that name, if the
 * snapshot goes with it, else by `owner` alone. */
CAIRN_MUST_CHECK cairn_status coord_snapshot_judge_access(struct coord *cluster,
                                                          const struct identity *who,
                                                          const char *job, const char *owner,
                                                          enum access_kind kind,
                                                          struct sentence *why);

/* ==== shares ==== */

/* The connections of an owner have one share of the coordinator's turn (stream_share), however many they
 * are, so that no owner slows another's jobs by more than that. Shards have none. An owner that is alone may
 * have all connections but a reserve, and when others come, those above their fair share make room. */
struct coord_owner;

/* Gives an admitted session its owner's share; without memory it has none. Another owner's may be put out. */
void coord_owner_join(struct coord_session *session);
void coord_owner_leave(struct coord_session *session);

/* ==== quotas ==== */

/* How much an owner may have. The configuration's [quota] has a line for each owner, and a default. */

#define CAIRN_QUOTAS_MAX 256 /* the most owners with a quota of their own */

/* 0: no limit; of sessions: none but a fair share of network.connections_max, as soon as others come */
struct quota {
    uint64_t bytes;     /* of state, as the layouts of the owner's jobs put it on shards */
    uint64_t jobs;      /* that exist */
    uint64_t sessions;  /* connections of workers, readers and commands */
    uint64_t in_flight; /* bytes that the owner's workers may have on the way to shards */
};

struct owner_quota {
    char owner[CAIRN_OWNER_BYTES];
    struct quota quota;
};

struct coord_quotas {
    struct quota others;      /* of an owner that has no row */
    struct owner_quota *rows; /* owned: [count] */
    size_t count;
};

/* Reads "jobs=4 bytes=100GiB", and lines such as "team-a jobs=4 bytes=100GiB". CAIRN_ERR_CONFIG. */
CAIRN_MUST_CHECK cairn_status quotas_read(const char *others, const char *lines,
                                          struct coord_quotas *out, struct sentence *why);
void quotas_release(struct coord_quotas *quotas);

/* The owners, and how much each may have. */
struct coord_tenants {
    struct coord_quotas quotas;
    LIST_HEAD(coord_owners, coord_owner) owners; /* those with connections */
    uint64_t owners_seen;                        /* the number of the last one that came */
};

/* Judges whether the owner may have so much more. Owner "": no quota applies. The
 * sentence says what is used, the limit, and what to do. CAIRN_ERR_REFUSED: of jobs and bytes.
 * CAIRN_ERR_BUSY: of sessions and bytes in flight, because those of a process that has died end by
 * themselves; a trainer asks again until its deadline. */
CAIRN_MUST_CHECK cairn_status coord_quota_judge(struct coord *cluster, const char *owner,
                                                const struct quota *more, struct sentence *why);
/* Returns how many bytes a worker of the job may have in flight: a window of full chunks to each shard, or
 * the whole gradient if that is less. */
uint64_t quota_in_flight(const struct coord_job *job);
/* The same if the job had this spec, with the tensors that it has, and so many shards. */
uint64_t quota_in_flight_if(const struct coord_job *job, const struct job_spec_data *spec,
                            uint32_t shards);
/* Judges whether the owners of the job's workers may have so many bytes in flight for each worker, where the
 * job would be changed to allow a worker so many. The errors of coord_quota_judge. */
CAIRN_MUST_CHECK cairn_status coord_quota_judge_workers(const struct coord_job *job,
                                                        uint64_t in_flight, struct sentence *why);

#endif
