// Dequantizes blocks made of codebook entries. Internal to gguf/.
#pragma once

#include "gguf/block.h"
#include "gguf/codebook.h"

namespace runnel::gguf {

// out[0..256), bit-exact with ggml's: every product is exact in float.
void decode(const BlockIQ2_XXS &block, float *out);
void decode(const BlockIQ2_XS &block, float *out);
void decode(const BlockIQ2_S &block, float *out);
void decode(const BlockIQ3_XXS &block, float *out);
void decode(const BlockIQ3_S &block, float *out);
void decode(const BlockIQ1_S &block, float *out);
void decode(const BlockIQ1_M &block, float *out);

}  // namespace runnel::gguf
