/* A home on a card, and one stream and one plane of it, which the suite's tear_down closes:
 *
 *   TEST(…)
 *   {
 *       home_on("no_pinning=1,quiet=1");
 *       refused(home_pin(home, host, BYTES, &why), CAIRN_ERR_NO_MEMORY, "cannot pin");
 *   }
 *   SUITE(30, .tear_down = home_off); */
#ifndef CAIRN_TESTS_GPU_HOME_SCENE_H
#define CAIRN_TESTS_GPU_HOME_SCENE_H

#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "tests/support/emulated.h"
#include "tests/support/suite.h"

extern struct home *home;          /* NULL: none is open */
extern struct home_stream *stream; /* likewise */
extern struct home_memory plane;
extern struct sentence why; /* of the last call */

#define must(call) ck_assert_msg((call) == CAIRN_OK, "%s: %s", #call, why.text)
#define refused(call, expected, word)                                                   \
    do {                                                                                \
        const cairn_status refused_status = (call);                                     \
        ck_assert_msg(refused_status == (expected) && strstr(why.text, (word)) != NULL, \
                      "%s gave %d: %s", #call, (int)refused_status, why.text);          \
    } while (0)

/* On the emulated card, which begins with these options; its first card. */
void home_on(const char *options);
/* With a stream and a plane of so many bytes. */
void home_on_with(const char *options, uint64_t plane_bytes);
/* Memory more of it, which home_off closes, too. */
struct home_memory *home_take(const char *what, uint64_t bytes);
void home_off(void);

struct home_work copy_work(void *to, const void *from, uint64_t bytes);
struct home_work zero_work(void *at, uint64_t bytes);
/* To its end, on the stream. */
void run_work(struct home_work work);
static inline void copy_bytes(void *to, const void *from, uint64_t bytes)
{
    run_work(copy_work(to, from, bytes));
}

#endif
