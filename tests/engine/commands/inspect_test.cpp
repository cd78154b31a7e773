// What `runnel inspect`, `bench` and `devices` print about models and the machine. Needs $RUNNEL.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/model_families.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;
using nlohmann::json;

TEST_CASE("inspect --supported needs no model and lists families with what was checked") {
    if (absent()) return;
    const Result table = runnel_with({"inspect", "--supported"});
    CHECK(table.code == 0);
    CHECK(table.out.find("phi3, LongRoPE long") != std::string::npos);
    const json all = json::parse(runnel_with({"inspect", "--supported", "--json"}).out);
    CHECK(all["architectures"].size() >= 28);
    // The output equals the record, and the record is close enough to the peers.
    std::ifstream record("tests/data/verified_families.tsv");
    REQUIRE(record.is_open());
    std::string line;
    std::getline(record, line);
    size_t rows = 0;
    for (; std::getline(record, line); ++rows) {
        CAPTURE(line);
        REQUIRE(rows < all["verified"].size());
        const json &shown = all["verified"][rows];
        std::istringstream fields(line);
        std::string family, peer;
        std::getline(fields, family, '\t');
        std::getline(fields, peer, '\t');
        double mean = 0, largest = 0, same_top = 0;
        REQUIRE(static_cast<bool>(fields >> mean >> largest >> same_top));
        const json expected = {{"family", family},
                               {"peer", peer},
                               {"mean_kl", mean},
                               {"max_kl", largest},
                               {"same_top", same_top}};
        CHECK(shown == expected);
        CHECK(mean < 1e-4);
    }
    CHECK(rows == all["verified"].size());
    CHECK(rows > 55);
    // Shapes that models seldom have: of every family.
    std::map<std::string, std::vector<double>> odd;
    std::ifstream odd_record("tests/data/odd_shapes.tsv");
    REQUIRE(odd_record.is_open());
    std::getline(odd_record, line);
    while (std::getline(odd_record, line)) {
        CAPTURE(line);
        std::istringstream fields(line);
        std::string family, shape, peer, mean;
        for (std::string *field : {&family, &shape, &peer, &mean}) std::getline(fields, *field, '\t');
        odd[family].push_back(std::abs(std::stod(mean)));
        CHECK(odd[family].back() < 1e-4);
    }
    CHECK(odd.size() == all["odd_shapes"].size());
    for (const json &row : all["odd_shapes"]) {
        const std::vector<double> &divergences = odd[row["family"]];
        CAPTURE(row["family"]);
        CHECK(row["shapes"] == divergences.size());
        CHECK(std::abs(row["mean_kl"].get<double>()) == std::ranges::max(divergences));
    }
    for (const FamilyFiles &family : family_files()) {
        CAPTURE(family.name);
        CHECK(odd[family.name].size() == 3);
    }
    CHECK(runnel_with({"inspect", "--supported", "model.gguf"}).code == 2);
}

TEST_CASE("inspect, bench and devices print JSON") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const json i = json::parse(runnel_with({"inspect", model, "--json"}).out);
    CHECK(i["architecture"] == "llama");
    CHECK(i["parameters"].get<int64_t>() > 1000);
    CHECK(i["bits_per_weight"] == 32.0);
    CHECK(i["context_length"] == 512);
    CHECK(i["tensors"][0]["shape"].size() >= 1);
    CHECK(i["memory"]["weights"].get<int64_t>() > 4000);
    // 2 layers, 2 heads, 16 + 16 values of 2 bytes.
    CHECK(i["memory"]["cache_per_1k_tokens"] == 1024 * 2 * 2 * 32 * 2);
    CHECK(i["metadata"]["llama.block_count"] == 2);
    CHECK(i["metadata"]["tokenizer.ggml.tokens"]["length"] == 320);
    CHECK(json::parse(
              runnel_with({"inspect", model, "--json", "--arrays"}).out)["metadata"]["tokenizer.ggml.tokens"]
              .size() == 320);
    const json b = json::parse(
        runnel_with({"bench", model, "-p", "16", "-n", "8", "-r", "2", "--depth", "0,32", "--json"}).out);
    REQUIRE(b["tests"].size() == 4);
    CHECK(b["tests"][0]["tps_mean"].get<double>() > 0);
    CHECK(b["tests"][3]["depth"] == 32);
    CHECK(b["tests"][3]["bytes_per_token"].get<double>() > b["tests"][1]["bytes_per_token"].get<double>());
    CHECK(b["bandwidth_bytes_per_second"].get<double>() > 0);
    CHECK(json::parse(runnel_with({"devices", "--json"}).out)["devices"][0]["kind"] == "cpu");
    CHECK(runnel_with({"--version"}).out.starts_with("runnel "));
    CHECK(runnel_with({"run", "--help"}).out.find("--temp") != std::string::npos);
}

// A file may claim any size; a sparse file takes no space on the disk.
TEST_CASE("inspect reads no more of long arrays and texts than it shows") {
    if (absent()) return;
    using runnel::gguf::ValueType;
    constexpr uint64_t kArray = 100'000'000, kText = 200'000'000;
    const TemporaryDirectory directory;
    const std::string path = (directory / "sparse.gguf").string();
    GgufBytes begin, middle;
    begin.header(0, 4).key("general.architecture", ValueType::String).put_string("llama");
    begin.key("long.array", ValueType::Array).array(ValueType::U8, kArray);
    middle.key("long.text", ValueType::String).put<uint64_t>(kText);
    GgufBytes end;  // texts, the first of them long
    end.key("long.texts", ValueType::Array).array(ValueType::String, 20).put<uint64_t>(kText);
    write_file(path, begin.span());
    std::filesystem::resize_file(path, begin.span().size() + kArray);
    const auto add = [&](const GgufBytes &bytes, uint64_t hole) {
        std::ofstream out(path, std::ios::binary | std::ios::app);
        out.write(reinterpret_cast<const char *>(bytes.span().data()),
                  static_cast<std::streamsize>(bytes.span().size()));
        out.close();
        std::filesystem::resize_file(path, std::filesystem::file_size(path) + hole);
    };
    add(middle, kText);
    add(end, kText + 19 * 8);
    const json all = json::parse(runnel_with({"inspect", path, "--json"}).out)["metadata"];
    CHECK(all["long.array"]["length"] == kArray);
    CHECK(all["long.array"]["first"].size() == 8);
    CHECK(all["long.text"]["length"] == kText);
    CHECK(all["long.text"]["first"].get<std::string>().size() == 1024);
    CHECK(all["long.texts"]["first"].size() == 8);
    CHECK(all["long.texts"]["first"][0]["length"] == kText);
    const std::string text = runnel_with({"inspect", path}).out;
    CHECK(text.find("(100000000 in all)") != std::string::npos);
    CHECK(text.find("(200000000 bytes in all)") != std::string::npos);
#ifndef __SANITIZE_ADDRESS__  // the sanitizer reserves more
    const std::string limited = "ulimit -v 900000; " + shell_word(*program_under_test()) + " inspect " +
                                shell_word(path) + " --json >/dev/null";
    CHECK(std::system(limited.c_str()) == 0);
#endif
}

TEST_CASE("inspect: the plan for a window, cache types and sequences equals the memory of a run") {
    if (absent()) return;
    const std::string model = tiny().path.string();
    const auto memory = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"inspect", model, "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Result got = runnel_with(std::move(arguments));
        CAPTURE(got.err);
        REQUIRE(got.code == 0);
        return json::parse(got.out)["memory"];
    };
    constexpr int64_t kCell = 2 * 2 * 32 * 2;  // 2 layers, 2 heads, 16 + 16 values of 2 bytes
    const json plain = memory({"-c", "32k"});
    CHECK(plain["cache_at_context"] == 32768 * kCell);
    CHECK(plain["sequences"] == 1);
    CHECK(plain["type_k"] == "f16");
    CHECK(memory({"-c", "32k", "--sequences", "3"})["cache_at_context"] == 3 * 32768 * kCell);
    // 16 values are padded to the 32 of a block: 34 and 18 bytes.
    const json types = memory({"-c", "32k", "-ctk", "q8_0", "-ctv", "q4_0"});
    CHECK(types["cache_at_context"] == 32768 * 2 * 2 * (34 + 18));
    CHECK(types["type_v"] == "q4_0");
    const json window = memory({"-c", "32k", "--window", "512"});
    CHECK(window["cache_at_context"].get<int64_t>() < 2048 * kCell);
    CHECK(window["cache_per_1k_tokens"] == 0);
    CHECK(runnel_with({"inspect", model, "--sinks", "4"}).code == 2);
}

TEST_CASE("inspect --plan: a file or a bare shape gives sizes, formulas and a plot") {
    if (absent()) return;
    const TemporaryDirectory directory;
    const std::string model = tiny().path.string(), svg = (directory / "plan.svg").string();
    const Result got = runnel_with({"inspect", model, "--plan", "--json", "-c", "1000", "--sequences", "2",
                                    "--memory", "20M", "--plot", svg});
    CAPTURE(got.err);
    REQUIRE(got.code == 0);
    const json plan = json::parse(got.out);
    CHECK(plan["context"] == 1000);
    CHECK(plan["sequences"] == 2);
    CHECK(plan["memory"] == 20 << 20);
    CHECK(plan["cell"]["bytes_per_token"] == 256);
    CHECK(plan["cell"]["formula"] == "2 x 2 layers x 2 heads x 16 values x 2 bytes");
    REQUIRE(plan["cell"]["by_heads"].size() == 3);  // 4, 2 and 1 heads for K and V
    CHECK(plan["cell"]["by_heads"][0]["bytes_per_token"] == 512);
    CHECK(plan["cell"]["by_heads"][2]["bytes_per_token"] == 128);
    REQUIRE(plan["rows"].size() == 30);
    CHECK(plan["rows"][0]["format"] == "the file");
    CHECK(plan["rows"][0]["bits_per_weight"] == 32);
    CHECK(plan["rows"][0]["cache_bytes"] == 2 * 32 * 32 * 256);  // twice 1,000 tokens in blocks of 32
    for (const json &row : plan["rows"]) {
        CHECK(row["bytes"] == row["weight_bytes"].get<double>() + row["cache_bytes"].get<double>());
        CHECK(row["sequences_that_fit"].get<int64_t>() > 10);
    }
    std::ifstream picture(svg);
    std::string text((std::istreambuf_iterator<char>(picture)), {});
    CHECK(text.starts_with("<svg xmlns"));
    CHECK(text.find("Sequences that fit in 20.0 MiB") != std::string::npos);

    const Result shape = runnel_with({"inspect", "--plan", "--memory", "80G", "--shape",
                                      "layers=80,width=8192,heads=64,kv-heads=8,ff=28672,vocab=128256"});
    CAPTURE(shape.err);
    REQUIRE(shape.code == 0);
    for (const char *part : {"70.55 billion parameters", "= 327680 bytes",
                             "MHA (64) 2621440 bytes, GQA (8) 327680", "F16        16.00    141.1"})
        CHECK(shape.out.find(part) != std::string::npos);
    std::istringstream in(shape.out);
    for (std::string line; std::getline(in, line);)
        if (!line.starts_with("K and V"))
            CHECK(std::count_if(line.begin(), line.end(),
                                [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }) <= 80);
    CHECK(runnel_with({"inspect", "--plan", "--shape", "layers=2"}).code == 2);
    CHECK(runnel_with({"inspect", model, "--memory", "80G"}).code == 2);
    CHECK(runnel_with({"inspect", model, "--plan", "--plot", "plan.png"}).code == 2);
}

TEST_CASE("inspect --plan --devices: layers, context and a speed that is called a prediction") {
    if (absent()) return;
    const std::vector<std::string> shape = {"inspect", "--plan", "--shape",
                                            "layers=80,width=8192,heads=64,kv-heads=8,ff=28672,vocab=128256"};
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), shape.begin(), shape.end());
        return runnel_with(more);
    };
    const Result text = with({"--devices", "4x80G@3350", "--link", "nvlink"});
    CAPTURE(text.err);
    REQUIRE(text.code == 0);
    for (const char *part :
         {"layers on 4 x 80.0 GiB (3350 GB/s)", "3 x 20 + 21", "predicted, not measured",
          "by --split tensor (its tokens/s with columns: by --split columns),\nand by --split context",
          "an assumed link, nvlink: 450.0 GB/s, 20 microseconds"})
        CHECK(text.out.find(part) != std::string::npos);
    const Result plain = with({"--devices", "24G,24G,16G"});
    CHECK(plain.out.find("do not fit)") != std::string::npos);
    CHECK(plain.out.find("not measured") == std::string::npos);
    const Result got = with({"--devices", "2x24G@1000,16G@500", "--json", "-c", "16k"});
    REQUIRE(got.code == 0);
    const json split = json::parse(got.out)["split"];
    CHECK(split["devices"].size() == 3);
    CHECK(split["devices"][2]["bandwidth"] == 5e11);
    CHECK(split["link"]["name"] == "pcie4");
    CHECK(split["predicted_at"] == 16384);
    CHECK(split["plans"].size() == 9);
    for (const json &plan : split["plans"]) {
        int layers = plan["layers_that_do_not_fit"];
        for (const int on_device : plan["layers"]) layers += on_device;
        CHECK(layers == 81);
        CHECK(plan["predicted_tokens_per_second"].is_null() == (plan["layers_that_do_not_fit"] > 0));
        CHECK((plan["context_that_fits"] >= 16384) == (plan["layers_that_do_not_fit"] == 0));
        for (const char *how : {"tensor", "columns", "context"})
            CHECK(plan[how]["predicted_tokens_per_second"].is_null() ==
                  (plan[how]["context_that_fits"] == 0));
    }
    const std::string model = tiny().path.string();
    CHECK(runnel_with({"inspect", model, "--plan", "--devices", "1G,2G"}).code == 0);
    CHECK(runnel_with({"inspect", model, "--devices", "1G"}).code == 2);
    for (const char *bad :
         {"", "4x", "x80G", "0x80G", "80G,", "65x1G", "80G@", "80G@0", "0G", "4x80Q", "1x1G@-1"})
        CHECK(with({"--devices", bad}).code == 2);
    CHECK(with({"--devices", "4x80G", "--link", "isdn"}).code == 2);
}
