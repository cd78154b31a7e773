// Importance matrices: for every weight tensor, how much each of its columns matters, as the mean square of the
// activations that are multiplied with it. Written by llama-imatrix, in its GGUF form or the older ".dat" form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::quantize {

// Throws QuantizeError with the file's name and what is wrong with it.
[[noreturn]] void refuse_file(const std::filesystem::path &path, const std::string &what);

class Importance {
  public:
    // Throws QuantizeError naming the file and what is wrong with it, gguf::FileError if it cannot be opened.
    static Importance load(const std::filesystem::path &path);

    // [matrices][columns] of a tensor; only experts have several matrices. Empty if there is no entry.
    std::span<const float> find(std::string_view tensor) const;

    size_t entries() const { return entries_.size(); }
    uint32_t chunks() const { return chunks_; }              // of the text it was made from; 0: unknown
    const std::string &dataset() const { return dataset_; }  // the first text's name; may be empty

  private:
    std::map<std::string, std::vector<float>, std::less<>> entries_;
    uint32_t chunks_ = 0;
    std::string dataset_;
};

}  // namespace runnel::quantize
