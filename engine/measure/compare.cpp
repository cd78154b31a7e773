#include "engine/measure/compare.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <random>

#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "engine/measure/median.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

using base::Clock, base::seconds_since;
using decode::Engine;

double median_ratio(const std::vector<double> &of, const std::vector<double> &to) {
    std::vector<double> ratios;
    for (size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i] / to[i]);
    return median(std::move(ratios));
}

// Prefill and decode of random tokens in a sequence of its own.
class Turns {
  public:
    Turns(Engine &engine, const StopRequest &stop)
        : sequence_(engine.executor()),
          stop_(stop),
          vocab_(static_cast<uint32_t>(engine.model().hyper.vocab)) {
        feed(1);  // brings the weights into memory
    }
    void run(const CompareOptions &options, ComparedModel &result) {
        sequence_.truncate(0);
        const auto start = Clock::now();
        feed(options.prompt);
        result.prefill.push_back(options.prompt / seconds_since(start));
        const auto answer = Clock::now();
        for (int32_t i = 0; i < options.generate; ++i) feed(1);
        result.decode.push_back(options.generate / seconds_since(answer));
    }

  private:
    void feed(int32_t count) {
        std::vector<TokenId> tokens(static_cast<size_t>(count));
        for (TokenId &id : tokens) id = static_cast<TokenId>(random_() % vocab_);
        if (!sequence_.feed(tokens, &stop_)) throw base::Interrupted{};
    }
    decode::SingleSequence sequence_;
    const StopRequest &stop_;
    const uint32_t vocab_;
    std::mt19937 random_{1};
};

std::vector<TokenId> chunks_of(const Engine &engine, const CompareOptions &options) {
    std::vector<TokenId> tokens = engine.tokenizer().encode(options.text);
    size_t chunks = tokens.size() / static_cast<size_t>(options.context);
    if (chunks == 0)
        throw decode::DecodeError(decode::DecodeError::Kind::BadInput,
                                  "the text has " + std::to_string(tokens.size()) +
                                      " tokens, and the quality needs at least " +
                                      std::to_string(options.context));
    if (options.chunks > 0) chunks = std::min(chunks, static_cast<size_t>(options.chunks));
    tokens.resize(chunks * static_cast<size_t>(options.context));
    return tokens;
}

// The log-probabilities of the first model for one chunk.
class BaseRows {
  public:
    void clear() { rows_.clear(), next_ = 0; }
    void rewind() { next_ = 0; }
    void add(std::span<const float> logits) {
        const double top = double{*std::ranges::max_element(logits)};
        double sum = 0;
        for (const float l : logits) sum += std::exp(double{l} - top);
        std::vector<float> &row = rows_.emplace_back();
        for (const float l : logits) row.push_back(static_cast<float>(double{l} - top - std::log(sum)));
    }
    std::span<const float> next() { return rows_[next_++]; }

  private:
    std::vector<std::vector<float>> rows_;
    size_t next_ = 0;
};

// Chunk by chunk, the first model before the others, so that only the rows of one chunk are held.
void compare_quality(std::span<Engine *const> engines, const CompareOptions &options, const StopRequest &stop,
                     const std::function<void(const std::string &)> &show,
                     std::vector<ComparedModel> &results) {
    BaseRows base;
    std::vector<std::vector<TokenId>> tokens;
    for (const Engine *engine : engines) tokens.push_back(chunks_of(*engine, options));
    std::deque<PerplexityRun> runs;
    for (size_t i = 0; i < engines.size(); ++i) {
        Engine &engine = *engines[i];
        const bool same =
            tokens[i] == tokens[0] && engine.executor().vocab() == engines[0]->executor().vocab();
        runs.emplace_back(
            engine.executor(), tokens[i], options.context, text_begin(engine.tokenizer()),
            i == 0 ? SaveRow([&](std::span<const float> logits) { base.add(logits); }) : SaveRow(),
            i > 0 && same ? BaseRow([&] { return base.next(); }) : BaseRow());
    }
    for (bool going = true; going;) {
        going = false;
        base.clear();
        for (size_t i = 0; i < runs.size(); ++i) {
            if (runs[i].done() == runs[i].chunks()) continue;
            show("text, chunk " + std::to_string(runs[i].done() + 1) + " of " +
                 std::to_string(runs[i].chunks()));
            base.rewind();
            if (!runs[i].step(&stop)) throw base::Interrupted{};
            going = true;
        }
    }
    for (size_t i = 0; i < runs.size(); ++i) results[i].quality = runs[i].result();
}

}  // namespace

double ComparedModel::prefill_gain(const ComparedModel &first) const {
    return median_ratio(prefill, first.prefill);
}

double ComparedModel::decode_gain(const ComparedModel &first) const {
    return median_ratio(decode, first.decode);
}

std::vector<ComparedModel> compare_models(std::span<Engine *const> engines, const CompareOptions &options,
                                          const StopRequest &stop,
                                          const std::function<void(const std::string &)> &show) {
    std::vector<ComparedModel> results(engines.size());
    {
        std::vector<std::unique_ptr<Turns>> turns;
        for (size_t i = 0; i < engines.size(); ++i) {
            results[i].weight_bytes =
                static_cast<double>(engines[i]->model().program.weight_bytes_per_token());
            turns.push_back(std::make_unique<Turns>(*engines[i], stop));
        }
        for (int32_t turn = 0; turn < options.turns; ++turn)
            for (size_t i = 0; i < engines.size(); ++i) {
                show("turn " + std::to_string(turn + 1) + ", model " + std::to_string(i + 1));
                turns[i]->run(options, results[i]);
            }
    }
    if (!options.text.empty()) compare_quality(engines, options, stop, show, results);
    return results;
}

}  // namespace runnel::measure
