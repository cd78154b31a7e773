// Which files the commands write, and which they must not overwrite. Needs $RUNNEL.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/commands/program_support.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path &path) {
    const auto bytes = read_bytes(path);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

unsigned mode_of(const fs::path &path) {
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    return status.st_mode & 07777;
}

struct Files {
    TemporaryDirectory folder;
    std::string model = (folder / "model.gguf").string(), prompt = (folder / "prompt.txt").string(),
                rows = (folder / "rows.jsonl").string(), link = (folder / "link.gguf").string(),
                talk = (folder / "talk.json").string(), schema = (folder / "schema.json").string();
    Files() {
        fs::copy_file(tiny().path, model);
        std::string text;
        for (int i = 0; i < 400; ++i) text += "some words of a text ";
        write_text(prompt, text);
        write_text(rows, "{\"prompt\": \"a\", \"max_tokens\": 2}\n{\"prompt\": \"b\", \"max_tokens\": 2}\n");
        write_text(schema, "{\"type\": \"boolean\"}");
        fs::create_symlink("model.gguf", link);
    }
    size_t count() const {
        return static_cast<size_t>(std::distance(fs::directory_iterator(folder.path()), {}));
    }
};

}  // namespace

TEST_CASE("outputs: no command overwrites a file that it reads, even with --overwrite or through a link") {
    if (absent()) return;
    const Files f;
    const std::string model = text_of(f.model), prompt = text_of(f.prompt), rows = text_of(f.rows),
                      schema = text_of(f.schema);
    const size_t before = f.count();
    const std::vector<std::vector<std::string>> calls = {
        {"run", f.model, "-f", f.prompt, "-n", "1", "-c", "64", "--on-overflow", "shift", "--stats-file",
         f.model},
        {"run", f.model, "-f", f.prompt, "-n", "1", "-c", "64", "--on-overflow", "shift", "--stats-file",
         f.prompt},
        {"run", f.model, "hi", "-n", "1", "--stats-file", f.link},
        {"run", f.model, "hi", "-n", "1", "--prompt-cache", f.link},
        {"batch", f.model, "-i", f.rows, "-o", f.model},
        {"batch", f.model, "-i", f.rows, "-o", f.link},
        {"batch", f.model, "-i", f.rows, "-o", f.rows},
        {"batch", f.model, "-i", f.rows, "-o", f.talk, "--stats-file", f.rows},
        {"batch", f.model, "-i", f.rows, "--json-schema", f.schema, "-o", f.schema},
        {"run", f.model, "hi", "-n", "1", "--json-schema", f.schema, "--stats-file", f.schema},
        {"perplexity", f.model, "-f", f.prompt, "-c", "64", "--chunks", "1", "--save-logits", f.model},
        {"perplexity", f.model, "-f", f.prompt, "-c", "64", "--chunks", "1", "--save-logits", f.prompt},
    };
    for (const auto &call : calls)
        for (const bool overwrite : {false, true}) {
            std::vector<std::string> arguments = call;
            if (overwrite) arguments.push_back("--overwrite");
            CAPTURE(call[0]);
            CAPTURE(call.back());
            const Result r = runnel_with(arguments);
            check_message(r);
            CHECK(r.code == 2);
            CHECK(text_of(f.model) == model);
            CHECK(text_of(f.prompt) == prompt);
            CHECK(text_of(f.rows) == rows);
            CHECK(text_of(f.schema) == schema);
            CHECK(f.count() == before);
        }
    // Rows that the shell opened.
    CHECK(std::system((shell_word(*program_under_test()) + " batch " + shell_word(f.model) +
                       " --overwrite --stats-file " + shell_word(f.rows) + " <" + shell_word(f.rows) +
                       " >/dev/null 2>&1")
                          .c_str()) == 2 << 8);
    CHECK(text_of(f.rows) == rows);
    const Result chat =
        runnel_with({"chat", f.model, "-q", "-n", "1", "--overwrite"},
                    "hi\n/save " + f.model + "\n/read " + f.rows + "\n/save " + f.rows + "\n");
    CHECK(chat.code == 2);
    CHECK(chat.err.find("this run reads that file") != std::string::npos);
    CHECK(text_of(f.model) == model);
    CHECK(text_of(f.rows) == rows);
}

TEST_CASE("outputs: two outputs cannot be the same file, standard output and error included") {
    if (absent()) return;
    const Files f;
    const std::string same = (f.folder / "." / "talk.json").string();
    const std::string long_prompt = text_of(f.prompt).substr(0, 100);
    fs::create_symlink("talk.json", f.folder / "other");
    const size_t before = f.count();
    const std::vector<std::vector<std::string>> calls = {
        {"batch", f.model, "-i", f.rows, "-o", f.talk, "--stats-file", f.talk},
        {"batch", f.model, "-i", f.rows, "-o", f.talk, "--stats-file", same},
        {"batch", f.model, "-i", f.rows, "-o", f.folder / "other", "--stats-file", f.talk},
        {"batch", f.model, "-i", f.rows, "-o", f.talk, "--stats-file", f.talk + ".resume"},
        {"run", f.model, long_prompt, "-n", "1", "--prompt-cache", f.talk, "--stats-file", same},
    };
    for (const auto &call : calls)
        for (const bool overwrite : {false, true}) {
            std::vector<std::string> arguments = call;
            if (overwrite) arguments.push_back("--overwrite");
            CAPTURE(call.back());
            const Result r = runnel_with(arguments);
            check_message(r);
            CHECK(r.code == 2);
            CHECK(r.err.find("--stats-file and another output are both") != std::string::npos);
            CHECK(f.count() == before);
        }
    // Files to which a shell redirects the program's output.
    for (const std::string redirection : {" >", " 2>", " >>"}) {
        CAPTURE(redirection);
        const int status =
            std::system((shell_word(*program_under_test()) + " run " + shell_word(f.model) +
                         " hi -n 3 --overwrite --stats-file " + shell_word(f.talk) + redirection +
                         shell_word(f.talk) + (redirection == " 2>" ? " >/dev/null" : " 2>/dev/null"))
                            .c_str());
        CHECK(WEXITSTATUS(status) == 2);
        CHECK(text_of(f.talk).find("\"program\"") == std::string::npos);
        fs::remove(f.talk);
    }
    CHECK(
        runnel_with({"batch", f.model, "-i", f.rows, "-o", "/dev/null", "--stats-file", "/dev/null"}).code ==
        0);
}

TEST_CASE("outputs: batch writes to standard output for - and /dev/stdout") {
    if (absent()) return;
    const Files f;
    const std::string plain = runnel_with({"batch", f.model, "-s", "1", "-i", f.rows}).out;
    CHECK(std::count(plain.begin(), plain.end(), '\n') == 2);
    const size_t before = f.count();
    for (const char *name : {"-", "/dev/stdout"}) {
        CAPTURE(name);
        const Result r = runnel_with({"batch", f.model, "-s", "1", "-i", f.rows, "-o", name});
        CHECK(r.code == 0);
        CHECK(r.out == plain);
        // Also when standard output is a file.
        CHECK(std::system((shell_word(*program_under_test()) + " batch " + shell_word(f.model) + " -s 1 -i " +
                           shell_word(f.rows) + " -o " + name + " >" + shell_word(f.talk))
                              .c_str()) == 0);
        CHECK(text_of(f.talk) == plain);
        fs::remove(f.talk);
        CHECK(f.count() == before);
    }
}

TEST_CASE("outputs: a file that runnel did not make is replaced only on request") {
    if (absent()) return;
    const Files f;
    const auto letter = [&] { write_text(f.talk, "dear reader"); };
    const std::vector<std::vector<std::string>> calls = {
        {"run", f.model, "hi", "-n", "1", "--stats-file", f.talk},
        {"batch", f.model, "-i", f.rows, "-o", f.talk},
        {"batch", f.model, "-i", f.rows, "--stats-file", f.talk},
        {"perplexity", f.model, "-f", f.prompt, "-c", "64", "--chunks", "1", "--save-logits", f.talk},
    };
    for (const auto &call : calls) {
        CAPTURE(call[0]);
        letter();
        const Result refused = runnel_with(call);
        check_message(refused);
        CHECK(refused.code == 2);
        CHECK(refused.err.find("--overwrite") != std::string::npos);
        CHECK(text_of(f.talk) == "dear reader");
        auto agreed = call;
        agreed.push_back("--overwrite");
        CHECK(runnel_with(agreed).code == 0);
        CHECK(text_of(f.talk) != "dear reader");
    }
    letter();
    const Result chat = runnel_with({"chat", f.model, "-q", "-n", "1"}, "hi\n/save " + f.talk + "\n");
    CHECK(chat.code == 2);
    CHECK(text_of(f.talk) == "dear reader");
    CHECK(runnel_with({"chat", f.model, "-q", "-n", "1", "--overwrite"}, "hi\n/save " + f.talk + "\n").code ==
          0);
    CHECK(text_of(f.talk).find("messages") != std::string::npos);
    // Files of earlier statistics count as runnel's own.
    const std::string stats = (f.folder / "stats").string();
    for (int i = 0; i < 2; ++i)
        CHECK(runnel_with({"run", f.model, "hi", "-n", "1", "--stats-file", stats}).code == 0);
    // A chat may overwrite a file that it saved before.
    fs::remove(f.talk);
    CHECK(runnel_with({"chat", f.model, "-q", "-n", "1"},
                      "hi\n/save " + f.talk + "\nmore\n/save " + f.talk + "\n")
              .code == 0);
}

TEST_CASE(
    "outputs: chats and prompt caches are readable by their owner only; an existing file keeps its mode") {
    if (absent()) return;
    const Files f;
    const std::string cache = (f.folder / "cache").string();
    CHECK(runnel_with({"chat", f.model, "-q", "-n", "1"}, "hi\n/save " + f.talk + "\n").code == 0);
    CHECK(mode_of(f.talk) == 0600);
    const std::string text(100, 'a');
    CHECK(runnel_with({"run", f.model, text, "-n", "1", "--prompt-cache", cache}).code == 0);
    CHECK(mode_of(cache) == 0600);
    chmod(f.talk.c_str(), 0640);
    CHECK(runnel_with({"chat", f.model, "-q", "-n", "1", "--overwrite"}, "hi\n/save " + f.talk + "\n").code ==
          0);
    CHECK(mode_of(f.talk) == 0640);
}

TEST_CASE("outputs: in a terminal chat asks before it replaces a file") {
    if (absent()) return;
    const Files f;
    for (const bool yes : {false, true}) {
        // The question is shown, however long the name is.
        const std::string talk_file = yes ? f.talk : (f.folder / (std::string(100, 'x') + ".json")).string();
        write_text(talk_file, "dear reader");
        Process p = process({"chat", f.model, "-n", "1"});
        p.environment = {"XDG_STATE_HOME=" + f.folder.path().string(), "TERM=xterm", "LC_ALL=C"};
        p.terminal = true;
        size_t step = 0, after = 0;
        const std::vector<std::pair<std::string, std::string>> talk = {{">>> ", "hello\r"},
                                                                       {">>> ", "/save " + talk_file + "\r"},
                                                                       {"[y/N] ", yes ? "y\r" : "\r"},
                                                                       {">>> ", "\x04"}};
        p.type = [&](const std::string &out, bool reads_keys) -> std::string {
            if (!reads_keys || step == talk.size()) return "";
            const size_t at = out.find(talk[step].first, after);
            if (at == std::string::npos) return "";
            after = out.size();
            return talk[step++].second;
        };
        const Result r = execute(p);
        CAPTURE(r.out);
        CHECK(r.code == 0);
        CHECK((text_of(talk_file) == "dear reader") == !yes);
        CHECK((r.out.find("not saved") != std::string::npos) == !yes);
    }
}

TEST_CASE("outputs: a limit on file sizes gives a message, and nothing is left behind") {
    if (absent()) return;
    const Files f;
    const size_t before = f.count();
    const std::string out = (f.folder / "out").string();
    // In a shell, whose limit counts in blocks of 512 or 1,024 bytes.
    const auto limited = [&](const std::string &arguments) {
        return std::system(("ulimit -f 4; " + shell_word(*program_under_test()) + " " + arguments +
                            " >/dev/null 2>" + shell_word(f.folder / "err"))
                               .c_str());
    };
    const int logits = limited("perplexity " + shell_word(f.model) + " -f " + shell_word(f.prompt) +
                               " -c 64 --chunks 1 --save-logits " + shell_word(out));
    CHECK(WEXITSTATUS(logits) == 1);
    CHECK(text_of(f.folder / "err").find("File too large") != std::string::npos);
    CHECK(f.count() == before + 1);
    // Complete lines of a batch stay.
    std::string rows;
    for (int i = 0; i < 100; ++i) rows += "{\"prompt\": \"row\", \"max_tokens\": 20}\n";
    write_text(f.rows, rows);
    const int batch =
        limited("batch " + shell_word(f.model) + " -s 1 -i " + shell_word(f.rows) + " -o " + shell_word(out));
    CHECK(WEXITSTATUS(batch) == 1);
    CHECK(text_of(f.folder / "err").find("File too large") != std::string::npos);
    CHECK(text_of(out).size() > 500);
    CHECK(text_of(out).ends_with('\n'));
}
