#include "server/coordinator/access.h"

#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cairn_status find_group(const char *name, gid_t *gid_out, struct sentence *why)
{
    char *end;
    const struct group *group = getgrnam(name);
    const unsigned long number = strtoul(name, &end, 10);
    *gid_out = group != NULL ? group->gr_gid : (gid_t)number;
    if (group != NULL || (*end == '\0' && number < (gid_t)-1)) return CAIRN_OK;
    return fail_with(
        why, CAIRN_ERR_CONFIG,
        "access.admin_group: this host has no group \"%.64s\"; groupadd makes one, and "
        "\"\" is the daemon's own",
        name);
}

cairn_status access_rules_read(const char *admin_group, const char *socket_roles,
                               struct access_rules *out, struct sentence *why)
{
    struct access_rules rules = { .own = geteuid(), .admin_gid = getegid() };
    if (admin_group != NULL && admin_group[0] != '\0')
        CAIRN_TRY(find_group(admin_group, &rules.admin_gid, why));
    if (socket_roles == NULL || socket_roles[0] == '\0')
        rules.socket_roles = CAIRN_MAY_WORK | CAIRN_MAY_READ;
    else if (strcmp(socket_roles, "none") != 0 && !roles_parse(socket_roles, &rules.socket_roles))
        return fail_with(why, CAIRN_ERR_CONFIG,
                         "access.socket_roles is \"%.64s\": give some of worker, reader, shard, "
                         "admin, monitor, separated by ',', or none",
                         socket_roles);
    *out = rules;
    return CAIRN_OK;
}

uint32_t access_local(const struct access_rules *rules, uid_t uid, const gid_t *groups,
                      size_t group_count)
{
    if (uid == 0 || uid == rules->own) return CAIRN_MAY_ALL;
    for (size_t i = 0; i < group_count; i++)
        if (groups[i] == rules->admin_gid) return CAIRN_MAY_ALL;
    return rules->socket_roles;
}

bool access_role(const struct identity *who, uint32_t roles_any)
{
    return (who->roles & roles_any) != 0;
}

/* Who can give a role to such an identity. */
static const char *givers(const struct identity *who)
{
    return who->is_local
               ? "the admins here are root, the daemon's user and the members of the group "
                 "access.admin_group, and access.socket_roles says what everybody else may"
               : "an admin gives out tokens with other roles: `cairn key add NAME --role ROLES`";
}

cairn_status access_any(const struct identity *who, uint32_t roles_any, const char *doing,
                        struct sentence *why)
{
    char has[64], needs[64];
    if (access_role(who, roles_any | CAIRN_MAY_ADMIN)) return CAIRN_OK;
    roles_print(who->roles, has);
    roles_print(roles_any != 0 ? roles_any : CAIRN_MAY_ADMIN, needs);
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "%s may not %s: that needs the role %s, and its own are %s; %s", who->name,
                     doing, needs, has, givers(who));
}

/* True if the text is what the pattern [length] stands for. Linear but for the last '*': a pattern costs
 * at most its length times the text's. */
static bool is_match(const char *pattern, size_t length, const char *text)
{
    size_t at = 0, star = length, kept = 0;
    for (size_t i = 0; text[i] != '\0';) {
        if (at < length && pattern[at] == '*') {
            star = at++;
            kept = i;
        } else if (at < length && pattern[at] == text[i]) {
            at++;
            i++;
        } else if (star < length) {
            at = star + 1;
            i = ++kept;
        } else {
            return false;
        }
    }
    while (at < length && pattern[at] == '*') at++;
    return at == length;
}

bool access_owner_ok(const char *text, size_t length, bool is_pattern)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._:@+-*";
    return length > 0 && length < CAIRN_OWNER_BYTES && strspn(text, letters) >= length &&
           (is_pattern || memchr(text, '*', length) == NULL);
}

bool access_listed(const char *list, const char *name)
{
    for (const char *at = list; at != NULL && *at != '\0';) {
        at += strspn(at, ", ");
        const size_t length = strcspn(at, ", ");
        if (length > 0 && is_match(at, length, name)) return true;
        at += length;
    }
    return false;
}

/* The roles of which one is needed. */
static uint32_t roles_for(enum access_kind kind)
{
    switch (kind) {
    case CAIRN_ACCESS_NONE: break;
    case CAIRN_ACCESS_LOOK: return CAIRN_MAY_WORK | CAIRN_MAY_READ | CAIRN_MAY_MONITOR;
    case CAIRN_ACCESS_READ: return CAIRN_MAY_WORK | CAIRN_MAY_READ;
    case CAIRN_ACCESS_WRITE:
    case CAIRN_ACCESS_OWN: return CAIRN_MAY_WORK;
    }
    return 0;
}

static const char *verb_for(enum access_kind kind)
{
    switch (kind) {
    case CAIRN_ACCESS_NONE: break;
    case CAIRN_ACCESS_LOOK: return "look at";
    case CAIRN_ACCESS_READ: return "read";
    case CAIRN_ACCESS_WRITE: return "write to";
    case CAIRN_ACCESS_OWN: return "create, change or drop";
    }
    return "use";
}

cairn_status access_by_role(const struct identity *who, const char *job, enum access_kind kind,
                            struct sentence *why)
{
    struct sentence doing;
    if (access_role(who, roles_for(kind) | CAIRN_MAY_ADMIN)) return CAIRN_OK;
    if (job[0] != '\0')
        sentence_set(&doing, "%s job %s", verb_for(kind), job);
    else
        sentence_set(&doing, "%s jobs", verb_for(kind));
    return access_any(who, roles_for(kind), doing.text, why);
}

cairn_status access_job(const struct identity *who, const char *job, const char *owner,
                        const char *allowed, enum access_kind kind, struct sentence *why)
{
    if (access_role(who, CAIRN_MAY_ADMIN)) return CAIRN_OK;
    CAIRN_TRY(access_by_role(who, job, kind, why));
    const bool is_limited = who->jobs[0] != '\0';
    if (is_limited && !access_listed(who->jobs, job))
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%s may not %s job %s: its token is for jobs %s only; an admin gives "
                         "another token with `cairn key add --jobs`",
                         who->name, verb_for(kind), job, who->jobs);
    const bool is_nobodys = owner[0] == '\0';
    if (!is_nobodys && strcmp(owner, who->owner) == 0) return CAIRN_OK;
    if (is_nobodys && kind == CAIRN_ACCESS_LOOK) return CAIRN_OK;
    // A monitor without another role watches the whole cluster, for whoever runs it.
    if (kind == CAIRN_ACCESS_LOOK && access_role(who, CAIRN_MAY_MONITOR)) return CAIRN_OK;
    if (kind != CAIRN_ACCESS_OWN && (is_limited || access_listed(allowed, who->owner)))
        return CAIRN_OK;
    if (is_nobodys)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%s (owner %s) may not %s job %s, which has no owner, because it is older "
                         "than owners or was adopted: an admin gives it one (`cairn job chown`)",
                         who->name, who->owner, verb_for(kind), job);
    return fail_with(why, CAIRN_ERR_REFUSED,
                     "%s (owner %s) may not %s job %s, which belongs to %s: its owner or an admin "
                     "can allow it",
                     who->name, who->owner, verb_for(kind), job, owner);
}
