#include "tests/support/toy_scene.h"

struct rooms rooms;
cairn *session;

void toy_open_trainer(void)
{
    toy_start(2, .seed = 5, .delay_max_ticks = 2);
    session = toy_session(&rooms, "trainer");
}

void toy_stop(void)
{
    toy_sessions_close();
    session = NULL;
    rooms_close(&rooms);
}
