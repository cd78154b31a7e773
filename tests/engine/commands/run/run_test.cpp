// `runnel run`, run as a program: streams, prompts, and how it ends. Needs $RUNNEL.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf/writer.h"
#include "tests/engine/commands/program_support.h"
#include "tests/support/data.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

// The tiny model with a chat template.
void write_with_template(const std::filesystem::path &path, std::string_view chat_template) {
    runnel::gguf::Writer writer;
    for (const auto &[key, value] : tiny().file.metadata()) writer.add(key, value);
    writer.add("tokenizer.chat_template", chat_template);
    for (const auto &t : tiny().file.tensors()) writer.add_tensor(t.name, t.type, std::span(t.shape, t.rank));
    writer.start(path);
    for (const auto &t : tiny().file.tensors()) writer.write({t.data, t.bytes});
    writer.finish();
}

}  // namespace

TEST_CASE("run: the small model gives its known continuations") {
    if (absent()) return;
    if (!has_shared_data("models/expected.json")) {
        skip("no " + (shared_data() / "models").string());
        return;
    }
    const std::string model = (shared_data() / "models/stories260K.gguf").string();
    const json expected = json::parse(read_file(shared_data() / "models/expected.json"));
    for (const json &c : expected["continuations"]) {
        const std::string prompt = c["prompt"];
        CAPTURE(prompt);
        Result r =
            runnel_with({"run", model, prompt, "-n", std::to_string(c["n"].get<int>()), "--temp", "0"});
        CHECK(r.code == 0);
        CHECK(r.err == "");
        while (!r.out.empty() && std::isspace(static_cast<unsigned char>(r.out.back()))) r.out.pop_back();
        CHECK(r.out == c["text"].get<std::string>());
    }
    for (const json &p : expected["perplexity"]) {
        CAPTURE(p.dump());
        const Result r = runnel_with({"perplexity", model, "-f",
                                      (shared_data() / "models" / p["text"].get<std::string>()).string(),
                                      "-c", std::to_string(p["ctx"].get<int>()), "--chunks",
                                      std::to_string(p["chunks"].get<int>()), "--json", "-q"});
        REQUIRE(r.code == 0);
        CHECK(r.err == "");
        CHECK(json::parse(r.out)["perplexity"].get<double>() ==
              doctest::Approx(p["value"].get<double>()).epsilon(0.001));
    }
}

TEST_CASE("run: stdout carries the text alone, the same for the same seed") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const Result a = runnel_with({"run", model, "ab", "-n", "30", "-s", "5"});
    CHECK(a.code == 0);
    CHECK(a.err == "");
    CHECK(a.out != "");
    CHECK(runnel_with({"run", "-m", model, "ab", "--predict", "30", "--seed", "5", "-t", "1", "-ub", "7"})
              .out == a.out);
    CHECK(runnel_with({"run", model, "-p", "ab", "-n30", "-s", "6"}).out != a.out);
    CHECK(runnel_with({"run", model, "ab", "-n", "30", "-s", "5", "--echo"}).out == "ab" + a.out);
    const Result stats = runnel_with({"run", model, "ab", "-n", "30", "-s", "5", "--stats"});
    CHECK(stats.out == a.out);
    CHECK(stats.err.find("seed 5") != std::string::npos);
    CHECK(runnel_with({"run", model, "ab", "-n", "30", "-s", "5", "--stats", "-q"}).err == "");
    CHECK(runnel_with({"run", model, "ab", "-n", "0"}).out == "");
}

TEST_CASE("run: with both streams in one file, statistics begin on a line of their own") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const std::string command =
        shell_word(*program_under_test()) + " run " + shell_word(model) + " ab -n 30 -s 5";
    const TemporaryDirectory folder;
    const auto both = [&](const std::string &more) {
        REQUIRE(std::system((command + more + " >" + shell_word(folder / "text") + " 2>&1").c_str()) == 0);
        const auto bytes = read_bytes(folder / "text");
        return std::string(reinterpret_cast<const char *>(bytes.data()), bytes.size());
    };
    const std::string alone = both(""), with_stats = both(" --stats");
    CHECK(alone == runnel_with({"run", model, "ab", "-n", "30", "-s", "5"}).out);
    REQUIRE(!alone.ends_with('\n'));
    CHECK(with_stats.starts_with(alone + "\n"));
    CHECK(!with_stats.substr(alone.size() + 1).starts_with('\n'));
}

TEST_CASE("run: --json prints one object with text, tokens and timings") {
    if (absent()) return;
    const Result r =
        runnel_with({"run", tiny().path.string(), "ab", "-n", "12", "-s", "5", "--json", "--ignore-eos"});
    REQUIRE(r.code == 0);
    const json j = json::parse(r.out);
    CHECK(j["tokens"].size() == 12);
    CHECK(j["completion_tokens"] == 12);
    CHECK(j["prompt_tokens"].get<int>() > 0);
    CHECK(j["finish_reason"] == "length");
    for (const char *key : {"load_ms", "ttft_ms", "prefill_tps", "decode_tps"})
        CHECK(j["timings"][key].get<double>() > 0);
    CHECK(j["text"] ==
          runnel_with({"run", tiny().path.string(), "ab", "-n", "12", "-s", "5", "--ignore-eos"}).out);
}

TEST_CASE("run: the prompt comes from the argument, a file or standard input") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), file = (directory / "prompt.txt").string();
    write_file(file, std::as_bytes(std::span(std::string_view("one\n"))));
    const auto echo = [&](std::vector<std::string> more, std::optional<std::string> input = {}) {
        std::vector<std::string> arguments = {"run", model, "-n", "0", "--echo"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Result r = runnel_with(arguments, input);
        CHECK(r.code == 0);
        return r.out;
    };
    CHECK(echo({"arg"}) == "arg");
    CHECK(echo({}, "piped\n") == "piped");
    CHECK(echo({"arg"}, "piped\nin\n") == "arg\n\npiped\nin");
    CHECK(echo({"arg"}, "") == "arg");
    CHECK(echo({"-f", file}, "ignored") == "one");
    CHECK(echo({"-f", "-"}, "piped") == "piped");
    CHECK(echo({"arg", "-f", file}) == "arg\n\none");
    CHECK(echo({"--", "-dash"}) == "-dash");
    CHECK(echo({"[a, b]"}) == "[a, b]");
    CHECK(echo({"inspect"}) == "inspect");
}

TEST_CASE("run: the prompt is a turn of the chat template, unless --raw") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = (directory / "chat.gguf").string();
    const auto tokens_of = [&](const std::string &text) {
        return json::parse(runnel_with({"tokenize", model, "--ids", text}).out).size();
    };
    const auto prompt_tokens = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"run", model, "hi", "-n", "1", "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Result r = runnel_with(arguments);
        REQUIRE(r.code == 0);
        return json::parse(r.out)["prompt_tokens"].get<size_t>();
    };
    write_with_template(directory / "chat.gguf",
                        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                        "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}");
    const std::string turn = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    CHECK(prompt_tokens({}) == tokens_of(turn));
    CHECK(prompt_tokens({"-sys", "be kind"}) == tokens_of("<|im_start|>system\nbe kind<|im_end|>\n" + turn));
    CHECK(prompt_tokens({"--raw"}) == tokens_of("hi"));
    CHECK(runnel_with({"run", model, "hi", "--raw", "--system", "x"}).code == 2);

    write_with_template(directory / "chat.gguf", "{{ something unheard of }}");
    const Result unknown = runnel_with({"run", model, "hi", "-n", "1"});
    CHECK(unknown.code == 0);
    CHECK(unknown.err.find("falling back to plain text") != std::string::npos);
}

TEST_CASE("run: stop strings, a deadline and the end of the context end the answer") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const std::vector<std::string> base = {"run", model, "ab", "-n", "60", "-s", "3", "--ignore-eos"};
    const std::string all = runnel_with(base).out;
    REQUIRE(all.size() > 20);
    size_t at = 5;  // of a few characters that tokenizers may split in different ways
    while (at + 2 < all.size() && !(isalnum(static_cast<unsigned char>(all[at])) &&
                                    isalnum(static_cast<unsigned char>(all[at + 1]))))
        ++at;
    const std::string stop = all.substr(at, 2);
    auto with = base;
    with.insert(with.end(), {"--stop", stop, "-r", "never to be seen"});
    CHECK(runnel_with(with).out == all.substr(0, all.find(stop)));

    const Result full = runnel_with({"run", model, "ab", "-c", "20", "--ignore-eos"});
    CHECK(full.code == 0);
    CHECK(full.err.find("the context of 20 tokens is full") != std::string::npos);
    // A deadline that passes while the prompt is still being read does not count as an interrupt.
    for (const bool piped : {false, true}) {
        CAPTURE(piped);
        const std::vector<std::string> words = {"run",        model, piped ? "--echo" : "ab",
                                                "--deadline", "0",   "--json"};
        const Result late = runnel_with(words, piped ? std::optional("ab") : std::nullopt);
        REQUIRE(late.code == 0);
        CHECK(json::parse(late.out)["finish_reason"] == "deadline");
        CHECK(json::parse(late.out)["completion_tokens"] == 0);
    }
}

TEST_CASE("an interrupt ends with 130, and what was generated is written") {
    if (absent()) return;
    ModelShape shape;
    shape.context = 100000;
    const TemporaryModel endless(shape);
    const std::vector<std::string> words = {"run", endless.path.string(), "ab", "--ignore-eos", "-s", "1"};
    Process p = process(words);
    bool sent = false;
    p.watch = [&sent](const std::string &out, int pid) {
        if (out.size() > 50 && !sent) kill(pid, SIGINT), sent = true;
    };
    const Result interrupted = execute(p);
    CHECK(interrupted.err == "");
    CHECK(interrupted.code == 130);
    CHECK(interrupted.out.size() > 50);
    // Reaching a deadline is a regular end. It counts from the program's start, so the test searches for one
    // that leaves time for an answer.
    for (double seconds = 0.3;; seconds *= 2) {
        CAPTURE(seconds);
        Process late = process(words);
        late.arguments.insert(late.arguments.end(), {"--json", "--deadline", std::to_string(seconds)});
        const Result r = execute(late);
        REQUIRE(r.err == "");
        REQUIRE(r.code == 0);
        CHECK(json::parse(r.out)["finish_reason"] == "deadline");
        if (json::parse(r.out)["completion_tokens"].get<int>() > 0) break;
    }
}

TEST_CASE("a model file that is truncated while in use gives one line") {
    if (absent()) return;
    ModelShape shape;
    shape.context = 100000;
    const TemporaryModel endless(shape);
    Process p = process({"run", endless.path.string(), "ab", "--ignore-eos", "-s", "1"});
    bool cut = false;
    p.watch = [&](const std::string &out, int) {
        if (out.size() > 50 && !cut) cut = true, std::filesystem::resize_file(endless.path, 4096);
    };
    const Result r = execute(p);
    CHECK(cut);
    CHECK(r.code == 1);
    CHECK(r.err.starts_with("runnel: the model file can no longer be read"));
    CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
}
