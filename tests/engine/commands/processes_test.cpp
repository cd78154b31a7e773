// A model on several processes (mpirun runnel-mpi --split tensor): the text of one process, with a part of the cache each.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/assistant_pair.h"
#include "tests/support/data.h"
#include "tests/support/dflash_pair.h"
#include "tests/support/draft_model.h"
#include "tests/support/eagle_pair.h"
#include "tests/support/mpirun.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

namespace {

const std::string kModel = "tests/models/demo-q8_0.gguf";
const std::string kPrompt = "'Once upon a time there was a king who'";

// The first line of stderr that runnel has written.
std::string error_line(const std::string &err) {
    const size_t at = err.find("runnel: ");
    return at == std::string::npos ? "" : err.substr(at, err.find('\n', at) - at);
}

size_t messages(const Job &job) {
    size_t count = 0;
    for (size_t at = 0; (at = job.err.find("runnel: ", at)) != std::string::npos; ++at) ++count;
    return count;
}

}  // namespace

TEST_CASE("processes: greedy text of one to four processes is that of one without MPI") {
    if (!has_mpi()) return;
    Process process;
    process.arguments = {"run",    kModel, "Once upon a time there was a king who", "--raw", "-n", "40",
                         "--temp", "0"};
    const auto alone = execute(process);
    REQUIRE(alone.code == 0);
    for (const int ranks : {1, 2, 3, 4}) {
        CAPTURE(ranks);
        const Job job =
            mpirun(ranks, "build/runnel-mpi run " + kModel + " " + kPrompt + " --raw -n 40 --temp 0 -t 1" +
                              (ranks > 1 ? " --split tensor" : ""));
        CHECK(job.code == 0);
        // (mpirun gives its first process a terminal, where the text ends with a newline.)
        CHECK((job.out == alone.out || job.out == alone.out + "\n"));
        CHECK(job.err == "");
    }
}

TEST_CASE(
    "processes: with --split context, each keeps some cells of a long prompt, and the text is that of one") {
    if (!has_mpi()) return;
    const runnel::testing::TemporaryDirectory folder;
    const std::string prompt = folder / "prompt.txt";
    const std::vector<std::byte> text = runnel::testing::read_bytes("tests/data/held-out.txt");
    runnel::testing::write_file(prompt, std::span(text).first(4000));
    const std::string command = "build/runnel-mpi run " + kModel + " -f " + prompt +
                                " --raw -n 30 --temp 0 -t 1 -c 1536 --cache-size ";
    const Job whole = mpirun(1, command + "100M");
    CHECK(whole.code == 0);
    CHECK(mpirun(1, command + "2M").code == 4);
    for (const int ranks : {2, 3}) {  // three ranges of 512 cells
        CAPTURE(ranks);
        const Job divided = mpirun(ranks, command + "2M --split context");
        CHECK(divided.code == 0);
        CHECK(divided.out == whole.out);
        CHECK(divided.err == whole.err);
    }
}

TEST_CASE(
    "processes: a saved prompt is used by any number that divides the cells, and by none that divides the "
    "heads") {
    if (!has_mpi()) return;
    const runnel::testing::TemporaryDirectory folder;
    const std::string prompt = folder / "prompt.txt", saved = folder / "saved";
    const std::vector<std::byte> text = runnel::testing::read_bytes("tests/data/held-out.txt");
    runnel::testing::write_file(prompt, std::span(text).first(2500));
    const std::string command = "build/runnel-mpi run " + kModel + " -f " + prompt +
                                " --raw -n 20 --temp 0 -t 1 -c 1024 --stats --prompt-cache " + saved;
    const Job first = mpirun(2, command + " --split context");
    CHECK(first.code == 0);
    CHECK(first.err.find("(0 from the cache)") != std::string::npos);
    struct Again {
        int ranks;
        const char *split;
        bool used;
    };
    for (const Again &again :
         {Again{1, "", true}, Again{3, " --split context", true}, Again{2, " --split tensor", false}}) {
        CAPTURE(again.ranks);
        const Job job = mpirun(again.ranks, command + again.split);
        CHECK(job.code == 0);
        CHECK(job.out == first.out);
        CHECK((job.err.find("(0 from the cache)") == std::string::npos) == again.used);
        CHECK((job.err.find("the file is not used") == std::string::npos) == again.used);
    }
}

TEST_CASE("processes: samples, drafts and quantized caches give the same text, too") {
    if (!has_mpi()) return;
    for (const std::string options :
         {"--samples 3 --temp 0.8 --seed 5", "--lookup --temp 0.7 --seed 2", "-ctk q8_0 -ctv q4_0 --temp 0",
          "-md tests/models/demo-draft-q8_0.gguf --temp 0 --spec-verify", "--beams 3"}) {
        CAPTURE(options);
        const std::string command =
            "build/runnel-mpi run " + kModel + " " + kPrompt + " --raw -n 30 -t 1 " + options;
        const Job one = mpirun(1, command),
                  three = mpirun(3, command + " --split tensor --tensor-split 2,1,1");
        CHECK(one.code == 0);
        CHECK(three.code == 0);
        CHECK(three.out == one.out);
    }
}

TEST_CASE(
    "processes: drafts of the file's own block, an EAGLE-3 head or a DFlash drafter give the text of one "
    "process") {
    if (!has_mpi()) return;
    const DraftModel attention("glm4moe"), hybrid("qwen35");
    (void)attention.write();
    (void)hybrid.write();
    EaglePair pair = EaglePair::ruled(kEagleVocab);
    (void)pair.file();
    DFlashPair drafter({.block = 4});
    (void)drafter.file();
    struct Case {
        std::string model, drafts;
        const char *source;
    };
    for (const Case &c : {Case{attention.path(), " --mtp on", "mtp"}, Case{hybrid.path(), " --mtp on", "mtp"},
                          Case{hybrid.path(), " --mtp auto", "mtp"},
                          Case{pair.target_path(), " -md " + pair.head_path().string(), "eagle3"},
                          Case{drafter.target_path(), " -md " + drafter.path().string(), "dflash"}})
        for (const std::string how : {" --temp 0", " --temp 0.9 --samples 3"}) {
            CAPTURE(c.drafts);
            CAPTURE(how);
            const std::string command = "build/runnel-mpi run " + c.model +
                                        " 'a b c d' --raw --ignore-eos -n 40 --seed 3 -t 1 --json" + how;
            const auto texts = [](const Job &job) {
                REQUIRE_MESSAGE(job.code == 0, job.err);
                CHECK(job.err == "");
                std::vector<json> all;
                std::istringstream lines(job.out);
                for (std::string line; std::getline(lines, line);)
                    if (!line.empty()) all.push_back(json::parse(line));
                return all;
            };
            const std::vector<json> plain = texts(mpirun(1, command));
            CHECK(!plain.empty());
            for (const auto &[ranks, split] : {std::pair(2, " --split tensor"),
                                               {3, " --split tensor --tensor-split 1,2,1"},
                                               {2, " --split context"}}) {
                CAPTURE(split);
                const std::vector<json> all = texts(mpirun(ranks, command + c.drafts + split));
                REQUIRE(all.size() == plain.size());
                for (size_t i = 0; i < all.size(); ++i) {
                    CHECK(all[i].at("text") == plain[i].at("text"));
                    CHECK(all[i].at("tokens") == plain[i].at("tokens"));
                    CHECK(all[i].at("speculation").at("sources") == c.source);
                }
            }
        }
    for (const std::string how : {" --temp 0", " --temp 0.9 --seed 3"})
        CHECK(mpirun(2, "build/runnel-mpi run " + hybrid.path().string() + " 'a b c d' --raw -n 40 -t 1" +
                            how + " --mtp --split tensor --spec-verify")
                  .code == 0);
}

TEST_CASE("processes: a head that needs the whole model on one device is refused with one message") {
    if (!has_mpi()) return;
    AssistantPair assistant("gemma4");
    (void)assistant.file();
    const Job job = mpirun(2, "build/runnel-mpi run " + assistant.target_path().string() + " hi --raw -md " +
                                  assistant.path().string() + " --split tensor");
    CHECK(job.code == 2);
    CHECK(error_line(job.err) ==
          "runnel: --draft-model: a Gemma 4 assistant needs the whole model on one device: leave out --split "
          "tensor");
    CHECK(messages(job) == 1);
}

TEST_CASE("processes: a context that the cache limit of one process refuses runs on two") {
    if (!has_mpi()) return;
    const std::string command = "build/runnel-mpi run " + kModel + " " + kPrompt +
                                " --raw -n 10 --temp 0 -t 1 -c 512 --cache-size 700K";
    const Job one = mpirun(1, command), two = mpirun(2, command + " --split tensor");
    CHECK(one.code == 4);
    CHECK(error_line(one.err).find("--cache-size") != std::string::npos);
    CHECK(two.code == 0);
    CHECK(!two.out.empty());
    CHECK(two.err == "");
}

TEST_CASE("processes: one message tells what is wrong") {
    if (!has_mpi()) return;
    const Job missing = mpirun(3, "build/runnel-mpi run missing.gguf hi --split tensor");
    CHECK(missing.code == 2);
    CHECK(error_line(missing.err).find("missing.gguf") != std::string::npos);
    CHECK(messages(missing) == 1);
    // A file that only the second process lacks.
    const Job other =
        mpirun(2,
               "sh -c 'exec build/runnel-mpi run $( [ $OMPI_COMM_WORLD_RANK = 1 ] && echo missing.gguf || "
               "echo " +
                   kModel + ") hi --raw --split tensor'");
    CHECK(other.code == 2);
    CHECK(error_line(other.err).find("runnel: process 1: ") == 0);
    const Job without = mpirun(2, "build/runnel run " + kModel + " hi --split tensor");
    CHECK(without.code == 1);
    CHECK(error_line(without.err).find("make MPI=1") != std::string::npos);
    const Job shares =
        mpirun(2, "build/runnel-mpi run " + kModel + " hi --split tensor --tensor-split 1,1,1");
    CHECK(shares.code == 5);
    CHECK(error_line(shares.err) == "runnel: --tensor-split has 3 shares, but there are 2 processes");
}

TEST_CASE("processes: a process that is killed ends the job within 10 seconds") {
    if (!has_mpi()) return;
    // The second process kills itself when a tenth of the text can be there.
    for (const std::string &options : {kModel, std::string("tests/models/hybrid-q8_0.gguf --mtp on")}) {
        const Job job =
            mpirun(2,
                   "sh -c 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then (sleep 2; kill -9 $$) & fi; exec "
                   "build/runnel-mpi run " +
                       options + " -p hi --raw -n 100000 --ignore-eos -c 100k -t 1 --split tensor'");
        CAPTURE(options);
        CHECK(job.code != 0);
        CHECK(messages(job) <= 1);
        CHECK((job.seconds < 12 || job.locked_up));
    }
}
