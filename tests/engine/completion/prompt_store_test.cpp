// Computed prompts on the disk: what is found is what was computed, whatever happened to the files in between.
#include "engine/completion/prompt_store.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "engine/decode/single_sequence.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/support/data.h"
#include "tests/support/model_maker.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"
#include "tests/support/toy_rig.h"

using namespace runnel;
using namespace runnel::completion;
using namespace runnel::decode;
using namespace runnel::testing;

namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<TokenId>;

constexpr base::Checksum::Value kModel{1, 2};
constexpr uint64_t kMuch = uint64_t{1} << 30;

struct Folder {
    TemporaryDirectory directory;
    Folder() { fs::permissions(directory.path(), fs::perms::owner_all); }
    std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        for (const auto &entry : fs::directory_iterator(directory.path()))
            if (entry.path().extension() == ".kv") found.push_back(entry.path());
        std::sort(found.begin(), found.end());
        return found;
    }
    uint64_t bytes() const {
        uint64_t all = 0;
        for (const fs::path &file : files()) all += fs::file_size(file);
        return all;
    }
};

// Stands for one process: an executor and a store.
struct User {
    ToyRig rig;
    PromptStore store;
    explicit User(const Folder &folder, base::Checksum::Value model = kModel, uint64_t most = kMuch,
                  bool recurrent = false, int32_t context = 2048)
        : rig({.context = context, .batch = 64}, kToyVocab, recurrent),
          store(folder.directory.path(), most, model, rig.executor) {}

    size_t computed() const {
        size_t tokens = 0;
        for (const ToyBackend::Record &record : rig.backend->records) tokens += record.tokens;
        return tokens;
    }
    // Computes a prompt after a look into the store; the logits must be right. Returns how many tokens were computed.
    size_t read(const Tokens &prompt) {
        const size_t before = computed();
        Sequence begun(rig.executor);
        if (auto stored = store.load(prompt)) {
            const Tokens tokens = stored->tokens();
            begun.replace(0, tokens, std::move(*stored));
        }
        SingleSequence sequence(std::move(begun));
        const size_t known = sequence.reuse(prompt);
        REQUIRE(sequence.feed(std::span(prompt).subspan(known)));
        const auto logits = sequence.logits();
        const uint64_t hash = hash_tokens(prompt);
        for (int32_t id = 0; id < kToyVocab; ++id)
            REQUIRE(logits[static_cast<size_t>(id)] == toy_logit(hash, id));
        return computed() - before;
    }
};

Tokens changed_from(Tokens tokens, size_t at) {
    for (size_t i = at; i < tokens.size(); ++i) tokens[i] = (tokens[i] + 1) % kToyVocab;
    return tokens;
}

}  // namespace

TEST_CASE("prompt store: the longest beginning is found, to the token") {
    const Folder folder;
    std::mt19937 rng(1);
    const Tokens prompt = random_tokens(rng, 1000);
    {
        User first(folder);
        CHECK(first.read(prompt) == 1000);
        first.store.save(prompt);
        CHECK(first.store.counts().saved == 992);
        CHECK(first.store.counts().damaged == 0);
        first.store.save(prompt);  // nothing new
        CHECK(first.store.counts().saved == 992);
    }
    CHECK(folder.files().size() == 4);
    for (const fs::path &file : folder.files()) {
        struct stat status {};
        REQUIRE(stat(file.c_str(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0600);
    }
    User same(folder);
    CHECK(same.read(prompt) == 8);
    CHECK(same.store.counts().found == 992);
    CHECK(same.read(prompt) <= 8);  // in the cache already
    for (const size_t at : {0, 1, 31, 32, 33, 255, 256, 257, 500, 991, 992, 999}) {
        CAPTURE(at);
        User other(folder);
        const size_t shared =
            at < 32 ? 0 : std::min<size_t>(at, 992);  // at least a block is shared, or nothing
        CHECK(other.read(changed_from(prompt, at)) == 1000 - shared);
        CHECK(other.store.counts().found == shared);
    }
    User longer(folder);
    Tokens more = prompt;
    for (const TokenId id : random_tokens(rng, 300)) more.push_back(id);
    CHECK(longer.read(more) == 308);
    longer.store.save(more);
    CHECK(folder.files().size() == 5);  // a file of the longer text replaced the last one of the shorter text
    User again(folder);
    CHECK(again.read(more) == 1300 - 1280);
    CHECK(again.read(prompt) <= 8);
}

TEST_CASE(
    "prompt store: a text is kept to its last token, and its last block holds no tokens of other texts") {
    std::mt19937 rng(13);
    Tokens prompt = random_tokens(rng, 1100);
    for (const size_t length : {65, 95, 96, 97, 255, 256, 257, 511, 700, 1000}) {
        CAPTURE(length);
        prompt[length] = (prompt[length - 1] + 1) % kToyVocab;  // differs from the token before
        const Folder folder;
        const Tokens text(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(length));
        const size_t blocks = (length + 31) / 32, in_block = length % 32;
        {
            User first(folder);
            first.read(prompt);
            const size_t before = first.computed();
            first.store.save_to_the_token(text);
            CHECK(first.computed() - before == (in_block > 0 ? 32 : 0));
            CHECK(first.store.counts().saved == length);
            first.store.save_to_the_token(text);  // nothing new
            CHECK(first.store.counts().saved == length);
            CHECK(first.computed() - before == (in_block > 0 ? 32 : 0));
        }
        CHECK(folder.files().size() == (blocks + 7) / 8);
        User same(folder);
        CHECK(same.read(prompt) == 1100 - length);
        CHECK(same.store.counts().found == length);
        const size_t before = same.computed();
        same.store.save_to_the_token(text);
        CHECK(same.computed() == before);
        CHECK(same.store.counts().saved == 0);
        User other(folder);
        CHECK(other.read(changed_from(prompt, length - 5)) == 1100 - (length - 5));
        Tokens copies(text);  // the tokens that fill the block may be part of another text
        copies.resize(blocks * 32 + 9, text.back());
        User third(folder);
        CHECK(third.read(copies) == 9);

        // A text that goes on replaces the block.
        User longer(folder);
        longer.read(prompt);
        longer.store.save(prompt);
        CHECK(folder.files().size() == 5);
        CHECK(User(folder).read(prompt) == 1100 - 1088);
        longer.store.save_to_the_token(text);
        CHECK(folder.files().size() == 5);
        CHECK(User(folder).read(text) == 1);
    }
}

TEST_CASE("prompt store: without room or with recurrent layers, only whole blocks are kept") {
    std::mt19937 rng(14);
    const Tokens prompt = random_tokens(rng, 700);
    for (const bool recurrent : {false, true}) {
        CAPTURE(recurrent);
        const Folder folder;
        User user(folder, kModel, kMuch, recurrent, recurrent ? 2048 : 703);  // one cell short of a block
        user.read(prompt);
        const size_t before = user.computed();
        user.store.save_to_the_token(prompt);
        CHECK(user.computed() == before);
        CHECK(user.store.problem() == "");
        User next(folder, kModel, kMuch, recurrent);
        CHECK(next.read(prompt) < (recurrent ? cache::kStateInterval + 32 : 29));
    }
    const Folder folder;  // blocks held by another sequence
    User user(folder, kModel, kMuch, false, 704);
    SingleSequence held(user.rig.executor);
    REQUIRE(held.feed(prompt));
    user.store.save_to_the_token(prompt);
    CHECK(user.store.counts().saved == 672);
    CHECK(User(folder).read(prompt) == 28);
}

TEST_CASE("prompt store: another model, other settings and another folder share nothing") {
    const Folder folder, copy;
    std::mt19937 rng(2);
    const Tokens prompt = random_tokens(rng, 600);
    User first(folder);
    first.read(prompt);
    first.store.save(prompt);
    User other(folder, {1, 3});
    CHECK(other.read(prompt) == 600);
    other.store.save(prompt);
    CHECK(folder.files().size() == 6);
    User again(folder);
    CHECK(again.read(prompt) == 600 - 576);
    for (const fs::path &file : folder.files()) fs::copy(file, copy.directory.path());
    User elsewhere(copy);  // a folder's keys begin with its own random number
    CHECK(elsewhere.read(prompt) == 600);
    User recurrent(folder, kModel, kMuch, true);  // as if two models had the same identity
    CHECK(recurrent.read(prompt) == 600);
}

TEST_CASE("prompt store: damage is found, and the file is written again") {
    const Folder folder;
    std::mt19937 rng(3);
    const Tokens prompt = random_tokens(rng, 700);
    User first(folder);
    first.read(prompt);
    first.store.save(prompt);
    const std::vector<fs::path> files = folder.files();
    REQUIRE(files.size() == 3);
    for (uint32_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const fs::path &file = files[random.below(files.size())];
        const std::string sound = read_file(file);
        std::string text = sound;
        if (seed % 3 == 0)
            text.resize(random.below(text.size()));
        else
            text[random.below(text.size())] ^= static_cast<char>(1 << random.below(8));
        if (text == sound) continue;
        std::ofstream(file, std::ios::binary) << text;
        User user(folder);
        CHECK(user.read(prompt) >= 700 - 672);  // with the right logits
        user.store.save(prompt);
        CHECK(user.store.counts().damaged == 1);
        CHECK(user.store.problem() == "");
        CHECK(read_file(file) == sound);
        User next(folder);
        CHECK(next.read(prompt) == 700 - 672);
    }
    // The store leaves alone what it did not write.
    const fs::path folder_path = folder.directory.path();
    fs::remove(files[0]);
    fs::create_directory(files[0]);
    std::ofstream(folder_path / "notes.txt") << "mine";
    User user(folder);
    user.read(prompt);
    user.store.save(prompt);
    CHECK(fs::is_directory(files[0]));
    CHECK(read_file(folder_path / "notes.txt") == "mine");
}

TEST_CASE("prompt store: a folder that is not the user's alone is not used") {
    const Folder folder;
    std::mt19937 rng(4);
    const Tokens prompt = random_tokens(rng, 300);
    fs::permissions(folder.directory.path(), fs::perms::owner_all | fs::perms::others_read);
    User open(folder);
    CHECK(open.store.problem().find("open to other users") != std::string::npos);
    CHECK(open.read(prompt) == 300);
    open.store.save(prompt);
    CHECK(folder.files().empty());
    ToyRig rig({.context = 64});
    CHECK(PromptStore("/nowhere/at/all", kMuch, kModel, rig.executor).problem() ==
          "/nowhere/at/all is not a folder");
}

TEST_CASE("prompt store: at the size limit, the files used least recently are removed") {
    const Folder folder;
    std::mt19937 rng(5);
    std::vector<Tokens> prompts;
    for (int i = 0; i < 6; ++i) prompts.push_back(random_tokens(rng, 520));
    uint64_t each = 0;
    for (const Tokens &prompt : prompts) {
        User user(folder, kModel, each == 0 ? kMuch : 3 * each);
        user.read(prompt);
        user.store.save(prompt);
        if (each == 0) each = folder.bytes();
        User(folder).read(prompts[0]);  // stays in use
    }
    CHECK(folder.bytes() <= 3 * each);
    CHECK(User(folder).read(prompts[0]) == 8);
    CHECK(User(folder).read(prompts[5]) == 8);
    CHECK(User(folder).read(prompts[1]) == 520);
}

TEST_CASE("prompt store: of a text that is larger than the limit, the beginning is kept") {
    const Folder folder, small;
    std::mt19937 rng(10);
    const Tokens prompt = random_tokens(rng, 1200), other = random_tokens(rng, 300);
    User first(folder);
    first.read(prompt);
    first.store.save(prompt);
    const uint64_t chunk = folder.bytes() * 256 / 1184;
    const uint64_t most = chunk * 3 / 2;
    User user(small, kModel, most);
    user.read(prompt);
    user.store.save(prompt);
    CHECK(user.store.counts().saved == 256);
    CHECK(small.bytes() <= most);
    CHECK(User(small, kModel, most).read(prompt) == 1200 - 256);

    // To make room for another text, the end of this one is removed.
    User second(folder, kModel, folder.bytes());
    second.read(other);
    second.store.save(other);
    CHECK(second.store.counts().removed >= 1);
    User third(folder);
    const size_t computed = third.read(prompt);
    CHECK(computed < 1200 - 512);
    CHECK(computed > 1200 - 1184);
    CHECK(User(folder).read(other) == 300 - 288);
    User none(folder, kModel, 0);
    none.read(other);
    none.store.save(other);
    CHECK(folder.files().empty());
}

TEST_CASE("prompt store: a file that cannot be opened is neither used nor removed") {
    const Folder folder;
    std::mt19937 rng(11);
    const Tokens prompt = random_tokens(rng, 700);
    User first(folder);
    first.read(prompt);
    first.store.save(prompt);
    for (const fs::path &file : folder.files()) {  // a link is not followed
        fs::path moved = file;
        moved += ".moved";
        fs::rename(file, moved);
        fs::create_symlink(moved, file);
    }
    User user(folder);
    CHECK(user.read(prompt) == 700);
    CHECK(user.store.counts().damaged == 0);
    CHECK(user.store.problem().empty());
    CHECK(folder.files().size() == 3);
}

TEST_CASE("prompt store: a folder that another process has locked is used as long as its number is known") {
    const Folder folder;
    const fs::path path = folder.directory.path() / "lock";
    const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(flock(lock, LOCK_EX) == 0);
    CHECK(User(folder).store.problem().find("locked") != std::string::npos);
    const std::string number(16, 'n');
    REQUIRE(pwrite(lock, number.data(), number.size(), 0) == 16);
    CHECK(User(folder).store.problem() == "");
    close(lock);
}

TEST_CASE("prompt store: temporary files of killed processes are removed, those of running ones stay") {
    const Folder folder;
    std::mt19937 rng(6);
    const fs::path stale = folder.directory.path() / ".name.kv.0123456789abcdef.partial";
    std::ofstream(stale) << "cut off";
    User user(folder);
    const Tokens prompt = random_tokens(rng, 300);
    user.read(prompt);
    user.store.save(prompt);
    CHECK(!fs::exists(stale));
    CHECK(User(folder).read(prompt) == 300 - 288);
}

TEST_CASE("prompt store: several users of a folder at once lose nothing and read nothing wrong") {
    const Folder folder;
    std::mt19937 rng(7);
    const Tokens common = random_tokens(rng, 400);
    std::vector<Tokens> prompts;
    for (int i = 0; i < 4; ++i) {
        prompts.push_back(common);
        for (const TokenId id : random_tokens(rng, 200)) prompts.back().push_back(id);
    }
    std::vector<std::thread> threads;
    for (size_t t = 0; t < prompts.size(); ++t)
        threads.emplace_back([&, t] {
            for (int round = 0; round < 4; ++round) {
                User user(folder);
                const Tokens &prompt = prompts[(t + static_cast<size_t>(round)) % prompts.size()];
                user.store.load(prompt);
                SingleSequence sequence(user.rig.executor);
                sequence.feed(prompt);
                user.store.save(prompt);
            }
        });
    for (std::thread &thread : threads) thread.join();
    for (const Tokens &prompt : prompts) {
        User user(folder);
        CHECK(user.read(prompt) == 600 - 576);
        CHECK(user.store.counts().damaged == 0);
    }
}

TEST_CASE("prompt store: recurrent layers go on from the nearest stored state") {
    const Folder folder;
    std::mt19937 rng(8);
    const Tokens prompt = random_tokens(rng, 1000);
    User first(folder, kModel, kMuch, true);
    first.read(prompt);
    first.store.save(prompt);
    User same(folder, kModel, kMuch, true);
    CHECK(same.read(prompt) <= 40);
    User other(folder, kModel, kMuch, true);
    CHECK(other.read(changed_from(prompt, 900)) <= 1000 - 900 + cache::kStateInterval);
}

TEST_CASE("prompt store: windows, keys of indexers, and quantized keys and values are restored") {
    ModelShape shape;
    SUBCASE("sliding windows") {
        shape.arch = "gemma3", shape.sliding_window = 96;
    }
    SUBCASE("indexers") {
        shape.arch = "glm-dsa", shape.indexer_top_k = 48, shape.indexer_period = 2;
    }
    SUBCASE("indexers of blocks") {
        shape.arch = "minimax-m3", shape.indexer_top_k = 48, shape.indexer_block = 12;
    }
    shape.layers = 6;
    shape.context = 1024;
    const TemporaryModel file{shape};
    const model::Model model = model::build(file.file, 1024);
    const auto executor = [&](kernels::CacheType type) {
        return std::make_unique<Executor>(kernels::cpu::make_cpu_backend(1), model.program,
                                          ExecutorOptions{.context = 1024, .types = {type, type}});
    };
    std::mt19937 rng(9);
    const Tokens prompt = random_tokens(rng, 700, 250);
    for (const auto type : {kernels::CacheType::F32, kernels::CacheType::Q5_1}) {
        CAPTURE(static_cast<int>(type));
        const Folder folder;
        const auto first = executor(type), second = executor(type);
        SingleSequence one(*first), two(*second);
        REQUIRE(one.feed(prompt));
        const std::vector<float> expected(one.logits().begin(), one.logits().end());
        PromptStore(folder.directory.path(), kMuch, kModel, *first).save(prompt);
        PromptStore store(folder.directory.path(), kMuch, kModel, *second);
        store.load(prompt);
        CHECK(store.counts().found == 672);
        const size_t known = two.reuse(prompt);
        CHECK(known == 672);
        REQUIRE(two.feed(std::span(prompt).subspan(known)));
        CHECK(std::equal(expected.begin(), expected.end(), two.logits().begin(), two.logits().end()));

        const Folder exact;
        PromptStore(exact.directory.path(), kMuch, kModel, *first)
            .save_to_the_token(std::span(prompt).first(690));
        const auto third = executor(type);
        PromptStore again(exact.directory.path(), kMuch, kModel, *third);
        auto stored = again.load(prompt);
        REQUIRE(stored);
        CHECK(stored->length() == 690);
        Sequence begun(*third);
        const Tokens tokens = stored->tokens();
        begun.replace(0, tokens, std::move(*stored));
        SingleSequence three(std::move(begun));
        REQUIRE(three.feed(std::span(prompt).subspan(690)));
        CHECK(std::equal(expected.begin(), expected.end(), three.logits().begin(), three.logits().end()));
    }
}
