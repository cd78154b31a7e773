// Wraps a device and disables its top-k selection, so that tokens are chosen from full
// rows.
#pragma once

#include "kernels/forwarding_backend.h"

namespace runnel::testing {

class WholeRows final : public kernels::ForwardingBackend {
  public:
    using ForwardingBackend::ForwardingBackend;
    int32_t most_candidates() const override { return 0; }
};

}  // namespace runnel::testing
