#include "server/shard/storage.h"

#include "proto/store/storage_token.h"
#include "server/shard/connection.h"
#include "server/shard/shard.h"

static cairn_status judge(const char *path, uint64_t token, const struct cairn_storage_owner *owner,
                          struct cairn_sentence *why)
{
    (void)owner; // the coordinator has judged that
    const cairn_status status = cairn_storage_check(path, token, why);
    if (status != CAIRN_OK)
        cairn_sentence_add(why,
                           "; mount the coordinator's snapshots.path at that path, for one user");
    return status;
}

static void on_said(struct cairn_storage_watch *watch)
{
    if (watch->said.text[0] != '\0')
        cairn_log_warn("no snapshot can be saved by this shard: %s", watch->said.text);
    else
        cairn_log_info("snapshots go to %s", watch->path);
    cairn_connection_beat(watch->context);
}

cairn_status cairn_shard_storage_open(struct cairn_shard *shard, struct cairn_sentence *why)
{
    shard->storage =
        (struct cairn_storage_watch) { .judge = judge, .on_said = on_said, .context = shard };
    return cairn_storage_watch_open(&shard->storage, shard->loop, why);
}
