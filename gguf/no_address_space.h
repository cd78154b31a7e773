// The error for a file larger than the remaining address space (ulimit -v).
#pragma once

#include <new>
#include <string>
#include <utility>

namespace runnel::gguf {

class NoAddressSpace : public std::bad_alloc {
  public:
    explicit NoAddressSpace(std::string what) : what_(std::move(what)) {}
    const char *what() const noexcept override { return what_.c_str(); }

  private:
    std::string what_;
};

}  // namespace runnel::gguf
