/* Where the shards of a test keep their state: CAIRN_TEST_BACKEND of the environment (compute.backend), so
 * that a test runs once more on a device; without it in host memory, also on a machine that has one. */
#ifndef CAIRN_TESTS_SUPPORT_TEST_BACKEND_H
#define CAIRN_TESTS_SUPPORT_TEST_BACKEND_H

#include <stdlib.h>
#include <string.h>

static inline const char *cairn_test_backend(void)
{
    const char *backend = getenv("CAIRN_TEST_BACKEND");
    return backend != NULL ? backend : "host";
}

/* The same of one of several shards: CAIRN_TEST_BACKENDS has a letter of each, c (cuda) or h (host), and
 * begins again behind the last one. Without it all of them are alike. */
static inline const char *cairn_test_backend_of(unsigned shard)
{
    const char *letters = getenv("CAIRN_TEST_BACKENDS");
    if (letters == NULL) return cairn_test_backend();
    return letters[shard % strlen(letters)] == 'c' ? "cuda" : "host";
}

/* Of that, what a scene's job has in host memory: CAIRN_TEST_OFFLOAD (offload_fraction); 0 without it. */
static inline double cairn_test_offload(void)
{
    const char *fraction = getenv("CAIRN_TEST_OFFLOAD");
    return fraction != NULL ? strtod(fraction, NULL) : 0;
}

#endif
