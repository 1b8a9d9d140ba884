/* The rights of an identity: the one place that decides it. Pure.
 *
 * Everything is denied unless something here allows it. A role says what kind of thing an identity may do;
 * whose job it is says to which jobs it may do it. An admin may do everything. */
#ifndef CAIRN_COORDINATOR_ACCESS_H
#define CAIRN_COORDINATOR_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/secure/secure.h"

/* True if the identity has one of these roles (bits of enum secure_role). */
bool access_role(const struct identity *who, uint32_t roles_any);

/* ==== users of this host ==== */

/* Who may do what over a Unix socket. */
struct access_rules {
    uid_t own;             /* the daemon's user, who is an admin, as root is */
    gid_t admin_gid;       /* its members are admins */
    uint32_t socket_roles; /* of everybody else who can connect */
};
/* Reads the rules from the configuration. admin_group: the name or number of a group; NULL or "": the group
 * that this process runs as. socket_roles: as roles_parse has them, or "none"; NULL or "": a worker's and
 * a reader's. Asks the system for the group, so it may block. CAIRN_ERR_CONFIG. */
CAIRN_MUST_CHECK cairn_status access_rules_read(const char *admin_group, const char *socket_roles,
                                                struct access_rules *out, struct sentence *why);
/* The roles of a user whose process is in these groups. Pure. */
uint32_t access_local(const struct access_rules *rules, uid_t uid, const gid_t *groups,
                      size_t group_count);

/* ==== judgement ==== */

/* Judges whether the identity may do something that one of these roles allows, or the role of an admin.
 * `doing` completes "may not ...". CAIRN_ERR_REFUSED: the sentence says who asks, what is lacking, and who
 * can give it. */
CAIRN_MUST_CHECK cairn_status access_any(const struct identity *who, uint32_t roles_any,
                                         const char *doing, struct sentence *why);

/* The wish of somebody about a job. Each kind includes those before it. */
enum access_kind {
    CAIRN_ACCESS_NONE,  /* nothing that is judged by whose job it is: an admin's alone */
    CAIRN_ACCESS_LOOK,  /* see that it exists, its state and its figures; a monitor may, too */
    CAIRN_ACCESS_READ,  /* read its parameters, list its tensors */
    CAIRN_ACCESS_WRITE, /* train it, take snapshots of it */
    CAIRN_ACCESS_OWN,   /* create, drop, amend, restore, park it */
};

/* Judges whether the identity has a role for this kind of access, whosever job it is. job: for the sentence;
 * "": no certain one. CAIRN_ERR_REFUSED. */
CAIRN_MUST_CHECK cairn_status access_by_role(const struct identity *who, const char *job,
                                             enum access_kind kind, struct sentence *why);

/* Judges whether an identity may do this to a job.
 *
 * `owner` owns the job; "": nobody does, because the job is older than owners or was adopted: everybody may
 * LOOK, and the rest is an admin's until an admin gives it an owner. `allowed` are the other owners
 * who may do what the owner allows: names with '*', separated by ','; "" or NULL: nobody. They may do all
 * but OWN. An identity that is limited to jobs (identity.jobs) may touch no other job; those jobs it may
 * READ and WRITE, whoever owns them.
 *
 * CAIRN_ERR_REFUSED: the sentence says who asks, what is lacking, and who can give it. */
CAIRN_MUST_CHECK cairn_status access_job(const struct identity *who, const char *job,
                                         const char *owner, const char *allowed,
                                         enum access_kind kind, struct sentence *why);

/* True if the first `length` bytes are an owner, or, as a pattern, may have '*' in it: letters that need no
 * quoting anywhere. */
bool access_owner_ok(const char *text, size_t length, bool is_pattern);

/* True if `name` is one of the names of `list`, which are separated by ',' and may have '*' for any text. */
bool access_listed(const char *list, const char *name);

#endif
