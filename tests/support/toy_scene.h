/* The rooms of one process and a session of libcairn with them, as a fixture.
 *
 *   static void set_up(void)
 *   {
 *       toy_start(2, .seed = 3, .delay_max_ticks = 2);
 *       session = toy_session(&rooms, "trainer");
 *   }
 *   SUITE(30, set_up, toy_stop); */
#ifndef CAIRN_SUPPORT_TOY_SCENE_H
#define CAIRN_SUPPORT_TOY_SCENE_H

#include "tests/support/toy.h"

extern struct rooms rooms;
extern cairn *session; /* NULL: none */

/* So many shards, and a fabric in memory with these options. */
#define toy_start(shards, ...) \
    rooms_open(&rooms, (shards), &(struct cairn_fabric_mem_options) { __VA_ARGS__ })
/* The session ends, if there is one, and the rooms. */
void toy_stop(void);

#endif
