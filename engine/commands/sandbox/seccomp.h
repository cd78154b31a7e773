// A filter of system calls: everything but what starts programs, reaches the network or leaves the sandbox.
#pragma once

namespace runnel::commands {

// For this thread and those that it starts. False where the kernel or the machine has no such thing; nothing has
// changed then. Precondition: PR_SET_NO_NEW_PRIVS.
bool forbid_calls();

}  // namespace runnel::commands
