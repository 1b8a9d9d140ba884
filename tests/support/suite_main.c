#include "tests/support/suite.h"

int main(void)
{
    return suite_main();
}
