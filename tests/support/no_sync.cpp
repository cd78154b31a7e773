// Test files need not survive a power failure: what the test process itself writes is not forced to the disk, which would take
// most of the time of some cases. What runnel forces there, and when, is tested in processes of its own (tests/fault/).
#include <unistd.h>

extern "C" int fsync(int) {
    return 0;
}
extern "C" int fdatasync(int) {
    return 0;
}
