#include "engine/measure/batching.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <variant>

#include "engine/completion/queue.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

using base::Clock, base::seconds_since;
using text::TokenId;

std::mt19937 prompt_seed(const BatchingLoad &load) {
    std::seed_seq seed{static_cast<uint32_t>(load.seed), static_cast<uint32_t>(load.seed >> 32),
                       load.prompts};
    return std::mt19937(seed);
}

// The requests of one test, from their arrivals to their times.
class LoadTest {
  public:
    LoadTest(decode::Engine &engine, const BatchingLoad &load, const decode::StopRequest &stop)
        : engine_(engine),
          stop_(stop),
          queue_(engine.executor(), completion::vocabulary_of(engine.tokenizer()),
                 {.parallel = load.parallel}),
          due_(arrivals(load.requests, load.rate, load.seed)),
          random_(prompt_seed(load)) {
        row_.load = load;
    }

    BatchingRow run(const std::function<void(int32_t)> &show) {
        start_ = Clock::now();
        while (static_cast<int32_t>(row_.requests.size()) < row_.load.requests) {
            if (stop_.requested()) throw base::Interrupted{};
            submit_arrived();
            if (queue_.unfinished() == 0)
                wait();
            else
                step();
            if (show) show(static_cast<int32_t>(row_.requests.size()));
        }
        row_.steps = queue_.schedule().steps;
        row_.sequences = queue_.schedule().sequences;
        row_.preemptions = queue_.schedule().preemptions;
        return std::move(row_);
    }

  private:
    bool arrived() const {
        if (submitted_ == due_.size()) return false;
        if (row_.load.rate > 0) return due_[submitted_] <= seconds_since(start_);
        return queue_.unfinished() < static_cast<size_t>(row_.load.parallel);
    }
    void submit_arrived() {
        while (arrived()) {
            std::vector<TokenId> prompt(static_cast<size_t>(row_.load.prompt));
            const auto vocab = static_cast<uint32_t>(engine_.model().hyper.vocab);
            for (TokenId &id : prompt) id = static_cast<TokenId>(random_() % vocab);
            decode::SamplingOptions how;
            how.temperature = 0;
            const completion::Request request{
                .input = completion::Tokens{std::move(prompt)},
                .sampling = engine_.sampler(how).options(),  // excludes ids without a token
                .limits = {.max_tokens = row_.load.generate, .ignore_end = true}};
            const double now = seconds_since(start_);
            open_[queue_.submit(request)] = {row_.load.rate > 0 ? due_[submitted_] : now, now};
            ++submitted_;
        }
    }
    // Nothing to compute before the next request arrives.
    void wait() {
        const double left = due_[submitted_] - seconds_since(start_);
        std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(left, 0.0, 0.02)));
    }
    void step() {
        if (!queue_.step(&stop_)) throw base::Interrupted{};
        for (const completion::Event &event : queue_.events())
            if (const auto *done = std::get_if<completion::Done>(&event)) take(*done);
    }
    void take(const completion::Done &done) {
        completion::expect_answer(done);
        const auto found = open_.find(done.id);
        const Open &open = found->second;
        const double late = open.submitted - open.arrival;
        RequestTimes times{open.arrival, late + done.timings.queued_seconds,
                           late + done.timings.first_token_seconds};
        times.between.assign(done.timings.token_seconds.begin(), done.timings.token_seconds.end());
        row_.seconds = std::max(row_.seconds, times.end());
        row_.requests.push_back(std::move(times));
        open_.erase(found);
    }

    struct Open {
        double arrival = 0, submitted = 0;  // it is submitted after the pass during which it arrived
    };
    decode::Engine &engine_;
    const decode::StopRequest &stop_;
    completion::CompletionQueue queue_;
    const std::vector<double> due_;
    std::mt19937 random_;
    BatchingRow row_;
    Clock::time_point start_;
    size_t submitted_ = 0;
    std::map<completion::RequestId, Open> open_;
};

}  // namespace

double RequestTimes::end() const {
    return arrival + first_token + std::accumulate(between.begin(), between.end(), 0.0);
}

double BatchingRow::requests_per_second() const {
    return seconds > 0 ? static_cast<double>(requests.size()) / seconds : 0;
}

double BatchingRow::tokens_per_second() const {
    size_t tokens = 0;
    for (const RequestTimes &request : requests) tokens += 1 + request.between.size();
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

double BatchingRow::sequences_per_step() const {
    return steps > 0 ? static_cast<double>(sequences) / static_cast<double>(steps) : 0;
}

std::vector<double> BatchingRow::waits() const {
    std::vector<double> all;
    for (const RequestTimes &request : requests) all.push_back(request.wait);
    return all;
}

std::vector<double> BatchingRow::first_tokens() const {
    std::vector<double> all;
    for (const RequestTimes &request : requests) all.push_back(request.first_token);
    return all;
}

std::vector<double> BatchingRow::token_times() const {
    std::vector<double> all;
    for (const RequestTimes &request : requests)
        all.insert(all.end(), request.between.begin(), request.between.end());
    return all;
}

std::vector<double> arrivals(int32_t requests, double rate, uint64_t seed) {
    // (Not std::exponential_distribution, whose results depend on the library.)
    std::mt19937_64 random(seed);
    std::vector<double> times;
    for (double at = 0; static_cast<int32_t>(times.size()) < requests;) {
        times.push_back(rate > 0 ? at / rate : 0);
        const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
        at -= std::log1p(-uniform);
    }
    return times;
}

BatchingRow measure_batching(decode::Engine &engine, const BatchingLoad &load,
                             const decode::StopRequest &stop, const std::function<void(int32_t)> &show) {
    return LoadTest(engine, load, stop).run(show);
}

}  // namespace runnel::measure
