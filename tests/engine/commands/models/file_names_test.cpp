#include "engine/commands/models/file_names.h"

#include <doctest/doctest.h>

#include "engine/commands/models/hub_layout.h"

using namespace runnel::commands;

TEST_CASE("models: a file name tells the type and part") {
    const auto tag = [](const char *path) { return parse_file_name(path)->tag; };
    CHECK(tag("Qwen3-8B-Q4_K_M.gguf") == "Q4_K_M");
    CHECK(tag("sub/model.q8_0.gguf") == "Q8_0");
    CHECK(tag("gpt-oss-20b-mxfp4.gguf") == "MXFP4");
    CHECK(tag("Llama-3.1-8B-UD-IQ2_XXS-00001-of-00003.gguf") == "IQ2_XXS");
    CHECK(tag("model-BF16.gguf") == "BF16");
    CHECK(tag("tiny-8B.gguf") == "");
    CHECK(tag("Q4/model.gguf") == "");
    const auto split = parse_file_name("a/big-Q2_K-00002-of-00007.gguf");
    REQUIRE(split);
    CHECK(split->stem == "a/big-Q2_K");
    CHECK(split->part == 2);
    CHECK(split->parts == 7);
    for (const char *whole : {"big-00000-of-00007.gguf", "big-00008-of-00007.gguf", "big-0001-of-00007.gguf"})
        CHECK(parse_file_name(whole)->parts == 1);
    CHECK_FALSE(parse_file_name(".gguf"));
    CHECK_FALSE(parse_file_name("model.bin"));
}

TEST_CASE("models: the model of a repository is chosen by llama.cpp's rule") {
    const std::vector<std::string> files = {
        "README.md",   "m-BF16.gguf",       "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf",
        "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"};
    CHECK(choose_model(files, "") == "m-Q4_K_M-00001-of-00002.gguf");
    CHECK(choose_model(files, "q8_0") == "m-Q8_0.gguf");
    CHECK(choose_model(files, "BF16") == "m-BF16.gguf");
    CHECK_FALSE(choose_model(files, "Q2_K"));
    // Q4_K does not match Q4_K_M, and Q8_0 is preferred to the first file.
    CHECK_FALSE(choose_model(files, "Q4_K"));
    CHECK(choose_model({"a-F16.gguf", "a-Q8_0.gguf"}, "") == "a-Q8_0.gguf");
    CHECK(choose_model({"mmproj-a.gguf", "a-F16.gguf", "a-Q2_K.gguf"}, "") == "a-F16.gguf");
    CHECK_FALSE(choose_model({"mmproj-a.gguf", "model.safetensors"}, ""));
    CHECK(all_parts(files, "m-Q4_K_M-00001-of-00002.gguf") ==
          std::vector<std::string>{"m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"});
    CHECK(all_parts(files, "m-Q8_0.gguf") == std::vector<std::string>{"m-Q8_0.gguf"});
}

TEST_CASE("models: only safe names of repositories and files become part of a path") {
    for (const char *good : {"Qwen/Qwen3-0.6B-GGUF", "a/b", "TheBloke/Llama_2.7b"}) {
        CHECK(is_repo_name(good));
        CHECK(hub_repo(hub_folder(good)) == good);
    }
    for (const char *bad : {"", "a", "/b", "a/", "a/b/c", "../b", "a/..", "a/.b", "a/-b", "a/b--c", "a b/c",
                            "a/b\n", "a/b..c", "./m.gguf"})
        CHECK_FALSE(is_repo_name(bad));
    CHECK(hub_folder("Qwen/Qwen3-8B") == "models--Qwen--Qwen3-8B");
    for (const char *bad : {"models--", "models--a", "datasets--a--b", "models--a--b--c", "models--..--b"})
        CHECK_FALSE(hub_repo(bad));
    for (const char *good : {"m.gguf", "a/b/m.gguf", "..m.gguf"}) CHECK(is_safe_path(good));
    for (const char *bad : {"", "/m", "../m", "a/../m", "a//m", "a/", ".", "a\\m", "a\nm", "a/./m"})
        CHECK_FALSE(is_safe_path(bad));
    CHECK(is_safe_path(std::string(200, 'a')));
    CHECK_FALSE(is_safe_path(std::string(201, 'a')));
    CHECK(is_hex("09af", 4));
    CHECK_FALSE(is_hex("09AF", 4));
    CHECK_FALSE(is_hex("09a", 4));
}
