// Writes a model with random weights; see tests/support/model_maker.h.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "tests/support/assistant_file.h"
#include "tests/support/dflash_file.h"
#include "tests/support/eagle_head.h"
#include "tests/support/model_families.h"
#include "tests/support/model_maker.h"

namespace {

struct HeadFlags {
    std::string target;
    int64_t rows = 0;
    bool norm_before_fc = false, norm_before_residual = false;
};

// An EAGLE-3 head for a model; of `shape`, its own sizes if they were given.
void make_head(const HeadFlags &flags, const runnel::testing::ModelShape &shape, const CLI::App &app,
               const std::string &out, bool overwrite) {
    const auto given = [&](const char *option, int64_t value) { return app.count(option) > 0 ? value : 0; };
    const auto target = runnel::gguf::File::open(flags.target);
    const runnel::testing::EagleHead head(target, {.width = given("--width", shape.width),
                                                   .ff = given("--ff", shape.ff),
                                                   .heads = shape.heads,
                                                   .kv_heads = shape.kv_heads,
                                                   .head_dim = shape.head_dim,
                                                   .rows = flags.rows,
                                                   .norm_before_residual = flags.norm_before_residual,
                                                   .norm_before_fc = flags.norm_before_fc,
                                                   .rope_freq_base = shape.rope_freq_base,
                                                   .type = shape.type,
                                                   .seed = shape.seed});
    head.write(out, {.overwrite = overwrite});
}

// A Gemma 4 assistant for a model, likewise.
void make_assistant(const std::string &file, const runnel::testing::ModelShape &shape, const CLI::App &app,
                    const std::string &out, bool overwrite) {
    const auto given = [&](const char *option, int64_t value, int64_t absent) {
        return app.count(option) > 0 ? value : absent;
    };
    const auto target = runnel::gguf::File::open(file);
    const runnel::testing::AssistantFile assistant(target, {.width = given("--width", shape.width, 256),
                                                            .ff = given("--ff", shape.ff, 2048),
                                                            .layers = given("--layers", shape.layers, 4),
                                                            .heads = given("--heads", shape.heads, 0),
                                                            .type = shape.type,
                                                            .seed = shape.seed});
    assistant.write(out, {.overwrite = overwrite});
}

// A DFlash drafter for a model, likewise.
void make_dflash(const std::string &file, const runnel::testing::ModelShape &shape, uint32_t block,
                 const CLI::App &app, const std::string &out, bool overwrite) {
    const auto given = [&](const char *option, int64_t value, int64_t absent) {
        return app.count(option) > 0 ? value : absent;
    };
    const auto target = runnel::gguf::File::open(file);
    const runnel::testing::DFlashFile drafter(target, {.ff = given("--ff", shape.ff, 0),
                                                       .layers = given("--layers", shape.layers, 4),
                                                       .heads = shape.heads,
                                                       .kv_heads = shape.kv_heads,
                                                       .head_dim = shape.head_dim,
                                                       .block = block,
                                                       .type = shape.type,
                                                       .seed = shape.seed});
    drafter.write(out, {.overwrite = overwrite});
}

}  // namespace

int main(int argc, char **argv) {
    runnel::testing::ModelShape shape;
    std::string out;
    bool fast = false, overwrite = false;
    CLI::App app("Writes a GGUF model with random weights, for tests and benchmarks.");
    app.option_defaults()->always_capture_default();
    app.add_option("--out", out, "the file to write")->required();
    std::vector<std::string> names;
    for (const auto &family : runnel::testing::family_files()) names.push_back(family.name);
    app.add_option("--arch", shape.arch)->check(CLI::IsMember(names));
    app.add_option("--layers", shape.layers);
    app.add_option("--width", shape.width);
    app.add_option("--ff", shape.ff);
    app.add_option("--heads", shape.heads);
    app.add_option("--kv-heads", shape.kv_heads);
    app.add_option("--head-dim", shape.head_dim, "0: width / heads");
    app.add_option("--state-heads", shape.state_heads, "of gated delta nets; 0: heads");
    app.add_option("--state-key-heads", shape.state_key_heads, "0: kv-heads");
    app.add_option("--state-dim", shape.state_dim, "size of these heads; 0: head-dim");
    app.add_option("--vocab", shape.vocab, "size of the made-up vocabulary");
    app.add_option("--vocab-from", shape.vocab_from, "copy the vocabulary of this GGUF file");
    app.add_option("--ctx", shape.context);
    app.add_option("--type", shape.type, "F32, F16, BF16, Q4_0, ..., or a mix: Q3_K_M, Q4_K_M, Q5_K_M");
    app.add_flag("--pure", shape.pure, "every matrix in that type, without llama.cpp's habits");
    app.add_flag("--dequantized", shape.dequantized, "write F32 values that went through the type");
    app.add_flag("--tied", shape.tied, "no output matrix of its own");
    app.add_flag("--bias", shape.bias, "biases in attention (some families always have them)");
    app.add_option("--rope-freq-base", shape.rope_freq_base);
    app.add_option("--rope-scaling", shape.rope_scaling)
        ->check(CLI::IsMember({"", "linear", "yarn", "llama3", "longrope"}));
    app.add_option("--rope-factor", shape.rope_factor);
    app.add_option("--original-ctx", shape.original_context, "before scaling; 0: ctx / rope-factor");
    app.add_option("--sliding-window", shape.sliding_window);
    app.add_flag("--draft-block", shape.draft_block, "a next-token-prediction block behind the layers");
    HeadFlags head;
    app.add_option("--eagle3-for", head.target, "write an EAGLE-3 head for this model instead of a model");
    std::string assistant_for;
    app.add_option("--assistant-for", assistant_for, "write a Gemma 4 assistant for this model");
    std::string dflash_for;
    uint32_t block = 16;
    app.add_option("--dflash-for", dflash_for, "write a DFlash drafter for this model");
    app.add_option("--block", block, "tokens that the drafter guesses at once");
    app.add_option("--draft-vocab", head.rows, "tokens that the head can draft; 0: all");
    app.add_flag("--norm-before-fc", head.norm_before_fc);
    app.add_flag("--norm-before-residual", head.norm_before_residual);
    app.add_option("--experts", shape.experts.count, "0: 8 in families of experts");
    app.add_option("--experts-used", shape.experts.used);
    app.add_option("--expert-ff", shape.experts.ff, "0: ff");
    app.add_option("--leading-dense", shape.experts.leading_dense, "layers before those with experts");
    app.add_option("--expert-groups", shape.experts.groups);
    app.add_option("--expert-groups-used", shape.experts.groups_used);
    app.add_flag("--expert-merged", shape.experts.merged, "gate and up in one tensor");
    app.add_option("--latent-rank", shape.latent_rank);
    app.add_option("--latent-q-rank", shape.latent_q_rank);
    app.add_option("--latent-rotated", shape.latent_rotated);
    app.add_option("--indexer-heads", shape.indexer_heads);
    app.add_option("--indexer-top-k", shape.indexer_top_k, "keys that sparse attention chooses");
    app.add_option("--indexer-block", shape.indexer_block, "keys in a block of block-sparse attention");
    app.add_option("--indexer-local", shape.indexer_local, "newest blocks that are always chosen");
    app.add_option("--indexer-period", shape.indexer_period, "only every layer of this many has an indexer");
    app.add_option("--seed", shape.seed);
    app.add_option("--threads", shape.threads)->check(CLI::Range(1, 64));
    app.add_flag("--repeated", shape.repeated, "repeat the first weights of each tensor: quick to make");
    app.add_flag("--fast", fast, "a cheaper search in the K and IQ4 formats");
    app.add_flag("--overwrite", overwrite, "replace a file that is there");
    CLI11_PARSE(app, argc, argv);
    if (fast) shape.effort = runnel::gguf::Effort::Fast;
    try {
        if (!head.target.empty())
            make_head(head, shape, app, out, overwrite);
        else if (!assistant_for.empty())
            make_assistant(assistant_for, shape, app, out, overwrite);
        else if (!dflash_for.empty())
            make_dflash(dflash_for, shape, block, app, out, overwrite);
        else
            runnel::testing::make_model(shape, out, {.overwrite = overwrite});
    } catch (const std::exception &error) {
        std::cerr << "make-model: " << error.what() << '\n';
        return 1;
    }
    return 0;
}
