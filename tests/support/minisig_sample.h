/* Keys, and signatures of texts by them, in minisign's format. */
#ifndef CAIRN_SUPPORT_MINISIG_SAMPLE_H
#define CAIRN_SUPPORT_MINISIG_SAMPLE_H

#include "proto/snapshot/snapshot.h"

struct secret_key cairn_sample_key(void);
void cairn_sample_sign(const struct secret_key *key, const char *bytes,
                       char text[CAIRN_MINISIG_BYTES]);
/* Reads the signature, and checks it. */
cairn_status cairn_sample_check(const char *text, const struct public_key *key, const char *bytes,
                                struct sentence *why);

#endif
