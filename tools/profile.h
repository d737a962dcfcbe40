/* tools/profile.h: the parts of gridpipe profile. */
#ifndef GPP_TOOLS_PROFILE_H
#define GPP_TOOLS_PROFILE_H

#include "tools/tools.h"

/** Measure the links between the ranks of this command, and print them.
 * @param save  where rank 0 writes the description of the cluster; NULL: nowhere
 * @return the exit status */
int profile_network(const char *save, double timeout_ms, bool json);

#endif
