// The table of model families. A new family is a file in families/ and a line in families.cpp.
#pragma once

#include <span>
#include <string_view>

#include "engine/model/builder.h"

namespace runnel::model {

struct Family {
    std::string_view architecture;  // general.architecture
    void (*emit)(Builder &);        // writes the whole program
    // Layers may differ in size: attention.head_count_kv and feed_forward_length may be arrays.
    bool layers_differ = false;
    // Some layers have no attention or no feed-forward network: attention.head_count_kv or
    // feed_forward_length may be 0 for them.
    bool recurrent = false;
    // Without attention.key_length, heads have rope.dimension_count dimensions, not embedding_length / heads.
    bool whole_heads_rotate = false;
    // The draft block that a file may hold is an attention layer of the family (draft_block.h).
    bool draft_block = false;
};

std::span<const Family> families();
const Family *find_family(std::string_view architecture);  // null for an unknown one

void emit_qwen35(Builder &);
void emit_qwen3next(Builder &);
void emit_lfm2(Builder &);
void emit_mamba(Builder &);
void emit_mamba2(Builder &);
void emit_jamba(Builder &);
void emit_falcon_h1(Builder &);
void emit_granitehybrid(Builder &);
void emit_nemotron_h(Builder &);
void emit_plamo2(Builder &);
void emit_plamo3(Builder &);
void emit_minimax_01(Builder &);
void emit_kimi_linear(Builder &);
void emit_bailingmoe3(Builder &);
void emit_rwkv6(Builder &);
void emit_rwkv6qwen2(Builder &);
void emit_rwkv7(Builder &);
void emit_arwkv7(Builder &);
void emit_qwen2moe(Builder &);
void emit_qwen3moe(Builder &);
void emit_olmoe(Builder &);
void emit_gpt_oss(Builder &);
void emit_glm4moe(Builder &);
void emit_minimax_m2(Builder &);
void emit_minimax_m3(Builder &);
void emit_qwen4exp(Builder &);
void emit_ernie4_5_moe(Builder &);
void emit_hunyuan_moe(Builder &);
void emit_deepseek2(Builder &);
void emit_sparse_deepseek2(Builder &);
void emit_deepseek4(Builder &);
void emit_gemma3n(Builder &);
void emit_gemma4(Builder &);
void emit_llama4(Builder &);
void emit_llama(Builder &);
void emit_qwen2(Builder &);
void emit_qwen3(Builder &);
void emit_gemma(Builder &);
void emit_gemma2(Builder &);
void emit_gemma3(Builder &);
void emit_mistral3(Builder &);
void emit_phi3(Builder &);
void emit_phimoe(Builder &);
void emit_glm4(Builder &);
void emit_smollm3(Builder &);
void emit_seed_oss(Builder &);
void emit_olmo2(Builder &);
void emit_granite(Builder &);
void emit_command_r(Builder &);
void emit_cohere2(Builder &);
void emit_ernie4_5(Builder &);
void emit_hunyuan_dense(Builder &);
void emit_exaone(Builder &);
void emit_exaone4(Builder &);
void emit_internlm2(Builder &);
void emit_nemotron(Builder &);
void emit_minicpm(Builder &);
void emit_gpt2(Builder &);
void emit_gptneox(Builder &);
void emit_falcon(Builder &);
void emit_starcoder2(Builder &);
void emit_stablelm(Builder &);
void emit_phi2(Builder &);
void emit_adjacent(Builder &);
void emit_halves(Builder &);
void emit_arcee(Builder &);
void emit_baichuan(Builder &);
void emit_bitnet(Builder &);
void emit_bloom(Builder &);
void emit_refact(Builder &);
void emit_jais(Builder &);
void emit_mpt(Builder &);
void emit_orion(Builder &);
void emit_qwen(Builder &);
void emit_hunyuan_vl(Builder &);
void emit_plamo(Builder &);
void emit_maincoder(Builder &);
void emit_deci(Builder &);
void emit_openelm(Builder &);
void emit_deepseek(Builder &);
void emit_deepseek2_ocr(Builder &);
void emit_bailingmoe2(Builder &);
void emit_dots1(Builder &);
void emit_exaone_moe(Builder &);
void emit_mellum(Builder &);
void emit_granite_swa(Builder &);
void emit_mimo2(Builder &);
void emit_cohere2moe(Builder &);
void emit_arctic(Builder &);
void emit_grok(Builder &);
void emit_minicpm3(Builder &);
void emit_plm(Builder &);
void emit_afmoe(Builder &);
void emit_muse_glimmer(Builder &);
void emit_spark2_5(Builder &);
void emit_laguna(Builder &);
void emit_maple(Builder &);
void emit_step35(Builder &);
void emit_olmo(Builder &);
void emit_dbrx(Builder &);
void emit_apertus(Builder &);
void emit_smallthinker(Builder &);
void emit_nanbeige(Builder &);
void emit_talkie(Builder &);

}  // namespace runnel::model
