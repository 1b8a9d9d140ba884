/* Maps what the shards of this host publish on a card, so that this process can read it: the callbacks
 * that the fabric asks for (proto/fabric/fabric.h). The segments of a copy come one by one, as the
 * shard shows them (proto/geometry/published.h), and lie side by side from the first on. While a
 * stream waits for a word nothing is mapped or unmapped, since the driver may let such a call wait for
 * the stream: it is put off, and until then a segment that was shown has only its addresses. Loop
 * thread. */
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
/* Does what was put off: between cairn_card_change_begin and _end. NULL is fine. */
void cairn_card_imports_turn(struct card_imports *imports);
/* True if something is put off. */
bool cairn_card_imports_wait(const struct card_imports *imports);
enum card_import { CARD_IMPORT_LATER, CARD_IMPORT_THERE, CARD_IMPORT_REFUSED };
/* The state of an address that was given to the fabric and is not released. */
enum card_import cairn_card_imports_state(const struct card_imports *imports, const void *address);
/* Why the driver refused the segment that became CARD_IMPORT_REFUSED last. */
const char *cairn_card_imports_why(const struct card_imports *imports);
const struct cairn_fabric_device *cairn_card_imports_table(const struct card_imports *imports);

#endif
