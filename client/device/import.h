/* What the shards of this host publish on a card, mapped here to be read: what the fabric asks for
 * (proto/fabric/fabric.h). The segments of a copy come one by one, as shown (proto/geometry/published.h), and
 * lie side by side from the first on. Loop thread. */
#ifndef CAIRN_CLIENT_DEVICE_IMPORT_H
#define CAIRN_CLIENT_DEVICE_IMPORT_H

#include "proto/fabric/fabric.h"

struct card;
struct card_imports;

/* CAIRN_ERR_NO_MEMORY; CAIRN_ERR_UNSUPPORTED: a card that maps nothing of other processes. */
cairn_status cairn_card_imports_open(struct card *card,
                                     struct card_imports **imports_out) CAIRN_MUST_CHECK;
/* Behind the fabric, and when nobody reads any more. NULL is fine. */
void cairn_card_imports_close(struct card_imports *imports);
const struct cairn_fabric_device *cairn_card_imports_table(const struct card_imports *imports);

#endif
