/* cairn shard forget */
#include "client/ctl/ctl.h"

int cairn_ctl_shard_forget(struct ctl *ctl)
{
    Cairn__ShardForget forget = CAIRN__SHARD_FORGET__INIT;
    ProtobufCMessage *reply;
    forget.name = ctl->argv[0];
    const cairn_status called = cairn_ctl_call(ctl, CAIRN_MSG_SHARD_FORGET, &forget.base,
                                               CAIRN_MSG_DONE, &reply);
    if (called != CAIRN_OK) return cairn_status_exit((int)called);
    if (ctl->json)
        cairn_ctl_print_json(json_pack("{s:s}", "forgotten", forget.name));
    else if (!ctl->quiet)
        cairn_ctl_line("forgotten", "%s", forget.name);
    cairn_message_free(reply);
    return 0;
}
