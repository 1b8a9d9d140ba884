/* Included before all else where the door to UCX is compiled for test_fabric_card: sends and receives name
 * the handle of a card's memory, as they do from UCX 1.14 on, whatever UCX this machine has. */
#ifndef CAIRN_TESTS_FABRIC_BY_HANDLE_H
#define CAIRN_TESTS_FABRIC_BY_HANDLE_H

#include "proto/fabric/ucx.h"

#undef SENDS_BY_HANDLE
#define SENDS_BY_HANDLE 1

#endif
