#include "engine/commands/chat/chat_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

#include "tests/support/temporary.h"

namespace runnel::commands {
namespace {

using testing::TemporaryDirectory;

std::string content(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

mode_t mode_of(const std::filesystem::path &path) {
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    return status.st_mode & 0777;
}

// A chat with a message and its answer; returns the file.
std::filesystem::path make_chat(const std::filesystem::path &folder, const std::string &title) {
    ChatFile file(folder, "/m.gguf");
    Conversation talk([&](const Json &entry) { file.append(entry); });
    if (!title.empty()) talk.set_title(title);
    talk.add({.message = {"user", "hello\nyou"}});
    talk.add({.message = {"assistant", "hi"}});
    return file.path();
}

TEST_CASE("chat file: it appears with the first message, for its owner alone") {
    const TemporaryDirectory directory;
    const std::filesystem::path folder = directory / "chats";
    {
        ChatFile file(folder, "/m.gguf");
        file.append({{"system", "be kind"}});
        CHECK_FALSE(std::filesystem::exists(folder));
    }
    const std::filesystem::path path = make_chat(folder, "");
    CHECK(mode_of(folder) == 0700);
    CHECK(mode_of(path) == 0600);
    const std::vector<SavedChat> chats = saved_chats(folder);
    REQUIRE(chats.size() == 1);
    CHECK(chats[0].title == "hello you");
    CHECK(chats[0].model == "/m.gguf");
    CHECK(chats[0].messages == 2);
    ChatFile none({}, "/m.gguf");
    none.append({{"id", 1}, {"parent", 0}, {"role", "user"}, {"content", ""}});
    CHECK(none.path().empty());
}

TEST_CASE("chat file: wherever its end is cut off, only that line is lost, and the chat goes on") {
    const TemporaryDirectory directory;
    const std::string whole = content(make_chat(directory / "chats", "talk"));
    const std::filesystem::path path = directory / "chats/cut.jsonl";
    const size_t header = whole.find('\n') + 1;
    for (size_t length = header; length <= whole.size(); ++length) {
        CAPTURE(length);
        std::ofstream(path, std::ios::binary) << whole.substr(0, length);
        const size_t lines = static_cast<size_t>(
            std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length), '\n'));
        Conversation talk;
        {
            ChatFile file({path, "", "", 0, 0}, "/m.gguf", talk);
            CHECK(file.damaged() == 0);
            CHECK(talk.size() == (lines < 3 ? 0 : lines - 2));  // header and title
            file.append({{"id", 9}, {"parent", talk.head()}, {"role", "user"}, {"content", "more"}});
        }
        Conversation again;
        ChatFile file({path, "", "", 0, 0}, "/m.gguf", again);
        CHECK(file.damaged() == 0);
        CHECK(again.size() == talk.size() + 1);
        CHECK(again.at(9).message.content == "more");
    }
}

TEST_CASE("chat file: a damaged line is skipped, the others stay; a file of another kind is refused") {
    const TemporaryDirectory directory;
    const std::filesystem::path path = make_chat(directory / "chats", "talk");
    std::ofstream(path, std::ios::app) << "garbage \x01\n{\"head\": 77}\n{\"head\": 1}\n";
    Conversation talk;
    const ChatFile file({path, "", "", 0, 0}, "/m.gguf", talk);
    CHECK(file.damaged() == 2);
    CHECK(talk.size() == 2);
    CHECK(talk.head() == 1);
    const std::filesystem::path other = directory / "chats/other.jsonl";
    std::ofstream(other) << "{\"id\": 1}\n";
    Conversation none;
    CHECK_THROWS_AS(ChatFile({other, "", "", 0, 0}, "/m.gguf", none), InputError);
    CHECK(content(other) == "{\"id\": 1}\n");
    CHECK(saved_chats(directory / "chats").size() == 1);
}

TEST_CASE("chat file: a chat that is open elsewhere goes on in a copy") {
    const TemporaryDirectory directory;
    const std::filesystem::path path = make_chat(directory / "chats", "talk");
    Conversation first, second;
    ChatFile one({path, "", "", 0, 0}, "/m.gguf", first);
    ChatFile two({path, "", "", 0, 0}, "/m.gguf", second);
    CHECK_FALSE(one.is_copy());
    CHECK(two.is_copy());
    CHECK(two.path() != path);
    const std::string before = content(path);
    two.append({{"id", 3}, {"parent", 2}, {"role", "user"}, {"content", "more"}});
    CHECK(content(path) == before);
    CHECK(content(two.path()).find("more") != std::string::npos);
    CHECK(second.entries() == first.entries());
}

TEST_CASE("chat file: chats are found by number, title, file name and model") {
    const TemporaryDirectory directory;
    const std::filesystem::path folder = directory / "chats";
    const std::filesystem::path old = make_chat(folder, "old");
    std::filesystem::last_write_time(old, std::filesystem::last_write_time(old) - std::chrono::hours(1));
    const std::filesystem::path recent = make_chat(folder, "new");
    CHECK(find_chat(folder, "1")->path == recent);
    CHECK(find_chat(folder, "2")->path == old);
    CHECK(find_chat(folder, "2")->seconds >= 3600);
    CHECK_FALSE(find_chat(folder, "3"));
    CHECK_FALSE(find_chat(folder, "0"));
    CHECK(find_chat(folder, "old")->path == old);
    CHECK(find_chat(folder, old.stem().string())->path == old);
    CHECK_FALSE(find_chat(folder, "none"));
    CHECK(last_chat(folder, "")->path == recent);
    CHECK(last_chat(folder, "/m.gguf")->path == recent);
    CHECK_FALSE(last_chat(folder, "/other.gguf"));
    CHECK(saved_chats("").empty());
    CHECK(saved_chats(directory / "nowhere").empty());
}

}  // namespace
}  // namespace runnel::commands
