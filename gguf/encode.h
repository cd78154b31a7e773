// Encodes one block of each quantized format from its float values. Internal to gguf/;
// quantize.h states the guarantees.
#pragma once

#include "gguf/block.h"
#include "gguf/nvfp4.h"
#include "gguf/quantize.h"

namespace runnel::gguf {

// encode_simple.cpp: the scale follows from the largest value.
void encode(const float *in, BlockQ4_0 &block, Effort);
void encode(const float *in, BlockQ4_1 &block, Effort);
void encode(const float *in, BlockQ5_0 &block, Effort);
void encode(const float *in, BlockQ5_1 &block, Effort);
void encode(const float *in, BlockQ8_0 &block, Effort);
void encode(const float *in, BlockMXFP4 &block, Effort);
void encode(const float *in, BlockNVFP4 &block, Effort);
void encode(const float *in, BlockTQ1_0 &block, Effort);
void encode(const float *in, BlockTQ2_0 &block, Effort);
void encode(const float *in, BlockQ1_0 &block, Effort);  // the scale is the mean magnitude
void encode(const float *in, BlockQ2_0 &block, Effort);
void encode(const float *in, BlockPQ2_0 &block, Effort);
void encode(const float *in, BlockPTQ1_0 &block, Effort);

// encode_affine.cpp: groups with a scale and a minimum.
void encode(const float *in, BlockQ2_K &block, Effort effort);
void encode(const float *in, BlockQ4_K &block, Effort effort);
void encode(const float *in, BlockQ5_K &block, Effort effort);

// encode_symmetric.cpp: groups with a scale.
void encode(const float *in, BlockQ3_K &block, Effort effort);
void encode(const float *in, BlockQ6_K &block, Effort effort);
void encode(const float *in, BlockIQ4_NL &block, Effort effort);
void encode(const float *in, BlockIQ4_XS &block, Effort effort);

}  // namespace runnel::gguf
