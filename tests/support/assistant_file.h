// Gemma 4 assistants (engine/model/assistant.h) with random weights, which a test can change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "gguf/output_file.h"
#include "tests/support/head_tensors.h"

namespace runnel::testing {

struct AssistantShape {
    int64_t width = 24, ff = 40;
    int64_t layers = 4;      // the last one is full, the others have a window
    bool wide_full = false;  // the full layer's feed-forward network is twice as wide
    int64_t heads = 0;       // 0: as many as the target has K/V heads, times 2
    float softcap = 0;       // of the logits; 0: none
    std::string type = "F32";
    uint64_t seed = 1;
};

class AssistantFile : public HeadTensors {
  public:
    // For a target of the architecture gemma4, whose heads the assistant's take after: its last layer must be full and the
    // one before it have a window. Throws std::invalid_argument for other files.
    explicit AssistantFile(const gguf::File &target, AssistantShape shape = {});

    // Writes the file, with the target's tokenizer.
    void write(const std::filesystem::path &path, const gguf::OutputOptions &options = {}) const;

    std::map<std::string, uint32_t> numbers;  // of the architecture: "block_count"
    std::vector<int32_t> kv_heads, hidden;    // by layer
    std::vector<bool> windowed;               // likewise

  private:
    const gguf::File *target_;
    AssistantShape shape_;
};

}  // namespace runnel::testing
