#include "engine/measure/choice_score.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/decode/engine.h"
#include "engine/decode/error.h"
#include "tests/support/data.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"
#include "tests/support/toy_backend.h"

using namespace runnel::measure;
using namespace runnel::testing;
using runnel::decode::DecodeError, runnel::decode::Executor;
using runnel::text::TokenId;
namespace decode = runnel::decode;
namespace gguf = runnel::gguf;

namespace {

constexpr const char *kFolder = "tests/data/choice/";
constexpr int32_t kVocab = 50;

double log_probability(const std::vector<TokenId> &before, TokenId next) {
    double sum = 0;
    for (int32_t id = 0; id < kVocab; ++id) sum += std::exp(double{toy_logit(hash_tokens(before), id)});
    return double{toy_logit(hash_tokens(before), next)} - std::log(sum);
}

std::vector<TokenId> random_tokens(std::mt19937 &rng, size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId &id : tokens) id = static_cast<TokenId>(rng() % kVocab);
    return tokens;
}

TokenizedTask random_task(std::mt19937 &rng, size_t most_answers) {
    TokenizedTask task{.answers = {}, .shared = 1 + rng() % 12};
    const std::vector<TokenId> beginning = random_tokens(rng, task.shared);
    for (size_t a = 1 + rng() % most_answers; a > 0; --a) {
        std::vector<TokenId> tokens = beginning;
        for (const TokenId id : random_tokens(rng, 1 + rng() % 9)) tokens.push_back(id);
        const size_t first = task.shared + rng() % (tokens.size() - task.shared);
        const size_t last = first + 1 + rng() % (tokens.size() - first);
        task.answers.push_back({std::move(tokens), first, last, rng() % 2 == 0});
    }
    return task;
}

// The tasks of a file with the demo model.
struct Scored {
    std::string right;                        // '1' for each task solved
    std::vector<std::vector<double>> scores;  // per task and answer
};

Scored score_file(ChoiceFormat format, const char *name, size_t count) {
    decode::EngineOptions options;
    options.model = demo_model();
    options.threads = 2;
    options.context = 512;
    options.sequences = 12;
    decode::Engine engine(options);
    std::vector<TokenizedTask> tasks;
    for (const ChoiceTask &task :
         draw_tasks(format, read_choice_tasks(format, read_file(std::string(kFolder) + name)), count))
        tasks.push_back(tokenize(task, format, engine.tokenizer()));
    ChoiceRun run(engine.executor(), tasks, 12);
    Scored scored;
    while (!run.is_finished()) {
        const int64_t before = run.result().right;
        REQUIRE(run.step());
        int64_t solved = 0;
        for (const std::vector<double> &scores : run.last_scores()) {
            const auto best = std::ranges::max_element(scores) - scores.begin();
            scored.right +=
                tasks[scored.scores.size()].answers[static_cast<size_t>(best)].is_right ? '1' : '0';
            solved += scored.right.back() == '1';
            scored.scores.push_back(scores);
        }
        CHECK(run.result().right == before + solved);
    }
    return scored;
}

}  // namespace

TEST_CASE(
    "choice score: the mean log-probability of the scored tokens, whatever the batch and the sequences") {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        CAPTURE(seed);
        std::mt19937 rng(seed);
        std::vector<TokenizedTask> tasks(1 + rng() % 9);
        for (TokenizedTask &task : tasks) task = random_task(rng, 5);
        for (const int32_t sequences : {6, 13, 64})
            for (const int32_t batch : {1, 7, 64}) {
                CAPTURE(sequences);
                CAPTURE(batch);
                Executor executor(std::make_unique<ToyBackend>(), toy_program(kVocab, seed % 3 == 0),
                                  {.context = 32, .batch = batch, .sequences = sequences});
                ChoiceRun run(executor, tasks, static_cast<size_t>(sequences));
                size_t next = 0;
                int64_t right = 0;
                double chances = 0;
                while (!run.is_finished()) {
                    REQUIRE(run.step());
                    for (const std::vector<double> &scores : run.last_scores()) {
                        const TokenizedTask &task = tasks[next++];
                        size_t best = 0, rights = 0;
                        std::vector<double> expected;
                        for (const auto &answer : task.answers) {
                            double sum = 0;
                            for (size_t t = answer.first; t < answer.last; ++t)
                                sum += log_probability(
                                    {answer.tokens.begin(), answer.tokens.begin() + static_cast<long>(t)},
                                    answer.tokens[t]);
                            expected.push_back(sum / static_cast<double>(answer.last - answer.first));
                            if (expected.back() > expected[best]) best = expected.size() - 1;
                            rights += answer.is_right;
                        }
                        REQUIRE(scores.size() == expected.size());
                        for (size_t a = 0; a < scores.size(); ++a)
                            CHECK(scores[a] == doctest::Approx(expected[a]).epsilon(1e-9));
                        right += task.answers[best].is_right;
                        chances += static_cast<double>(rights) / static_cast<double>(task.answers.size());
                    }
                }
                CHECK(next == tasks.size());
                CHECK(run.result().tasks == static_cast<int64_t>(tasks.size()));
                CHECK(run.result().right == right);
                CHECK(run.result().chance == doctest::Approx(chances / static_cast<double>(tasks.size())));
            }
    }
}

TEST_CASE("choice score: the scored tokens of each format") {
    const gguf::File file = gguf::File::open(demo_model());
    const auto tokenizer = runnel::text::Tokenizer::load(file);
    const auto count = [&](const std::string &text) { return tokenizer.encode(text).size(); };

    const ChoiceTask endings{
        {{"The old man sat down.", 21, false}, {"The old man stood up again.", 27, true}}};
    const TokenizedTask plain = tokenize(endings, ChoiceFormat::HellaSwag, tokenizer);
    size_t differ = 0;
    while (plain.answers[0].tokens[differ] == plain.answers[1].tokens[differ]) ++differ;
    CHECK(differ > 1);
    CHECK(plain.shared == differ);
    for (const auto &answer : plain.answers) {
        CHECK(answer.first == differ);
        CHECK(answer.last == answer.tokens.size());
    }
    CHECK(plain.answers[1].is_right);
    CHECK(plain.longest() == count("The old man stood up again."));

    // After the word, without the last token; from the word on if few tokens follow.
    const std::string head = "The fox saw the bear, and";
    const auto gap = [&](const std::string &tail) {
        ChoiceTask task;
        for (const std::string word : {" Tom", " Ann"})
            task.answers.push_back({head + word + tail, (head + word).size(), false});
        return tokenize(task, ChoiceFormat::Winogrande, tokenizer);
    };
    const TokenizedTask longer = gap(" ran away from the big tree.");
    CHECK(longer.answers[0].first == count(head + " Tom"));
    CHECK(longer.answers[1].first == count(head + " Ann"));
    CHECK(longer.answers[0].last == longer.answers[0].tokens.size() - 1);
    const TokenizedTask shorter = gap(".");
    CHECK(shorter.answers[0].first == shorter.shared);
    CHECK(shorter.answers[0].last == shorter.answers[0].tokens.size() - 1);

    // One text is the beginning of the other, or they are the same.
    const ChoiceTask nested{{{"Once upon a time", 16, true}, {"Once upon a time there was", 26, false}}};
    const TokenizedTask n = tokenize(nested, ChoiceFormat::HellaSwag, tokenizer);
    CHECK(n.answers[0].first == n.answers[0].tokens.size() - 1);
    const ChoiceTask twice{{{"Once upon", 9, true}, {"Once upon", 9, false}}};
    const TokenizedTask same = tokenize(twice, ChoiceFormat::Questions, tokenizer);
    CHECK(same.shared < same.answers[0].tokens.size());
    CHECK(same.answers[0].first == same.answers[1].first);
}

TEST_CASE("choice score: tasks, order and answers are those of llama-perplexity") {
    const auto expected = nlohmann::json::parse(read_file(std::string(kFolder) + "expected.json"));
    for (const auto &[count, right] : expected["hellaswag"].items())
        CHECK(score_file(ChoiceFormat::HellaSwag, "hellaswag.txt", std::stoul(count)).right ==
              right.get<std::string>());
    for (const auto &[count, right] : expected["questions"].items())
        CHECK(score_file(ChoiceFormat::Questions, "questions.bin", std::stoul(count)).right ==
              right.get<std::string>());
    const auto &pairs = expected["winogrande"]["0"];
    const Scored scored = score_file(ChoiceFormat::Winogrande, "winogrande.csv", 0);
    REQUIRE(scored.scores.size() == pairs.size());
    double differences = 0;  // Q8_0 weights: the programs round activations differently
    for (size_t i = 0; i < pairs.size(); ++i)
        for (size_t a = 0; a < 2; ++a) {
            const double difference = std::abs(scored.scores[i][a] - pairs[i][a].get<double>());
            CHECK(difference < 0.1);
            differences += difference;
        }
    CHECK(differences / static_cast<double>(2 * pairs.size()) < 0.02);
}

TEST_CASE("choice score: Wilson's interval") {
    // 36 of 100, as llama-perplexity prints it; none; all.
    const auto [low, high] = ChoiceScore{.tasks = 100, .right = 36}.interval();
    CHECK(low == doctest::Approx(0.272712).epsilon(1e-5));
    CHECK(high == doctest::Approx(0.457646).epsilon(1e-5));
    CHECK(ChoiceScore{.tasks = 10, .right = 0}.interval().first == 0);
    CHECK(ChoiceScore{.tasks = 10, .right = 10}.interval().second == doctest::Approx(1));
    CHECK(ChoiceScore{}.interval() == std::pair(0.0, 1.0));
}

TEST_CASE("choice tasks: quoted fields, line ends, and every damage is an error with its place") {
    const auto read = [](ChoiceFormat format, const std::string &bytes) {
        return read_choice_tasks(format, bytes);
    };
    const auto csv = read(ChoiceFormat::Winogrande, "1,\"Yes, \"\"_\"\" won.\",A b,C,2\r\n2,_ x,d,e,1");
    REQUIRE(csv.size() == 2);
    CHECK(csv[0].answers[0].text == "Yes, \"A b\" won.");
    CHECK(csv[0].answers[0].answer_end == 9);
    CHECK(csv[0].answers[1].is_right);
    CHECK(csv[1].answers[0].text == "d x");
    CHECK(csv[1].answers[0].is_right);
    const auto lines = read(ChoiceFormat::HellaSwag, "a\n3\nb\nc\nd\ne\n");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].answers[3].text == "a e");
    CHECK(lines[0].answers[3].is_right);

    const auto fails = [&](ChoiceFormat format, const std::string &bytes, const char *message) {
        CAPTURE(bytes);
        CHECK_THROWS_WITH_AS(read(format, bytes), doctest::Contains(message), DecodeError);
    };
    fails(ChoiceFormat::HellaSwag, "", "no tasks");
    fails(ChoiceFormat::HellaSwag, "a\n3\nb\nc\nd\n", "has 5 lines");
    fails(ChoiceFormat::HellaSwag, "a\n4\nb\nc\nd\ne\n", "line 2");
    fails(ChoiceFormat::Winogrande, "1,x _ y,a,b,1\n2,x _ y,a,b", "line 2");
    fails(ChoiceFormat::Winogrande, "1,x y,a,b,1", "line 1: the sentence has no gap");
    fails(ChoiceFormat::Winogrande, "1,x _ y,a,b,3", "1 or 2");
    fails(ChoiceFormat::Winogrande, "1,\"x _ y,a,b,1", "does not end");
    fails(ChoiceFormat::Questions, "abc", "truncated");

    // Every prefix of a good file, and the file with any byte changed, is read or refused.
    const std::string good = read_file(std::string(kFolder) + "questions.bin");
    for (size_t size = 0; size < good.size(); size += 1 + size / 50)
        CHECK_THROWS_AS(read(ChoiceFormat::Questions, good.substr(0, size)), DecodeError);
    std::mt19937 rng(11);
    for (int i = 0; i < 2000; ++i) {
        std::string damaged = good;
        damaged[rng() % (i % 2 ? damaged.size() : 600)] = static_cast<char>(rng());
        try {
            for (const ChoiceTask &task : read(ChoiceFormat::Questions, damaged))
                CHECK(!task.answers.empty());
        } catch (const DecodeError &error) {
            CHECK(error.kind == DecodeError::Kind::BadInput);
        }
    }
}
