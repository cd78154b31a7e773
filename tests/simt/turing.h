// Emulates a device of sm_75 (Turing) in a scope: 64 KB of shared memory, no asynchronous copies, and the
// kernels' versions for it. On a real device nothing changes.
#pragma once

#include "tests/simt/simt.h"

namespace runnel::simt {

class Turing {
  public:
    Turing() : before_(settings()) {
        settings().major = 7, settings().minor = 5;
        settings().shared_per_block = settings().shared_per_multiprocessor = size_t{64} << 10;
    }
    ~Turing() { settings() = before_; }
    Turing(const Turing &) = delete;
    Turing &operator=(const Turing &) = delete;

  private:
    Settings before_;
};

}  // namespace runnel::simt
