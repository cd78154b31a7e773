// Repeats launches of the emulated device on the interpreter, and compares the resulting memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/ptx/machine.h"
#include "tests/simt/observer.h"

namespace runnel::ptx {

// Every launch of a kernel with PTX first runs on the interpreter, with a copy of the device's memory and a schedule
// of its own, and then in the emulator. Afterwards both memories must be bit-identical (all NaNs are equal). A
// difference or an Error of the interpreter is a Violation of the launch. Other launches are only counted: of kernels
// without PTX, and on devices of sm_75, which have their own versions of kernels.
class Replay : public simt::LaunchObserver {
  public:
    // paths: files, and folders that are searched for *.ptx. Throws Error if there are no entries.
    explicit Replay(const std::vector<std::filesystem::path> &paths);
    ~Replay() override;

    void before(const simt::LaunchCall &call) override;
    void after(const simt::LaunchCall &call) override;

    // The file with the PTX of a kernel, given by its body_name(); empty if there is none.
    std::string file_of(const std::string &kernel) const;
    // Compiles all entries. Throws Error if one is not supported.
    void compile_all();

    struct Counts {
        std::map<std::string, uint64_t> repeated, without_text;  // launches by kernel
        uint64_t turing = 0, steps = 0, entries = 0;
    };
    const Counts &counts() const { return counts_; }

  private:
    struct Text;
    void read(const std::filesystem::path &file);
    Text *find(const simt::LaunchCall &call);
    void copy_memory();

    std::vector<std::unique_ptr<Module>> modules_;
    std::map<std::string, std::unique_ptr<Text>> texts_;  // by body_name()
    std::map<const void *, std::string> names_;           // of the kernels' entries in this program
    GlobalMemory memory_;
    std::vector<std::vector<std::byte>> copies_;
    Text *running_ = nullptr;
    uint64_t launches_ = 0;
    Counts counts_;
};

// The Replay for RUNNEL_PTX=PATH[:PATH...]; null if the variable is not set.
Replay *replay();

}  // namespace runnel::ptx
