#include "engine/measure/profile.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/completion/queue.h"
#include "engine/decode/error.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/trace.h"

namespace runnel::measure {
namespace {

using base::Trace;

int64_t noted(const Trace::Event &event, std::string_view key, int64_t otherwise) {
    for (const auto &[name, value] : event.notes)
        if (name == key) return value;
    return otherwise;
}

void add(const PassCost &pass, PassCost &sum) {
    for (double PassCost::*part :
         {&PassCost::weights, &PassCost::cache_read, &PassCost::cache_written, &PassCost::states,
          &PassCost::matrix_operations, &PassCost::attention_operations, &PassCost::scores})
        sum.*part += pass.*part;
}

// Sums up trace events. They arrive in the order in which they end: the steps of a pass, the pass, the sampler, the
// queue's step.
class Sums {
  public:
    explicit Sums(const decode::Engine &engine, decode::CacheTypes types, int64_t prompt)
        : engine_(engine), types_(types), prompt_(prompt) {}

    void add(const Trace::Event &event) {
        const std::string_view name = event.name;
        if (event.seconds < 0) return;
        if (name == "step") return end_step(event.seconds);
        if (name == "pass") return end_pass(event);
        if (name == "draft") return part("other", event.seconds, 0);  // appends the last token
        if (name == "sample") return part("sampler", event.seconds, 0);
        if (name == "tokenize" || name == "render template") return;
        part(event.name, event.seconds, static_cast<double>(noted(event, "waited_ns", 0)) * 1e-9);
        in_pass_ += event.seconds;
        if (const int64_t layer = noted(event, "layer", -1); layer >= 0) {
            if (layers_.size() <= static_cast<size_t>(layer)) layers_.resize(static_cast<size_t>(layer) + 1);
            layers_[static_cast<size_t>(layer)] += event.seconds;
        }
    }
    Profile result() {
        for (const bool decode : {false, true}) {
            PhaseProfile &phase = decode ? profile_.decode : profile_.prefill;
            for (auto &[kind, part] : parts_[decode]) phase.parts.push_back(part);
            std::ranges::stable_sort(phase.parts, std::ranges::greater(), &ProfilePart::seconds);
        }
        return std::move(profile_);
    }

  private:
    void part(const char *kind, double seconds, double waited) {
        ProfilePart &part = step_[kind];
        part.kind = kind;
        ++part.count;
        part.seconds += seconds;
        part.waited += waited;
        in_step_ += seconds;
    }
    void end_pass(const Trace::Event &event) {
        part("pass", std::max(0.0, event.seconds - std::exchange(in_pass_, 0)), 0);
        depth_ = noted(event, "depth", 0), tokens_ = noted(event, "tokens", 0);
        rows_ = noted(event, "logits", 1);
    }
    // A step whose tokens lie behind the prompt belongs to decoding, any other to prefill.
    void end_step(double seconds) {
        part("other", std::max(0.0, seconds - in_step_), 0);
        const bool decode = depth_ >= prompt_;
        PhaseProfile &phase = decode ? profile_.decode : profile_.prefill;
        phase.passes += tokens_ > 0;
        phase.tokens += tokens_;
        phase.seconds += in_step_;
        if (tokens_ > 0)
            measure::add(pass_cost(engine_.model().program, depth_, tokens_, types_, rows_), phase.cost);
        for (auto &[kind, part] : step_) {
            ProfilePart &sum = parts_[decode][kind];
            sum.kind = kind;
            sum.count += part.count;
            sum.seconds += part.seconds;
            sum.waited += part.waited;
        }
        if (phase.layers.size() < layers_.size()) phase.layers.resize(layers_.size());
        for (size_t i = 0; i < layers_.size(); ++i) phase.layers[i] += layers_[i];
        step_.clear(), layers_.clear();
        tokens_ = 0, in_step_ = 0;
    }

    const decode::Engine &engine_;
    decode::CacheTypes types_;
    int64_t prompt_;
    Profile profile_;
    std::map<std::string, ProfilePart> parts_[2];  // of prefill and decode
    // Of the current step of the queue.
    std::map<std::string, ProfilePart> step_;
    std::vector<double> layers_;
    double in_pass_ = 0, in_step_ = 0;
    int64_t depth_ = 0, tokens_ = 0, rows_ = 1;
};

completion::Request request(int64_t prompt, int64_t generate, uint32_t vocab) {
    completion::Tokens input;
    std::mt19937 random(1);
    for (int64_t i = 0; i < prompt; ++i) input.ids.push_back(static_cast<text::TokenId>(random() % vocab));
    completion::Request request{.input = std::move(input)};
    request.sampling.temperature = 0;
    request.limits.max_tokens = generate;
    request.limits.ignore_end = true;
    request.drafts = false;
    return request;
}

void answer(completion::CompletionQueue &queue, const completion::Request &request,
            const decode::StopRequest &stop) {
    queue.submit(request);
    while (queue.unfinished() > 0) {
        const base::TraceSpan span("step");
        if (!queue.step(&stop)) throw base::Interrupted{};
        for (const completion::Event &event : queue.events())
            if (const auto *done = std::get_if<completion::Done>(&event)) completion::expect_answer(*done);
    }
}

}  // namespace

double PhaseProfile::seconds_of(const std::string &kind) const {
    const auto part = std::ranges::find(parts, kind, &ProfilePart::kind);
    return part == parts.end() ? 0 : part->seconds;
}

double PhaseProfile::waited() const {
    return std::accumulate(parts.begin(), parts.end(), 0.0,
                           [](double sum, const ProfilePart &part) { return sum + part.waited; });
}

Profile measure_profile(const ProfileOptions &options, decode::Engine &engine,
                        const decode::StopRequest &stop) {
    decode::Executor &executor = engine.executor();
    const auto vocab = static_cast<uint32_t>(executor.vocab());
    completion::CompletionQueue queue(executor, completion::vocabulary_of(engine.tokenizer()),
                                      {.parallel = 1});
    answer(queue, request(1, 2, vocab), stop);
    Trace trace(Trace::Detail::Steps);
    answer(queue, request(options.prompt, options.generate, vocab), stop);
    if (trace.omitted() > 0)
        throw decode::DecodeError(decode::DecodeError::Kind::Failed,
                                  "the profile has more than " + std::to_string(Trace::kMostEvents) +
                                      " steps: measure fewer tokens (-pg)");
    Sums sums(engine, executor.types(), options.prompt);
    for (const Trace::Event &event : trace.events()) sums.add(event);
    return sums.result();
}

}  // namespace runnel::measure
