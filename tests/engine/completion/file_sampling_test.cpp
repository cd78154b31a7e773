// Sampling defaults in a model file: every key sets its setting, and what cannot be used is noted.
#include "engine/completion/file_sampling.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <string_view>

#include "tests/support/edited_model.h"

using namespace runnel;
using namespace runnel::testing;

namespace {

completion::FileSampling read(const EditedModel &model) {
    return completion::file_sampling(gguf::File::open(model.write()));
}

}  // namespace

TEST_CASE("file sampling: a file without the keys changes nothing") {
    const completion::FileSampling found = read(EditedModel());
    CHECK_FALSE(found.any());
    CHECK(found.text().empty());
    CHECK(found.notes.empty());
}

TEST_CASE("file sampling: every key of llama.cpp sets its setting") {
    EditedModel model;
    model.set("general.sampling.sequence", std::string_view("top_k;temperature"))
        .set("general.sampling.temp", 0.6f)
        .set("general.sampling.top_k", int32_t{20})
        .set("general.sampling.top_p", 0.9f)
        .set("general.sampling.min_p", 0.01f)
        .set("general.sampling.xtc_probability", 0.2f)
        .set("general.sampling.xtc_threshold", 0.3f)
        .set("general.sampling.penalty_last_n", int32_t{-1})
        .set("general.sampling.penalty_repeat", 1.1f)
        .set("general.sampling.mirostat", int32_t{2})
        .set("general.sampling.mirostat_tau", 4.5f)
        .set("general.sampling.mirostat_eta", 0.2f);
    const completion::FileSampling found = read(model);
    CHECK(found.notes.empty());
    decode::SamplingOptions options;
    found.apply(options);
    CHECK(options.samplers ==
          decode::SamplerOrder{decode::SamplerKind::TopK, decode::SamplerKind::Temperature});
    CHECK(options.temperature == 0.6f);
    CHECK(options.top_k == 20);
    CHECK(options.top_p == 0.9f);
    CHECK(options.min_p == 0.01f);
    CHECK(options.xtc_probability == 0.2f);
    CHECK(options.xtc_threshold == 0.3f);
    CHECK(options.repeat_last_n == -1);
    CHECK(options.repeat_penalty == 1.1f);
    CHECK(options.mirostat == 2);
    CHECK(options.mirostat_tau == 4.5f);
    CHECK(options.mirostat_eta == 0.2f);
}

TEST_CASE("file sampling: unknown keys and values out of range are noted, not used") {
    EditedModel model;
    model.set("general.sampling.top_p", 3.0f)
        .set("general.sampling.temp", std::numeric_limits<float>::quiet_NaN())
        .set("general.sampling.top_k", std::string_view("many"))
        .set("general.sampling.sequence", std::string_view("top_k;luck"))
        .set("general.sampling.luck", 1.0f)
        .set("general.sampling.min_p", 0.25f);
    const completion::FileSampling found = read(model);
    CHECK(found.text() == "min-p 0.25");
    REQUIRE(found.notes.size() == 5);
    CHECK(found.notes[0] == "general.sampling.top_p of the file is ignored: expected a number from 0 to 1");
    CHECK(found.notes[2].find("general.sampling.top_k") == 0);
    CHECK(found.notes[4] == "general.sampling.luck of the file is ignored: there is no such setting");
}

TEST_CASE("file sampling: a file with many unknown keys gives few notes") {
    EditedModel model;
    for (int i = 0; i < 1000; ++i) model.set("general.sampling.x" + std::to_string(i), 1.0f);
    const completion::FileSampling found = read(model);
    CHECK_FALSE(found.any());
    REQUIRE(found.notes.size() == 17);
    CHECK(found.notes.back() == "984 more such keys of the file are ignored");
}
