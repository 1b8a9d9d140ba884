/* A backward that computes: every core is at work until a time, as a trainer on the host has it. */
#include <pthread.h>

#include "client/ctl/bench/bench.h"
#include "client/ctl/bench/step/worker.h"

enum { TURNS = 4096 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    double until; /* under the lock */
    bool is_started;
} busy = { .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER };

static void compute_until(double seconds)
{
    volatile float sum = 0;
    while (cairn_bench_now() < seconds)
        for (int i = 0; i < TURNS; i++) sum = sum * 0.999f + 1.0f;
}

static void *help(void *context)
{
    (void)context;
    pthread_mutex_lock(&busy.lock);
    for (;;) {
        const double until = busy.until;
        if (cairn_bench_now() >= until) {
            pthread_cond_wait(&busy.more, &busy.lock);
            continue;
        }
        pthread_mutex_unlock(&busy.lock);
        compute_until(until);
        pthread_mutex_lock(&busy.lock);
    }
    return NULL;
}

/* They end with the process. One that cannot be started is a core that rests. */
static void start_helpers(void)
{
    pthread_t thread;
    for (uint32_t i = 1; i < cairn_bench_core_count(); i++)
        if (pthread_create(&thread, NULL, help, NULL) == 0) pthread_detach(thread);
    busy.is_started = true;
}

void step_compute_until(double seconds)
{
    if (!busy.is_started) start_helpers();
    pthread_mutex_lock(&busy.lock);
    busy.until = seconds;
    pthread_cond_broadcast(&busy.more);
    pthread_mutex_unlock(&busy.lock);
    compute_until(seconds);
}
