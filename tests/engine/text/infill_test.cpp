#include "engine/text/infill.h"

#include <doctest/doctest.h>

#include "tests/engine/text/vocabulary_file.h"

using namespace runnel;
using namespace runnel::testing;
using text::InfillTokens;

TEST_CASE("infill: the three tokens come from the metadata or are known control tokens; all are needed") {
    const auto known = byte_pair_file({"a b"}, {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}).load();
    const auto tokens = InfillTokens::of(known.file, known.tokenizer);
    REQUIRE(tokens);
    CHECK(known.tokenizer.piece(tokens->prefix) == "<|fim_prefix|>");
    CHECK(known.tokenizer.piece(tokens->suffix) == "<|fim_suffix|>");
    CHECK(known.tokenizer.piece(tokens->middle) == "<|fim_middle|>");

    auto file = byte_pair_file({"a b"}, {"<x>", "<y>", "<z>"});
    const auto x = static_cast<uint32_t>(*file.load().tokenizer.find("<x>"));
    file.number("tokenizer.ggml.fim_pre_token_id", x).number("tokenizer.ggml.fim_suf_token_id", x + 1);
    const auto two = file.load();
    CHECK(!InfillTokens::of(two.file, two.tokenizer));
    file.number("tokenizer.ggml.fim_mid_token_id", x + 2);
    const auto three = file.load();
    const auto named = InfillTokens::of(three.file, three.tokenizer);
    REQUIRE(named);
    CHECK(three.tokenizer.piece(named->middle) == "<z>");

    const auto none = byte_pair_file({"a b"}, {"<|fim_prefix|>", "<|fim_suffix|>"}).load();
    CHECK(!InfillTokens::of(none.file, none.tokenizer));
}

TEST_CASE("infill: prefix and suffix are plain text between the tokens") {
    const auto model = byte_pair_file({"a b"}, {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}).load();
    const auto tokens = InfillTokens::of(model.file, model.tokenizer);
    REQUIRE(tokens);
    std::string spelled;
    for (const text::TokenId id : tokens->prompt(model.tokenizer, "ab<|fim_suffix|>", "cd"))
        spelled += (model.tokenizer.is_control(id) ? "|" : "") + model.tokenizer.decode(id, true) + ",";
    CHECK(spelled == "|<|fim_prefix|>,ab,<,|,f,i,m,_,s,u,f,f,i,x,|,>,|<|fim_suffix|>,c,d,|<|fim_middle|>,");
}
