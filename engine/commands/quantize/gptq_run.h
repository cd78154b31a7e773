// `runnel quantize --method gptq`: calibrates layer by layer and quantizes each layer's matrices.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/quantize/calibration_text.h"
#include "engine/measure/sensitivity.h"
#include "engine/quantize/quantizer.h"

namespace runnel::commands {

struct GptqResult {
    std::vector<measure::ReplacedTensor> tensors;
    std::vector<std::string>
        notes;  // what was calibrated, and every matrix that was quantized in another way
};

// Runs the text through the model once per layer, on the CPU. The inputs of a layer's matrices come from a model in
// which all earlier layers have their quantized weights already; within a layer, from its unchanged weights.
// Memory: the quantized tensors, the Hessians of a layer (4 bytes times the square of the columns for each distinct
// input; a layer with more than kMostHessianBytes takes several runs of the text), and 12 bytes times the square of the
// columns for one matrix. Shows progress. Throws InputError, QuantizeError, what loading a model throws, and Interrupted
// after Ctrl-C.
GptqResult run_gptq(const gguf::File &source, const quantize::QuantizePlan &plan,
                    const quantize::QuantizeRequest &request, const CalibrationText &text, Io &io);

}  // namespace runnel::commands
