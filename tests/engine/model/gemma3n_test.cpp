// Gemma 3n: keys that files may lack, and what is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "tests/support/edited_model.h"
#include "tests/support/model_maker.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

ModelShape shape_of(int64_t layers) {
    ModelShape shape;
    shape.arch = "gemma3n", shape.layers = layers, shape.width = 16, shape.ff = 24, shape.heads = 2,
    shape.kv_heads = 1, shape.vocab = 260, shape.context = 64, shape.threads = 1;
    return shape;
}

std::vector<reference::Row> logits_of(const gguf::File &file) {
    const std::vector<int32_t> tokens = {3, 40, 7, 99, 41, 5, 63, 8, 8};
    return tests::reference_logits(model::build(file).program, tokens);
}

}  // namespace

// The test model has 22 layers, 2 of them without keys of their own, and a cut in the first 10.
TEST_CASE("gemma3n: a file without its keys has the streams, shared layers and cuts that llama.cpp assumes") {
    EditedModel model(shape_of(22));
    const auto expected = logits_of(model.original());
    for (const char *key : {"attention.shared_kv_layers", "activation_sparsity_scale", "altup.active_idx",
                            "altup.num_inputs", "embedding_length_per_layer_input"})
        model.without(std::string("gemma3n.") + key);
    CHECK(logits_of(gguf::File::open(model.write())) == expected);
    gguf::Array none(gguf::ValueType::F32);
    for (int i = 0; i < 22; ++i) none.push(-INFINITY);
    CHECK(logits_of(gguf::File::open(model.set("gemma3n.activation_sparsity_scale", none).write())) !=
          expected);
}

TEST_CASE("gemma3n: other streams than llama.cpp's are refused by key") {
    const auto error = [](const std::string &key, uint32_t value) {
        return EditedModel(shape_of(4)).set("gemma3n." + key, value).error();
    };
    CHECK(error("altup.num_inputs", 4) == "");
    CHECK(error("altup.num_inputs", 3).find("gemma3n.altup.num_inputs: is not 4") != std::string::npos);
    CHECK(error("altup.active_idx", 1).find("gemma3n.altup.active_idx: is not 0") != std::string::npos);
    for (const float wrong : {NAN, INFINITY}) {
        gguf::Array four(gguf::ValueType::F32);
        for (int i = 0; i < 4; ++i) four.push(i == 2 ? wrong : 1.0f);
        CHECK(EditedModel(shape_of(4))
                  .set("gemma3n.activation_sparsity_scale", four)
                  .error()
                  .find("activation_sparsity_scale: has an entry that is neither") != std::string::npos);
    }
    gguf::Array three(gguf::ValueType::F32);
    for (int i = 0; i < 3; ++i) three.push(1.0f);
    CHECK(EditedModel(shape_of(4))
              .set("gemma3n.activation_sparsity_scale", three)
              .error()
              .find("activation_sparsity_scale: does not have one number per layer") != std::string::npos);
}
