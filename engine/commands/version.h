// The version of this build.
#pragma once

#include <string>

namespace runnel::commands {

// The commit that this program was built from.
std::string build_commit();

}  // namespace runnel::commands
