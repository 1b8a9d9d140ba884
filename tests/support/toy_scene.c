#include "tests/support/toy_scene.h"

struct rooms rooms;
cairn *session;

void toy_stop(void)
{
    if (session != NULL) cairn_close(session);
    session = NULL;
    rooms_close(&rooms);
}
