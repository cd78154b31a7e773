// --draft-model with a Gemma 4 assistant or a DFlash drafter, from outside.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "tests/engine/commands/commands_here.h"
#include "tests/engine/commands/program_support.h"
#include "tests/simt/simt.h"
#include "tests/support/assistant_pair.h"
#include "tests/support/data.h"
#include "tests/support/dflash_pair.h"
#include "tests/support/process.h"

using namespace runnel;
using namespace runnel::commands;
using namespace runnel::testing;
using nlohmann::json;

namespace {

Result run_heads(std::vector<std::string> arguments, const std::string &input = "") {
    Process process;
    process.arguments = std::move(arguments);
    process.input = input;
    return execute(process);
}

Result run_with(const std::filesystem::path &model, const std::vector<std::string> &more) {
    std::vector<std::string> all = {"run", model.string(), "--raw",  "-p", "a b c d", "--ignore-eos",
                                    "-n",  "60",           "--seed", "3",  "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return run_heads(std::move(all));
}

void refused(const Result &result, int code, const std::string &why) {
    INFO(result.err);
    CHECK(result.code == code);
    CHECK(result.err.find(why) != std::string::npos);
    CHECK(std::ranges::count(result.err, '\n') == 1);
    CHECK(result.out == "");
}

// A model and a head for it.
struct Files {
    std::string name, model, head, type;  // type: an accepted --spec-type, or the source's name
};

template <class Pair>
Files files_of(Pair &pair, const std::string &name, const std::string &type) {
    (void)pair.file();
    return {name, pair.target_path().string(), pair.path().string(), type};
}

}  // namespace

TEST_CASE("--draft-model with an assistant or a drafter: the text is the same with and without") {
    if (absent()) return;
    AssistantPair assistant("gemma4"), mixture("gemma4-26b");
    DFlashPair drafter({.rows = 150, .block = 6}), hybrid({.block = 8, .window = 16}, "qwen35");
    for (const Files &files :
         {files_of(assistant, "assistant", "draft-mtp"), files_of(mixture, "assistant", "draft-mtp"),
          files_of(drafter, "dflash", "draft-dflash"), files_of(hybrid, "dflash", "draft-dflash")})
        for (const char *temperature : {"0", "0.9"}) {
            CAPTURE(files.name);
            CAPTURE(std::string(temperature));
            const auto with = [&](std::vector<std::string> more) {
                more.insert(more.end(), {"--temp", temperature});
                return run_with(files.model, more);
            };
            const Result off = with({}), on = with({"--draft-model", files.head, "--draft-min", "1"}),
                         foreign = with({"-md", files.head, "--spec-type", files.type});
            CHECK(answer_of(on) == answer_of(off));
            CHECK(answer_of(foreign) == answer_of(off));
            for (const Result *result : {&on, &foreign})
                CHECK(json::parse(result->out).at("speculation").at("sources") == files.name);
            CHECK(with({"-md", files.head, "--spec-verify"}).code == 0);
            CHECK(answer_of(with({"-md", files.head, "-b", "3"})) == answer_of(off));
            CHECK(answer_of(with({"-md", files.head, "--lookup"})) == answer_of(off));
        }
}

TEST_CASE("--draft-model with an assistant or a drafter: batch and chat give the same texts") {
    if (absent()) return;
    AssistantPair assistant("gemma4");
    DFlashPair drafter({.block = 6}, "qwen35");
    for (const Files &files : {files_of(assistant, "assistant", ""), files_of(drafter, "dflash", "")}) {
        CAPTURE(files.name);
        const auto text = [&](std::vector<std::string> arguments, const std::string &input, bool drafts) {
            if (drafts) arguments.insert(arguments.end(), {"-md", files.head});
            const Result result = run_heads(std::move(arguments), input);
            REQUIRE_MESSAGE(result.code == 0, result.err);
            return result.out;
        };
        const std::string rows = "one two\nthree\none two three four\n\nfive\n";
        const std::vector<std::string> batch = {"batch", files.model,  "--lines", "--raw", "--ignore-eos",
                                                "-n",    "30",         "--temp",  "0.7",   "--seed",
                                                "9",     "--parallel", "3"};
        CHECK(text(batch, rows, true) == text(batch, rows, false));
        const std::vector<std::string> chat = {"chat",   files.model, "--ignore-eos", "-n", "30",
                                               "--temp", "0",         "--plain"};
        const std::string turns = "hello there\n/undo\nagain\nmore\n";
        CHECK(text(chat, turns, true) == text(chat, turns, false));
    }
}

TEST_CASE("--draft-model with an assistant or a drafter: what does not fit is refused in one line") {
    if (absent()) return;
    AssistantPair assistant("gemma4"), other_heads("gemma4", {.width = 20});
    DFlashPair drafter({.block = 6});
    const Files a = files_of(assistant, "", ""), d = files_of(drafter, "", "");
    refused(run_with(a.head, {}), 3,
            "a Gemma 4 assistant, which drafts for another model and cannot run alone");
    refused(run_with(d.head, {}), 3, "a DFlash drafter, which drafts for another model and cannot run alone");
    refused(run_with(d.model, {"-md", a.head}), 3,
            "a Gemma 4 assistant drafts for models of the architecture gemma4; the target is llama");
    refused(run_with(a.model, {"-md", a.head, "--window", "64"}), 2,
            "a Gemma 4 assistant does not work with --window");
    refused(run_with(d.model, {"-md", d.head, "--window", "64"}), 2,
            "a DFlash drafter does not work with --window");
    refused(run_with(d.model, {"-md", d.head, "--mtp", "on"}), 2, "choose one");
    refused(run_with(d.model, {"-md", a.head, "--spec-type", "draft-dflash"}), 2,
            "--spec-type draft-dflash needs --draft-model FILE with a DFlash drafter");
    ModelShape wide;
    const TemporaryModel larger(wide);
    refused(run_with(larger.path, {"-md", d.head}), 3,
            "dflash.embedding_length: 32, but the target (llama) has 64 as embedding_length");
    other_heads.assistant.kv_heads[0] = 1;
    refused(run_with(a.model, {"-md", files_of(other_heads, "", "").head}), 3,
            "layer 0, with a window, has 1 K/V heads, but the target's last layer of this kind has 2");
    for (const auto &[tensor, why] : {std::pair("markov_w1.weight", "a DSpark drafter"),
                                      {"selector_hidden.weight", "a DFlash2 drafter"}}) {
        DFlashPair variant({.block = 6});
        variant.drafter.add(tensor, {32, 4}, 0, 1);
        refused(run_with(variant.target_path(), {"-md", files_of(variant, "", "").head}), 3, why);
    }
    DFlashPair masked({.mask = 4000});
    refused(run_with(masked.target_path(), {"-md", files_of(masked, "", "").head}), 3,
            "key tokenizer.ggml.mask_token_id: not a token of the target");
    DFlashPair deep({.taps = {0, 9}});
    refused(run_with(deep.target_path(), {"-md", files_of(deep, "", "").head}), 3,
            "dflash.target_layers: holds 9, but the target (llama) has 4 layers");
}

TEST_CASE("inspect: describes an assistant and a drafter") {
    if (absent()) return;
    AssistantPair assistant("gemma4");
    DFlashPair drafter({.rows = 150, .taps = {0, 2, 4}});
    const Files a = files_of(assistant, "", ""), d = files_of(drafter, "", "");
    const auto text = [](const std::string &file) { return run_heads({"inspect", file}).out; };
    const auto head = [](const std::string &file) {
        return json::parse(run_heads({"inspect", file, "--json"}).out).at("draft_head");
    };
    CHECK(text(a.head).find("Gemma 4 assistant, for a model of width 32; reads the model's cache\n") !=
          std::string::npos);
    CHECK(text(d.head).find("DFlash, for a model of width 32; reads its layers 0, 2, 4; drafts 150 of its "
                            "tokens\n") != std::string::npos);
    CHECK(head(a.head).at("kind") == "gemma4-assistant");
    CHECK(
        head(d.head) ==
        json{{"kind", "dflash"}, {"target_width", 32}, {"target_layers", {0, 2, 4}}, {"draft_tokens", 150}});
}

TEST_CASE(
    "--draft-model with an assistant or a drafter: on an (emulated) GPU the text is the same, with a drafter "
    "also on two, which an assistant refuses") {
    Emulated emulated;
    emulated->devices = 2;
    emulated->peers = false;
    AssistantPair assistant("gemma4");
    DFlashPair drafter({.block = 4});
    for (const Files &files : {files_of(assistant, "a Gemma 4 assistant", "assistant"),
                               files_of(drafter, "a DFlash drafter", "dflash")}) {
        CAPTURE(files.name);
        RunOptions options;
        options.model.path = files.model;
        options.model.device = "cuda:0", options.model.context = 96, options.model.threads = 1;
        options.prompt = "a b c", options.raw = true, options.json = true;
        options.generation.predict = 16, options.generation.sampling.temperature = 0;
        options.generation.ignore_eos = true;
        const Outcome off = run_here(options);
        options.draft.model = files.head, options.draft.branches = 1;
        const Outcome on = run_here(options);
        CHECK(answer_of(on) == answer_of(off));
        CHECK(json::parse(on.out).at("speculation").at("sources") == files.type);
        options.model.device = "auto", options.model.tensor_split = {1, 1};
        const bool runs_on_two = files.type == "dflash";
        const auto check_on_two = [&](const std::string &refusal) {
            const Outcome on_two = run_here(options);
            if (!runs_on_two) {
                CHECK(on_two.error.find("--draft-model: " + files.name + refusal) == 0);
                return;
            }
            CHECK(answer_of(on_two) == answer_of(off));
            CHECK(json::parse(on_two.out).at("speculation").at("sources") == files.type);
        };
        check_on_two(" needs all layers on one device");
        options.model.tensor_split = {};
        for (const auto &[split, option] : {std::pair(decode::Split::Tensor, "--split tensor"),
                                            {decode::Split::Context, "--split context"}}) {
            options.model.split = split;
            check_on_two(std::string(" needs the whole model on one device: leave out ") + option);
        }
    }
}
