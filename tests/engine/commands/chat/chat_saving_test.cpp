// `runnel chat`, run as a program: chats that go on later, and branches. Needs $RUNNEL.
#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct Chats {
    TemporaryDirectory directory;

    fs::path folder() const { return directory / "runnel/chats"; }

    Process process(Words options, const std::string &input) const {
        Process p{};
        p.stdout_limit = static_cast<size_t>(-1);
        p.arguments = {"chat", "--temp", "0.8", "-s", "7", "-n", "16", "-t", "1", "-q"};
        p.arguments.insert(p.arguments.end(), options.begin(), options.end());
        p.environment = {"XDG_STATE_HOME=" + directory.path().string(), "RUNNEL_NO_HISTORY="};
        p.input = input;
        return p;
    }
    Result run(Words options, const std::string &input) const {
        return execute(process(std::move(options), input));
    }
    // Runs a chat of this name with the demo model.
    Result talk(const std::string &name, const std::string &input) const {
        return run({demo_model().string(), "--chat", name}, input);
    }

    // The saved chats. A program that was killed at the wrong moment leaves an empty file.
    std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        if (!fs::exists(folder())) return found;
        for (const auto &entry : fs::directory_iterator(folder()))
            if (fs::file_size(entry.path()) > 0) found.push_back(entry.path());
        return found;
    }
    size_t count() const { return files().size(); }
};

// The answers in a chat's file, in the order of its lines; an incomplete line is left out.
Words answers_in(const fs::path &path) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    Words answers;
    for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
        const auto entry = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
        if (entry.is_object() && entry.value("role", "") == "assistant") answers.push_back(entry["content"]);
    }
    return answers;
}

std::string joined(const Words &lines, size_t from, size_t to) {
    std::string text;
    for (size_t i = from; i < to; ++i) text += lines[i] + "\n";
    return text;
}

// Each line gives one answer.
const Words kScript = {"Once there was a fox.",
                       "/regen",
                       "And the wolf?",
                       "What did the lion say?",
                       "/regen",
                       "/regen",
                       "The end?",
                       "A crow sat on a tree."};

}  // namespace

TEST_CASE("chat: a chat goes on later with the same text, by name, as the last one, and without MODEL") {
    if (absent()) return;
    const Chats chats;
    const std::string whole = chats.talk("whole", joined(kScript, 0, kScript.size())).out;
    std::string parts = chats.talk("parts", joined(kScript, 0, 2)).out;
    parts += chats.run({"--continue", demo_model().string()}, joined(kScript, 2, 5)).out;
    parts += chats.run({"-k"}, joined(kScript, 5, 7)).out;
    parts += chats.run({"--chat", "parts"}, joined(kScript, 7, 8)).out;
    CHECK(parts == whole);
    CHECK(chats.count() == 2);
    const Result list = chats.talk("1", "/chats\n/title renamed\n/title\n/open 2\n/tree\n/open 7\n");
    CAPTURE(list.err);
    CHECK(list.code == 5);
    CHECK(list.err.find("parts") < list.err.find("whole"));
    CHECK(list.err.find("renamed\n") != std::string::npos);
    CHECK(list.err.find("there is no chat '7'") != std::string::npos);
    CHECK(chats.run({demo_model().string(), "--chat", "9"}, "").code == 2);
}

TEST_CASE("chat: without a terminal only a chat with a name is saved, and none under RUNNEL_NO_HISTORY") {
    if (absent()) return;
    const Chats chats;
    const Words model = {demo_model().string()};
    CHECK(chats.run(model, "hello\n").code == 0);
    CHECK(chats.run({}, "hello\n").code == 2);      // no model
    CHECK(chats.run({"-k"}, "hello\n").code == 2);  // no saved chat names a model
    CHECK(chats.count() == 0);
    Process p = chats.process({model[0], "--chat", "secret"}, "hello\n");
    p.environment.emplace_back("RUNNEL_NO_HISTORY=1");
    CHECK(execute(p).code == 0);
    CHECK(chats.count() == 0);
    chats.talk("talk", "hello\n/set nohistory\nnot kept\n");
    REQUIRE(chats.count() == 1);
    CHECK(answers_in(chats.files().at(0)).size() == 1);
    chats.talk("talk", "/clear\nanother\n");
    CHECK(chats.count() == 2);
}

TEST_CASE(
    "chat: killed at any moment, it loses at most the unfinished answer and goes on with the same text") {
    if (absent()) return;
    const Chats reference;
    const std::string all = reference.talk("whole", joined(kScript, 0, kScript.size())).out;
    const Words answers = answers_in(reference.files().at(0));
    REQUIRE(answers.size() == kScript.size());
    const char *wanted = std::getenv("RUNNEL_KILLS");
    const int kills = wanted ? std::atoi(wanted) : 8;
    std::mt19937 random(5);
    int killed = 0;
    for (int i = 0; i < kills; ++i) {
        CAPTURE(i);
        const Chats chats;
        const size_t moment = random() % (all.size() + 1);
        CAPTURE(moment);
        Process p =
            chats.process({demo_model().string(), "--chat", "talk"}, joined(kScript, 0, kScript.size()));
        p.input_ends = false;
        if (moment == 0) p.started = [](int pid) { kill(pid, SIGKILL); };
        p.watch = [&](const std::string &out, int pid) {
            if (out.size() >= moment) kill(pid, SIGKILL);
        };
        const Result cut = execute(p);
        REQUIRE(cut.code == 128 + SIGKILL);
        ++killed;
        CHECK(all.starts_with(cut.out));
        size_t shown = 0;  // whole answers
        for (size_t end = 0; shown < answers.size(); ++shown)
            if ((end += answers[shown].size() + 1) > cut.out.size()) break;
        const Words saved = chats.count() == 0 ? Words() : answers_in(chats.files().at(0));
        CHECK(saved.size() >= shown);
        REQUIRE(saved.size() <= answers.size());
        CHECK(chats.talk("talk", joined(kScript, saved.size(), kScript.size())).code == 0);
        REQUIRE(chats.count() == 1);
        CHECK(answers_in(chats.files().at(0)) == answers);
    }
    CHECK(killed == kills);
}

namespace {

// "prefill 0.2 ms 17 tokens (401 from the cache)": both numbers, of each /stats.
std::vector<std::pair<int, int>> prefills(const std::string &err) {
    std::vector<std::pair<int, int>> found;
    for (size_t at = err.find("prefill"); at != std::string::npos; at = err.find("prefill", at + 1)) {
        const size_t read = err.find(" ms", at) + 3, cached = err.find('(', at) + 1;
        found.emplace_back(std::stoi(err.substr(read)), std::stoi(err.substr(cached)));
    }
    return found;
}

std::string some_text(size_t bytes) {
    std::ifstream in(held_out_text());
    std::string text{std::istreambuf_iterator<char>(in), {}};
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text.substr(0, bytes);
}

}  // namespace

TEST_CASE("chat: other answers, other branches and undo read nothing but the new message") {
    if (absent()) return;
    const Chats chats;
    const std::string message = some_text(11500) + "\n", next = "And then?\n/stats\n";
    const std::vector<Words> variants = {{},
                                         {"-ctk", "q8_0", "-ctv", "q4_0"},
                                         {"--window", "128", "--sinks", "4"},
                                         {"--lookup"},
                                         {"-md", demo_draft().string()}};
    for (const Words &variant : variants) {
        CAPTURE(variant.empty() ? "" : variant[0]);
        Words options = {demo_model().string(), "-c", "8192", "-n", "150"};
        for (const char *end : {"0-inf", "1-inf", "2-inf"})  // no answer ends by itself
            options.insert(options.end(), {"--logit-bias", end});
        options.insert(options.end(), variant.begin(), variant.end());
        const Result r = chats.run(options, message + "/stats\n" + next + next + next +  // messages 1 to 8
                                                "/regen\n/stats\n"  // 9, another answer to 7
                                                "/back\n" +
                                                next +                         // 10 and 11, after 8
                                                "/undo\n/next\n" + next +      // 12, after 9
                                                "/undo\n/undo\n" + next +      // 14, after 6
                                                "/edit 3 And then?\n/stats\n"  // 16, after 2
                                                "/go 4\n" +
                                                next +               // 18, after the first answer to 3
                                                "/go 11\n" + next);  // 20, where the longest branch ended
        CAPTURE(r.err);
        REQUIRE(r.code == 0);
        const auto all = prefills(r.err);
        REQUIRE(all.size() == 11);
        CHECK(all[0].first > 3500);
        const int message_tokens = all[1].first;  // the message, and the last token of the answer before it
        CHECK(message_tokens <= 24);
        CHECK(all[3].first + all[3].second > 4000);
        for (size_t i = 1; i < all.size(); ++i) {
            CAPTURE(i);
            CHECK(all[i].first <= message_tokens);
        }
        CHECK(all[4].first == 1);  // the last token of the prompt, for its logits
        CHECK(all[10].second > 4000);
    }
}

TEST_CASE("chat: a chat that goes on has the tokens of its answers, if their text is still the same") {
    if (absent()) return;
    const Chats chats;
    const Words options = {demo_model().string(), "--chat", "talk", "-c", "2048", "-n", "60", "--ignore-eos"};
    const std::string three = "Hello\nWho is there?\nWhat else?\n";
    const Chats whole;
    const Result all = whole.run(options, three + "And then?\n");
    chats.run(options, three);
    REQUIRE(chats.count() == 1);
    const fs::path file = chats.files().at(0);
    std::ifstream in(file, std::ios::binary);
    const std::string saved{std::istreambuf_iterator<char>(in), {}};
    CHECK(saved.find("\"written\":{\"after\":[") != std::string::npos);
    SUBCASE("the answer is that of an uninterrupted chat") {
        CHECK(all.out.ends_with(chats.run(options, "And then?\n").out));
    }
    SUBCASE("wrong tokens in the file do no harm") {
        for (const std::string change :
             {"\"tokens\":[-1,5", "\"tokens\":[3000000,5", "\"tokens\":[1,1,1,1,1",
              "\"tokens\":\"x\",\"more\":[5", "\"tokens\":[1e99", "\"tokens\":[[7]"}) {
            CAPTURE(change);
            std::string edited = saved;
            size_t at = 0;
            while ((at = edited.find("\"tokens\":[", at)) != std::string::npos) {
                const size_t comma = edited.find(',', at);
                edited.replace(at, comma - at, change);
                at += change.size();
            }
            REQUIRE(edited != saved);
            std::ofstream(file, std::ios::binary) << edited;
            const Result r = chats.run(options, "And then?\n");
            CAPTURE(r.err);
            CHECK(r.code == 0);
            CHECK(std::count(r.out.begin(), r.out.end(), '\n') >= 1);
        }
    }
}

TEST_CASE("chat: when memory is short, dropping a branch is reported and does not change its text") {
    if (absent()) return;
    const Chats chats;
    std::string script = some_text(300) + "\n";
    for (int i = 0; i < 5; ++i) script += "/regen\n";
    script += "/stats\n/back\n/back\n/back\n/back\nAnd then?\n/stats\n";
    const Words small = {demo_model().string(), "-c", "512", "-n", "100", "--ignore-eos"};
    Words large = small;
    large.insert(large.end(), {"--cache-size", "64M"});
    const Result tight = chats.run(small, script), roomy = chats.run(large, script);
    CAPTURE(tight.err);
    CHECK(tight.code == 0);
    CHECK(tight.out == roomy.out);
    CHECK(tight.err.find("dropped for lack of memory") != std::string::npos);
    CHECK(roomy.err.find("dropped for lack of memory") == std::string::npos);
}

TEST_CASE("chat: a summary stands for the oldest turns, in later chats as well, until /undo removes it") {
    if (absent()) return;
    const Chats chats;
    const Result r = chats.talk(
        "talk", "/compact\nfirst question\nsecond question\nthird question\n/compact\n/tree\n/show\n");
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 3);  // answers only
    CHECK(r.err.find("(summary of 4 messages)") != std::string::npos);
    CHECK(r.err.find("messages 4\n") != std::string::npos);
    const Result later = chats.talk(
        "talk", "/show\nfourth question\n/undo\n/undo\n/show\n/regen\n/undo\n/undo\n/undo\n/undo\n");
    CAPTURE(later.err);
    CHECK(later.err.starts_with("temp"));
    CHECK(later.err.find("messages 4\n") != std::string::npos);
    CHECK(later.err.find("removed the summary\n") != std::string::npos);
    CHECK(later.err.find("messages 6\n") != std::string::npos);
    CHECK(later.err.ends_with("removed: first question\nthere is no message to remove\n"));
}

TEST_CASE("chat: --on-overflow compact summarizes the turns that exceed the context, and reports it") {
    if (absent()) return;
    const Chats chats;
    std::string input;
    for (int i = 0; i < 8; ++i)
        input += "Tell me about the fox and the crow, part " + std::to_string(i) + "\n";
    Process p =
        chats.process({demo_model().string(), "--on-overflow", "compact", "-c", "256", "--chat", "talk"},
                      input + "/tree\n");
    std::erase(p.arguments, "-q");
    const Result r = execute(p);
    CAPTURE(r.err);
    CHECK(r.code == 0);
    CHECK(r.err.find("summarizing the oldest ") != std::string::npos);
    CHECK(r.err.find("(summary of ") != std::string::npos);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 8);
    CHECK(r.err.find("are forgotten") == std::string::npos);
}

namespace {

// True if the program waits for a line: only control sequences follow the last prompt.
bool waits_at_prompt(const std::string &out, size_t after) {
    const size_t prompt = out.rfind(">>> ");
    if (prompt == std::string::npos || prompt < after) return false;
    for (size_t i = prompt + 4; i < out.size(); ++i) {
        if (out[i] == '\x1b')
            while (i + 1 < out.size() && std::isalpha(static_cast<unsigned char>(out[i])) == 0) ++i;
        else if (out[i] != '\r')
            return false;
    }
    return true;
}

std::string type_in_terminal(const Chats &chats, Words options, const Words &lines) {
    Process p = chats.process(std::move(options), "");
    p.input.reset();
    std::erase(p.arguments, "-q");
    p.environment.insert(p.environment.end(), {"TERM=xterm", "LC_ALL=C", "NO_COLOR="});
    p.terminal = true;
    size_t step = 0, after = 0;
    p.type = [&](const std::string &out, bool reads_keys) -> std::string {
        if (!reads_keys || step == lines.size() || !waits_at_prompt(out, after)) return "";
        after = out.size();
        return lines[step++];
    };
    const Result r = execute(p);
    CHECK(r.code == 0);
    CHECK(step == lines.size());
    return r.out;
}

std::string saved_text(const Chats &chats) {
    std::string all;
    for (const auto &entry : fs::directory_iterator(chats.folder())) {
        std::ifstream in(entry.path(), std::ios::binary);
        all.append(std::istreambuf_iterator<char>(in), {});
    }
    return all;
}

}  // namespace

TEST_CASE(
    "chat: at a terminal every chat is saved, files are named with @, and each command says what it did") {
    if (absent()) return;
    const Chats chats;
    const fs::path notes = chats.directory / "notes.txt";
    std::ofstream(notes) << "the crow is black";
    const std::string out =
        type_in_terminal(chats, {demo_model().string()},
                         {"hello\r", "/regen\r", "/back\r", "/home/x is full\r",
                          "read @" + notes.string() + "\r", "/copy\r", "/clear\r", "another\r", "\x04"});
    CAPTURE(out);
    CHECK(out.find("answer 2 of 2") != std::string::npos);
    CHECK(out.find("answer 1 of 2") != std::string::npos);
    CHECK(out.find("attached notes.txt (1 line, 17 bytes)") != std::string::npos);
    CHECK(out.find("\x1b]52;c;") != std::string::npos);
    CHECK(out.find("new chat; /chats lists the old one") != std::string::npos);
    CHECK(chats.count() == 2);
    const std::string saved = saved_text(chats);
    CHECK(saved.find("\"/home/x is full\"") != std::string::npos);
    CHECK(saved.find("the crow is black") != std::string::npos);
    CHECK(saved.find("{\"head\":2}") != std::string::npos);
    const std::string again = type_in_terminal(chats, {"-k"}, {"/tree\r", "\x04"});
    CAPTURE(again);
    CHECK(again.find("\"another\", 2 messages") != std::string::npos);
    CHECK(again.find("*1 > another") != std::string::npos);
}
