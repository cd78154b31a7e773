// The exception for a computation that the user stopped.
#pragma once

namespace runnel::base {

// Thrown when a stop request ends a computation that has no partial result.
struct Interrupted {};

}  // namespace runnel::base
