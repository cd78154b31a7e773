#include "engine/commands/arguments.h"

#include <doctest/doctest.h>

#include "engine/commands/io.h"

using namespace runnel::commands;

TEST_CASE("arguments: words are split into model and text") {
    using Option = std::optional<std::string>;
    Words w = split_words({"m.gguf", "text"}, {}, {}, true);
    CHECK(w.model == "m.gguf");
    CHECK(w.text == "text");
    w = split_words({"text"}, Option("m.gguf"), {}, true);
    CHECK(w.model == "m.gguf");
    CHECK(w.text == "text");
    w = split_words({"text"}, {}, Option("default.gguf"), true);
    CHECK(w.model == "default.gguf");
    CHECK(w.text == "text");
    w = split_words({"other.gguf"}, {}, Option("default.gguf"), true);
    CHECK(w.model == "other.gguf");
    CHECK_FALSE(w.text);
    w = split_words({"other"}, {}, Option("default.gguf"), false);
    CHECK(w.model == "other");
    CHECK_THROWS_AS(split_words({}, {}, {}, true), UsageError);
    CHECK_THROWS_AS(split_words({"a", "b", "c"}, {}, {}, true), UsageError);
    CHECK_THROWS_AS(split_words({"a", "b"}, {}, {}, false), UsageError);
}
