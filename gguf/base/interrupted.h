// The end of a computation that the user stopped.
#pragma once

namespace runnel::base {

// Thrown where a stop request ends a computation that has nothing to show for it.
struct Interrupted {};

}  // namespace runnel::base
