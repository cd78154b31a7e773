// Who hears of every launch on the emulated device.
#pragma once

#include "tests/simt/block.h"

namespace runnel::simt {

// Called under device_lock(), right before a launch runs and right after it ran without a Violation. Either may
// throw one, as the launch itself would.
class LaunchObserver {
  public:
    virtual ~LaunchObserver() = default;
    virtual void before(const LaunchCall &call) = 0;
    virtual void after(const LaunchCall &call) = 0;
};

// From the next launch on; null: nobody. The observer outlives its use.
void observe_launches(LaunchObserver *observer);

}  // namespace runnel::simt
