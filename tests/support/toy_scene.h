/* The rooms of one process and a session of libcairn with them, as a fixture.
 *
 *   SUITE(30, toy_open_trainer, toy_stop); */
#ifndef CAIRN_SUPPORT_TOY_SCENE_H
#define CAIRN_SUPPORT_TOY_SCENE_H

#include "tests/support/toy.h"

extern struct rooms rooms;
extern cairn *session; /* NULL: none */

/* So many shards, and a fabric in memory with these options. */
#define toy_start(shards, ...) \
    rooms_open(&rooms, (shards), &(struct cairn_fabric_mem_options) { __VA_ARGS__ })
/* Two shards whose messages overtake each other, and `session` with them, named "trainer". */
void toy_open_trainer(void);
/* All sessions of toy_session end, and the rooms. */
void toy_stop(void);

#endif
