// Qwen3.5: three gated delta nets, then an attention layer with a gate.
#pragma once

#include "engine/convert/decoder.h"

namespace runnel::convert {

void convert_qwen35(Decoder &decoder);

}  // namespace runnel::convert
