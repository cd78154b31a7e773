// Repeats launches of the emulated device on the interpreter and compares the memory that both leave.
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

// Every launch of a kernel whose PTX is there runs on a copy of the device's memory first, in an order of its own,
// and then in the emulator; the memory must be the same afterwards to the bit (a NaN equals a NaN). A difference, and
// what the interpreter finds wrong, is a Violation of the launch. Launches of other kernels, and those of devices
// of sm_75, for which kernels have another version, are counted.
class Replay : public simt::LaunchObserver {
  public:
    // Files, and folders with all *.ptx below them. Throws Error if there is none.
    explicit Replay(const std::vector<std::filesystem::path> &paths);
    ~Replay() override;

    void before(const simt::LaunchCall &call) override;
    void after(const simt::LaunchCall &call) override;

    // The file with the kernel's text, by body_name(); empty: there is none.
    std::string file_of(const std::string &kernel) const;
    // Reads all entries. Throws Error for what is not supported.
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
    std::map<const void *, std::string> names_;           // of entries of this program
    GlobalMemory memory_;
    std::vector<std::vector<std::byte>> copies_;
    Text *running_ = nullptr;
    uint64_t launches_ = 0;
    Counts counts_;
};

// The one that the environment asks for: RUNNEL_PTX=PATH[:PATH...]. Null: none.
Replay *replay();

}  // namespace runnel::ptx
