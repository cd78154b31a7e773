// One table of functions per instruction set. Internal to group_search.cpp.
#pragma once

#include "gguf/group_search.h"

namespace runnel::gguf {

extern constinit const GroupSearch kGroupSearchScalar, kGroupSearchAvx2, kGroupSearchAvx512;

}  // namespace runnel::gguf
