// EAGLE-3 heads on the GPU, which is the emulated one.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/commands/commands.h"
#include "tests/engine/commands/commands_here.h"
#include "tests/simt/simt.h"
#include "tests/support/eagle_pair.h"

using namespace runnel;
using namespace runnel::commands;
using namespace runnel::testing;
using decode::Split;
using nlohmann::json;

namespace {

RunOptions options_for(const EaglePair &pair, bool drafts) {
    RunOptions options;
    options.model.path = pair.target_path().string();
    options.model.device = "cuda", options.model.context = 96, options.model.threads = 1;
    if (drafts) options.draft.model = pair.head_path().string();
    options.prompt = "a b c", options.raw = true, options.json = true;
    options.generation.predict = 24, options.generation.sampling.temperature = 0;
    options.generation.ignore_eos = true;
    options.draft.branches = 1;
    return options;
}

int64_t count_of(const Outcome &outcome, const char *what) {
    return json::parse(outcome.out).at("speculation").at(what).get<int64_t>();
}

}  // namespace

TEST_CASE("eagle3: on one and several (emulated) GPUs the text is the same with and without drafts") {
    Emulated emulated;
    emulated->devices = 3;
    emulated->peers = false;
    EaglePair pair = EaglePair::ruled(kEagleVocab);
    (void)pair.file();
    const auto with = [&](bool drafts, std::vector<double> shares, Split split = Split::Layer) {
        RunOptions options = options_for(pair, drafts);
        if (shares.empty()) options.model.device = "cuda:0";
        options.model.tensor_split = std::move(shares);
        options.model.split = split;
        return run_here(options);
    };
    const Outcome plain = with(false, {}), one = with(true, {}), several = with(true, {1, 1, 1}),
                  rows = with(true, {2, 1, 1}, Split::Tensor), cells = with(true, {1, 1, 1}, Split::Context);
    for (const Outcome *outcome : {&one, &several, &rows, &cells}) {
        CHECK(answer_of(*outcome) == answer_of(plain));
        CHECK(count_of(*outcome, "accepted") == count_of(*outcome, "drafted"));
    }
}

TEST_CASE("eagle3: layers on the GPU and the CPU are a usage error") {
    Emulated emulated;
    EaglePair pair;
    (void)pair.file();
    RunOptions options = options_for(pair, true);
    options.model.gpu_layers = "1";
    CHECK(run_here(options).error ==
          "--draft-model: an EAGLE-3 head needs all layers on GPUs or all on the CPU (now: 1 of 5 layers on "
          "the "
          "GPU, the others on the CPU): add --device cpu");
    options.model.device = "cpu", options.model.gpu_layers = "auto";
    CHECK(run_here(options).code == 0);
}
