// Measures what drafts gain on a machine: plain and speculative decoding take turns on the same text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/measure/acceptance_bench.h"
#include "engine/measure/timed_answer.h"

namespace runnel::measure {

// Compares plain with speculative decoding of one text.
struct SpeedComparison {
    std::string text;           // what was decoded
    std::vector<double> plain;  // tokens per second, one per repetition
    std::vector<double> drafted;
    std::vector<double> gains;  // drafted / plain, one per repetition
    SpeculationCounts counts{};
    bool same = true;  // both decoded the same text
};

class SpeculationBench {
  public:
    struct Options {
        int32_t tokens = 128;  // of an answer
        int32_t repetitions = 5;
        DraftLengthOptions length = {};
    };
    // All references must outlive it. Throws what AcceptanceBench throws.
    SpeculationBench(const Options &options, Engine &engine, StopRequest &stop);

    // On a text that the model generates. Throws what AcceptanceBench::measure() throws.
    SpeedComparison compare(const std::string &name, const std::vector<TokenId> &prompt, float temperature,
                            const MakeSpeculator &speculators);
    // On a given text, which repeats the prompt with changes; drafts are looked up in the text so far.
    SpeedComparison edit();
    // On a forced text, with synthetic drafts that have this acceptance rate.
    AcceptanceRow measure(double acceptance) { return synthetic_.measure(acceptance); }
    // The costs of passes with these numbers of tokens, in units of one plain step. Precondition: measure()
    // was called.
    std::vector<double> pass_costs(const std::vector<int32_t> &tokens) const;

  private:
    int32_t texts() const;
    void run(Executor &executor, const SamplingOptions &how, const std::vector<TokenId> &prompt,
             int32_t tokens, const MakeSpeculator &speculators, SpeedComparison &out);
    std::vector<TokenId> edited(const std::vector<TokenId> &original);

    const Options options_;
    Engine &engine_;
    StopRequest &stop_;
    ForcedModel forced_;
    AcceptanceBench synthetic_;
};

}  // namespace runnel::measure
