// How far a model's predictions move when some of its tensors are replaced: the KL divergence from the
// unchanged model over a text, as in perplexity.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/perplexity.h"

namespace runnel::measure {

struct ReplacedTensor {
    std::string name;             // in the model file
    gguf::Type type;              // of `data`
    std::vector<std::byte> data;  // all rows; empty: the tensor stays as it is
};

// Makes the program's weights that are whole rows of `tensor` those of `by`, whose data must outlive the program; false if
// there is none.
bool replace_rows(kernels::Program &program, const gguf::Tensor &tensor, const ReplacedTensor &by);

class Sensitivity {
  public:
    // Runs the unchanged model over the text. tokens: a multiple of `context`. Memory: 2 bytes per scored token and
    // vocabulary entry. `engine` must outlive this. Throws base::Interrupted and what Executor throws.
    Sensitivity(decode::Engine &engine, std::vector<TokenId> tokens, int32_t context,
                const StopRequest &stop);

    int64_t tokens() const { return static_cast<int64_t>(base_.size()); }  // scored

    // Mean divergence over the scored tokens, at least 0, and its standard error. False in `used` means that no matrix
    // of the program consists of the replaced tensors' rows. Throws as the constructor does.
    struct Result {
        double divergence = 0, error = 0;
        bool used = false;
        std::vector<double> chunks;       // mean divergence of each chunk
        std::vector<std::string> unused;  // names of tensors that are not matrices of the program
    };
    Result divergence(std::span<const ReplacedTensor> replaced, const StopRequest &stop);

  private:
    decode::Engine &engine_;
    std::vector<TokenId> tokens_;
    int32_t context_;
    std::vector<std::vector<uint16_t>> base_;  // rows in the form of logits_file.h
};

}  // namespace runnel::measure
