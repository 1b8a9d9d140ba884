/* Two nodes that know each other, of which `a` sends to `b`, and a fabric of any kind between them:
 *
 *   TEST_EACH(it_arrives, 0, KINDS)
 *   {
 *       pair_open(kinds[_i], NULL);
 *       node_carry(&a, &b, to_b, 1, bytes, sizeof bytes);
 *   }
 *   SUITE(30, .tear_down = pair_close); */
#ifndef CAIRN_TESTS_FABRIC_PAIR_H
#define CAIRN_TESTS_FABRIC_PAIR_H

#include "tests/support/fabric_node.h"

enum { MEM, UCX, MAPPED, AUTO, STREAM, SEALED, KINDS };
extern const char *const kinds[KINDS];

extern struct node a, b;
extern struct fabric_peer *to_b; /* of a */
extern struct fabric_hub *hub;   /* of "mem", on which messages overtake each other; else NULL */

/* The options are those of both, and may be NULL. */
void pair_open(const char *kind, const struct fabric_options *options);
void pair_open_as(const char *kind, const struct fabric_options *of_a,
                  const struct fabric_options *of_b);
/* What is open still, the hub too. */
void pair_close(void);

#endif
