// Models by name, and their list; runs the program in a home directory of its own.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "engine/text/json.h"
#include "tests/engine/commands/models/models_support.h"

using namespace runnel::testing;
namespace fs = std::filesystem;
using runnel::text::Json;

namespace {

const std::string kBlob = std::string(60, 'a') + "0123";

void add_ollama(const Home &home, const std::string &manifest, const std::string &digest) {
    write_text(home.path() / ".ollama/models/manifests" / manifest,
               R"({"schemaVersion": 2, "layers": [{"mediaType": "application/vnd.ollama.image.license",
                   "digest": "sha256:00"}, {"mediaType": "application/vnd.ollama.image.model", "digest": ")" +
                   digest + R"("}]})");
}

std::map<std::string, Json> listed(const Home &home) {
    const Result r = home.run({"list", "--json"});
    CAPTURE(r.err);
    REQUIRE(r.code == 0);
    std::map<std::string, Json> models;
    const Json all = runnel::text::parse_json(r.out);
    for (const Json &model : all.at("models")) {
        CAPTURE(model.dump());
        CHECK(models.emplace(model["name"].get<std::string>(), model).second);
    }
    return models;
}

Result complete(const Home &home, const std::string &model) {
    return home.run({"run", model, "--raw", "Once upon", "-n", "3", "--temp", "0", "-t", "1"});
}

}  // namespace

TEST_CASE("models: the list shows the models of all caches, and every name in it works as MODEL") {
    if (absent()) return;
    const Home home;
    home.add_hub("models--some--tales-GGUF", "tales-Q8_0.gguf", demo_model());
    home.add_hub("models--some--tales-GGUF", "mmproj-tales-Q8_0.gguf", demo_model());
    home.add_hub("models--some--two-GGUF", "one-Q8_0.gguf", demo_model());
    home.add_hub("models--some--two-GGUF", "sub/other-Q8_0.gguf", demo_draft());
    fs::create_directories(home.path() / ".cache/llama.cpp");
    fs::copy_file(demo_draft(), home.path() / ".cache/llama.cpp/ggml-org_small_small.gguf");
    fs::create_directories(home.path() / ".lmstudio/models/maker/Tales");
    fs::copy_file(demo_model(), home.path() / ".lmstudio/models/maker/Tales/tales-q8_0.gguf");
    add_ollama(home, "registry.ollama.ai/library/tales/2.9m", "sha256:" + kBlob);
    add_ollama(home, "registry.ollama.ai/library/tales/latest", "sha256:" + kBlob);
    fs::create_directories(home.path() / ".ollama/models/blobs");
    fs::copy_file(demo_model(), home.path() / ".ollama/models/blobs" / ("sha256-" + kBlob));

    const auto models = listed(home);
    const std::string wanted = complete(home, demo_model().string()).out;
    const std::map<std::string, std::string> stores = {{"some/tales-GGUF:Q8_0", "huggingface"},
                                                       {"some/two-GGUF/one-Q8_0.gguf", "huggingface"},
                                                       {"some/two-GGUF/sub/other-Q8_0.gguf", "huggingface"},
                                                       {"ggml-org_small_small", "llama.cpp"},
                                                       {"maker/Tales:Q8_0", "lmstudio"},
                                                       {"tales:2.9m", "ollama"},
                                                       {"tales:latest", "ollama"}};
    CHECK(models.size() == stores.size());
    REQUIRE(wanted.size() > 2);
    for (const auto &entry : stores) {
        const std::string &name = entry.first, &store = entry.second;
        CAPTURE(name);
        REQUIRE(models.count(name) == 1);
        const Json &model = models.at(name);
        CHECK(model["store"] == store);
        CHECK(model["type"] == "Q8_0");
        CHECK(model["architecture"] == "llama");
        CHECK(model["fits"] == true);
        CHECK(model["bytes"] == fs::file_size(model["path"].get<std::string>()));
        CHECK_FALSE(model.contains("problem"));
        const Result r = complete(home, name);
        CHECK(r.code == 0);
        const bool is_draft = name.find("other") != name.npos || name.find("small") != name.npos;
        CHECK((r.out == wanted || is_draft));
    }
    // Shorter forms: a repository, the type in any case, ollama's latest, a file's name.
    for (const char *name :
         {"some/tales-GGUF", "some/tales-GGUF:q8_0", "tales", "maker/Tales", "one-Q8_0", "one-Q8_0.gguf"}) {
        CAPTURE(std::string(name));
        CHECK(complete(home, name).out == wanted);
    }
    const Result draft = home.run({"run", "tales", "-md", "ggml-org_small_small", "--raw", "Once upon", "-n",
                                   "3", "--temp", "0", "-t", "1"});
    CHECK(draft.out == wanted);
    const std::string table = home.run({"list"}).out;
    CHECK(table.starts_with("NAME"));
    CHECK(table.find("~/.lmstudio/models/maker/Tales/tales-q8_0.gguf") != table.npos);
}

TEST_CASE("models: damaged and foreign files are listed with the reason") {
    if (absent()) return;
    const Home home;
    TemporaryDirectory files;
    write_text(files / "web.gguf", "<!DOCTYPE html><html>");
    fs::copy_file(demo_model(), files / "cut.gguf");
    fs::resize_file(files / "cut.gguf", 700'000);
    home.add_hub("models--a--web", "web.gguf", files / "web.gguf");
    home.add_hub("models--a--cut", "cut.gguf", files / "cut.gguf");
    home.add_hub("models--a--torch", "model.safetensors", files / "web.gguf");
    home.add_hub("models--a--gone", "gone-Q4_0.gguf", demo_model());
    fs::remove_all(home.hub() / "models--a--gone/blobs");
    home.add_hub("models--a--part", "part-00001-of-00002.gguf", demo_draft());
    // Commits and digests that would lead to other folders, and invalid manifests.
    write_text(home.hub() / "models--a--far/refs/main", "../../../models--a--cut/snapshots/" + kCommit);
    write_text(home.hub() / "models--a--far/snapshots/..x/far.gguf", "x");
    write_text(home.path() / ".ollama/x.gguf", "GGUF");
    add_ollama(home, "registry.ollama.ai/library/evil/1", "sha256:../../x.gguf");
    add_ollama(home, "registry.ollama.ai/library/evil/2", "sha256:" + std::string(64, 'A'));
    add_ollama(home, "registry.ollama.ai/library/gone/1", "sha256:" + kBlob);
    write_text(home.path() / ".ollama/models/manifests/registry.ollama.ai/library/bad/1",
               "{\"layers\": [1, {");
    write_text(home.path() / ".ollama/models/manifests/registry.ollama.ai/library/bad/\x1b[2Jred", "[]");

    const auto models = listed(home);
    const std::map<std::string, std::string> problems = {
        {"a/web/web.gguf", "web page"}, {"a/cut/cut.gguf", "beyond the end"},
        {"a/torch", "safetensors"},     {"a/gone:Q4_0", "missing"},
        {"evil:1", "no valid digest"},  {"evil:2", "no valid digest"},
        {"gone:1", "missing"},          {"bad:1", "not JSON"},
        {"bad:\x1b[2Jred", "no model"}};
    for (const auto &entry : problems) {
        const std::string &name = entry.first, &problem = entry.second;
        CAPTURE(name);
        REQUIRE(models.count(name) == 1);
        CHECK(models.at(name)["problem"].get<std::string>().find(problem) != std::string::npos);
        CHECK(models.at(name)["fits"].is_null());
    }
    CHECK(models.size() == problems.size() + 1);  // 1: a whole model whose name looks like that of a part
    const Result table = home.run({"list"});
    CHECK(table.code == 0);
    CHECK(table.out.find('\x1b') == std::string::npos);
    CHECK(table.out.find("\\x1b[2Jred") != std::string::npos);
    const Result gone = home.run({"run", "a/gone:Q4_0", "x"});
    CHECK(gone.code == 2);
    check_message(gone);
}

TEST_CASE("models: environment variables set the caches' places") {
    if (absent()) return;
    const Home home;
    home.add_hub("models--a--b", "b-Q8_0.gguf", demo_draft());
    fs::rename(home.hub(), home.path() / "elsewhere");
    const auto names = [&](const std::string &variable) {
        Process p = home.process({"list"});
        if (!variable.empty()) p.environment.push_back(variable);
        return execute(p);
    };
    CHECK(names("").out.empty());
    CHECK(names("").err.find("no models") != std::string::npos);
    const std::string root = (home.path() / "elsewhere").string();
    CHECK(names("HF_HUB_CACHE=" + root).out.find("a/b:Q8_0") != std::string::npos);
    CHECK(names("LLAMA_CACHE=" + root).out.find("a/b:Q8_0") != std::string::npos);
    fs::create_directories(home.path() / "hf");
    fs::rename(home.path() / "elsewhere", home.path() / "hf/hub");
    CHECK(names("HF_HOME=" + (home.path() / "hf").string()).out.find("a/b:Q8_0") != std::string::npos);
    fs::create_directories(home.path() / "xdg/huggingface");
    fs::rename(home.path() / "hf/hub", home.path() / "xdg/huggingface/hub");
    CHECK(names("XDG_CACHE_HOME=" + (home.path() / "xdg").string()).out.find("a/b:Q8_0") !=
          std::string::npos);
}

TEST_CASE("models: a folder means the one model in it; an unknown name gets a hint") {
    if (absent()) return;
    const Home home;
    const fs::path folder = home.path() / "one";
    fs::create_directories(folder);
    fs::copy_file(demo_model(), folder / "tales.gguf");
    write_text(folder / "mmproj-tales.gguf", "GGUF");
    CHECK(complete(home, folder.string()).out == complete(home, demo_model().string()).out);
    fs::copy_file(demo_draft(), folder / "draft.gguf");
    const std::pair<std::vector<std::string>, std::string> cases[] = {
        {{"run", folder.string(), "x"}, "2 models; name one of them: draft.gguf, tales.gguf"},
        {{"run", home.path().string() + "/.x", "x"}, "no such file"},
        {{"run", (home.path() / "empty").string(), "x"}, "without a GGUF file"},
        {{"run", (folder / "tales.gguff").string(), "x"}, "did you mean"},
        {{"run", "Qwen/Qwen3-0.6B-GGUF", "x"}, "not in a cache"},
        {{"lsit"}, "did you mean list?"}};
    fs::create_directories(home.path() / "empty");
    for (const auto &[arguments, message] : cases) {
        const Result r = home.run(arguments);
        CAPTURE(r.err);
        CHECK(r.code == 2);
        check_message(r);
        CHECK(r.err.find(message) != std::string::npos);
    }
}
