#include "proto/base/mutant.h"
#include "proto/geometry/layout.h"

struct cairn_version since_attached(struct cairn_version since, struct cairn_version newest)
{
    return !MUTANT(81) && version_compare(since, newest) > 0 ? newest : since;
}

bool layout_goes_back(uint64_t newest_known, uint64_t in_force)
{
    return in_force < newest_known && !MUTANT(82);
}
