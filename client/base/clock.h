/* The monotonic clock, which every deadline of the library is told in. */
#ifndef CAIRN_CLIENT_BASE_CLOCK_H
#define CAIRN_CLIENT_BASE_CLOCK_H

#include <stdint.h>

uint64_t cairn_client_now_us(void);
uint64_t cairn_client_now_ms(void);

#endif
