#include "engine/commands/chat/conversation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "engine/commands/chat/attachment.h"
#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/io.h"
#include "engine/text/utf8.h"
#include "tests/support/temporary.h"

namespace runnel::commands {
namespace {

using Id = Conversation::Id;
using Ids = std::vector<Id>;
using testing::TemporaryDirectory;

Conversation::Node user(const std::string &text) {
    return {.message = {"user", text}};
}
Conversation::Node assistant(const std::string &text) {
    return {.message = {"assistant", text}};
}

// Message 1 "a" has the answers 2 and 3; 3 is followed by message 4 "b" and its answer 5.
Conversation example() {
    Conversation talk;
    talk.add(user("a"));
    talk.add(assistant("first"));
    talk.visit(1);
    talk.add(assistant("second"));
    talk.add(user("b"));
    talk.add(assistant("third"));
    return talk;
}

TEST_CASE("conversation: an old answer stays in the tree beside its replacement") {
    Conversation talk = example();
    CHECK(talk.size() == 5);
    CHECK(talk.visible() == Ids{1, 3, 4, 5});
    CHECK(talk.last_question() == 4);
    const Conversation::Fork back = talk.fork(-1);
    CHECK(back.at == 3);
    CHECK(back.next == 2);
    CHECK(back.number == 1);
    CHECK(back.count == 2);
    CHECK(talk.fork(1).next == Conversation::kRoot);
    talk.go(talk.end_of(back.next));
    CHECK(talk.visible() == Ids{1, 2});
    talk.go(talk.end_of(talk.fork(1).next));
    CHECK(talk.head() == 5);  // the last message of that branch
    CHECK(Conversation().fork(1).at == Conversation::kRoot);
    CHECK(Conversation().last_question() == Conversation::kRoot);
}

TEST_CASE(
    "conversation: a summary comes first in the prompt; the messages it hides are left out only after it") {
    Conversation talk = example();
    talk.add({.message = {"user", "sum up"}, .hides = {1, 3}, .is_summary = true});
    talk.add({.message = {"assistant", "in short"}, .is_summary = true});
    CHECK(talk.visible() == Ids{6, 7, 4, 5});
    CHECK(talk.transcript({4}).messages.size() == 3);
    talk.go(5);
    CHECK(talk.visible() == Ids{1, 3, 4, 5});
}

TEST_CASE("conversation: replaying its entries gives the same conversation, after any steps") {
    for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        std::vector<Json> recorded;
        Conversation talk([&](const Json &entry) { recorded.push_back(entry); });
        for (int i = 0; i < 40; ++i) {
            const auto some = static_cast<Id>(random() % (talk.size() + 1));
            switch (random() % 5) {
                case 0:
                    talk.go(some);
                    break;
                case 1:
                    talk.visit(some);  // without an entry
                    talk.add(assistant("m"));
                    break;
                case 2:
                    talk.set_system("s" + std::to_string(i));
                    break;
                case 3:
                    talk.add({.message = {"user", "\xc3\xbc\n\x01", "why"}, .hides = {some}, .stream = 7});
                    break;
                default:
                    talk.add(user("x" + std::to_string(i)));
            }
        }
        Conversation replayed, copied;
        for (const Json &entry : recorded) replayed.apply(parse_json(dump(entry)));
        for (const Json &entry : talk.entries()) copied.apply(entry);
        for (const Conversation *other : {&replayed, &copied}) {
            CHECK(other->system() == talk.system());
            CHECK(other->visible() == talk.visible());
            CHECK(other->entries() == talk.entries());
        }
        const std::string tree = tree_text(talk, 80, true);
        CHECK(static_cast<size_t>(std::count(tree.begin(), tree.end(), '\n')) == talk.size());
        for (const char c : tree) CHECK((c == '\n' || static_cast<unsigned char>(c) >= ' '));
        for (size_t begin = 0; begin < tree.size();) {
            const size_t end = tree.find('\n', begin);
            CHECK(end - begin <= 80 + 1);  // one character of two bytes
            begin = end + 1;
        }
    }
}

TEST_CASE("conversation: an entry that does not fit changes nothing") {
    Conversation talk = example();
    const std::vector<Json> before = talk.entries();
    for (const char *text :
         {"{}", "[]", "1", R"({"head": 99})", R"({"head": -1})", R"({"head": "1"})", R"({"head": 1e300})",
          R"({"system": 1})", R"({"title": []})", R"({"id": 6, "parent": 9, "role": "user", "content": ""})",
          R"({"id": 2, "parent": 1, "role": "user", "content": ""})",
          R"({"id": 6, "role": "user", "content": ""})", R"({"id": 6, "parent": 1, "content": ""})",
          R"({"id": 99999999999999999999, "parent": 1})"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(talk.apply(parse_json(text)), InputError);
        CHECK(talk.entries() == before);
    }
}

TEST_CASE("conversation: the tree shows the path, branches and numbers") {
    CHECK(tree_text(example(), 40, true) ==
          "*1 > a\n"
          " 2 |- first\n"
          "*3 `- second\n"
          "*4    > b\n"
          "*5    third\n");
    CHECK(tree_text(example(), 40, false).find(" 2 \u251c\u2500 first\n*3 \u2514\u2500 second\n") !=
          std::string::npos);
    Conversation wide;
    wide.add(user(std::string(200, 'w') + "\x1b[31m"));
    CHECK(tree_text(wide, 20, true) == "*1 > " + std::string(12, 'w') + "...\n");
    CHECK(clipped("\u4e2d\u6587\u4e2d\u6587", 7) == "\u4e2d\u6587...");
    CHECK(clipped("a\nb\x1b", 20) == "a b\\x1b");
}

TEST_CASE("conversation: as Markdown it has every message of the path as it was said") {
    Conversation talk = example();
    talk.set_title("notes");
    const std::string text = markdown(talk);
    CHECK(text == "# notes\n\n## You\n\na\n\n## Answer\n\nsecond\n\n## You\n\nb\n\n## Answer\n\nthird\n");
}

TEST_CASE("attachments: a message names files with @, and has their text between fences") {
    const TemporaryDirectory directory;
    const std::string notes = (directory / "notes.txt").string(), other = (directory / "two words").string();
    std::ofstream(notes) << "a\n```\nb";
    std::ofstream(other) << "x";
    CHECK(named_files("see @" + notes + ", and @\"" + other + "\" but not me@" + notes + " or @nobody") ==
          std::vector<std::string>{notes, other});
    CHECK(named_files("@").empty());
    CHECK(named_files("@" + directory.path().string()).empty());
    const std::vector<Attachment> files = {read_attachment(notes)};
    CHECK(with_attachments(files, "why?") == "notes.txt:\n````\na\n```\nb\n````\n\nwhy?");
    CHECK(with_attachments(files, "") == "a\n```\nb");
    CHECK(with_attachments({}, "why?") == "why?");
    CHECK(described(files[0]) == "notes.txt (3 lines, 7 bytes)");
    std::ofstream(other) << "\xff";
    CHECK_THROWS_AS(read_attachment(other), InputError);
    std::ofstream(other) << " \n";
    CHECK_THROWS_AS(read_attachment(other), InputError);
    CHECK_THROWS_AS(read_attachment((directory / "none").string()), UsageError);
}

TEST_CASE("chat: the clipboard sequence holds the text in base64") {
    for (const auto &[text, base64] : {std::pair{"", ""},
                                       {"f", "Zg=="},
                                       {"fo", "Zm8="},
                                       {"foo", "Zm9v"},
                                       {"foob", "Zm9vYg=="},
                                       {"fooba", "Zm9vYmE="},
                                       {"foobar", "Zm9vYmFy"}})
        CHECK(clipboard_sequence(text) == "\x1b]52;c;" + std::string(base64) + "\x07");  // RFC 4648, 10
}

}  // namespace
}  // namespace runnel::commands
