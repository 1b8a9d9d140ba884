#include "proto/loop/loop.h"

#include <sodium.h>
#include <string.h>

cairn_status entrance_find(struct entrance *entrance, const struct stream_address *address,
                           const char *given, const char *fallback, struct sentence *why)
{
    char text[CAIRN_ADDRESS_TEXT_BYTES];
    struct token token;
    struct sentence inner = { "" };
    entrance->is_needed = !address->is_unix;
    if (address->is_unix) return CAIRN_OK;
    const cairn_status status = token_find(given, fallback, &token, &inner);
    address_print(address, text);
    if (status == CAIRN_ERR_NOT_FOUND)
        return fail_with(why, CAIRN_ERR_REFUSED,
                         "%s is reached over TCP, which takes a token of that cluster; %s", text,
                         inner.text);
    if (status != CAIRN_OK) return fail_with(why, status, "%s", inner.text);
    if (!entrance->has_key) curve_key_make(&entrance->key);
    entrance->has_key = true;
    entrance->token = token;
    sodium_memzero(&token, sizeof token);
    return CAIRN_OK;
}

const struct handshake_options *entrance_secure(const struct entrance *entrance,
                                                struct handshake_options *options_out)
{
    if (!entrance->is_needed) return NULL;
    *options_out = (struct handshake_options) { .is_initiator = true,
                                                .purpose = CAIRN_PURPOSE_CONTROL,
                                                .own = &entrance->key,
                                                .pin = entrance->token.pin };
    memcpy(options_out->key_id, entrance->token.id, sizeof options_out->key_id);
    memcpy(options_out->secret, entrance->token.secret, sizeof options_out->secret);
    return options_out;
}

void entrance_wipe(struct entrance *entrance)
{
    sodium_memzero(entrance, sizeof *entrance);
}
