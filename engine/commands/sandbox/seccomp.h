// A filter that refuses the system calls that start programs, reach the network, type into the terminal or leave the
// sandbox.
#pragma once

namespace runnel::commands {

// Installs the filter for this thread and those that it starts later. False, without effect, if the kernel or the
// architecture does not support it. Precondition: PR_SET_NO_NEW_PRIVS.
bool forbid_calls();

}  // namespace runnel::commands
