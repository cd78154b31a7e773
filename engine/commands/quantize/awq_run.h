// `runnel quantize --method awq`: scales for the inputs of matrices, chosen on a text and folded into the tensors that
// make these inputs.
#pragma once

#include <string>
#include <vector>

#include "engine/commands/io.h"
#include "engine/commands/quantize/calibration_text.h"
#include "engine/quantize/quantizer.h"

namespace runnel::commands {

struct AwqResult {
    quantize::TensorScalesByName scales;
    std::vector<std::string> notes;  // what was scaled, and every input that was not, with the reason
};

// Runs the text through the unchanged model, on the CPU: once if the samples of all inputs fit kMostSampleBytes, otherwise
// several times. Memory: these samples, and the sums of an importance matrix. Shows progress. Throws InputError,
// QuantizeError, what loading a model throws, and Interrupted after Ctrl-C.
AwqResult run_awq(const gguf::File &source, const quantize::QuantizePlan &plan,
                  const quantize::QuantizeRequest &request, const CalibrationText &text, Io &io);

}  // namespace runnel::commands
