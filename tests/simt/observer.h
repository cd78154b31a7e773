// An observer of the launches on the emulated device.
#pragma once

#include "tests/simt/block.h"

namespace runnel::simt {

// before() is called right before a launch, after() right after a launch without a Violation; both with
// device_lock() held. Both may throw a Violation, which counts as one of the launch.
class LaunchObserver {
  public:
    virtual ~LaunchObserver() = default;
    virtual void before(const LaunchCall &call) = 0;
    virtual void after(const LaunchCall &call) = 0;
};

// Sets the observer from the next launch on; null: none. The caller keeps it alive until it is replaced.
void observe_launches(LaunchObserver *observer);

}  // namespace runnel::simt
