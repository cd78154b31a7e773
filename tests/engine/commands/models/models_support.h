// Folders laid out as by Hugging Face's library, llama.cpp, LM Studio and ollama, and the program run in such
// a home.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/temporary.h"

namespace runnel::testing {

inline const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

// A home directory with caches; the real home directory is not visible.
class Home {
  public:
    const std::filesystem::path &path() const { return directory_.path(); }
    std::filesystem::path hub() const { return path() / ".cache/huggingface/hub"; }

    std::vector<std::string> environment() const {
        std::vector<std::string> all = {"HOME=" + path().string(),
                                        "HF_TOKEN=", "HF_TOKEN_PATH=", "HF_ENDPOINT="};
        for (const char *name :
             {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "LLAMA_CACHE",
              "OLLAMA_MODELS", "XDG_CONFIG_HOME", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "http_proxy",
              "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "NO_PROXY"})
            all.push_back(std::string(name) + "=");
        return all;
    }
    Process process(std::vector<std::string> arguments) const {
        Process p = testing::process(std::move(arguments));
        p.environment = environment();
        return p;
    }
    Result run(std::vector<std::string> arguments) const { return execute(process(std::move(arguments))); }

    // A file in the hub cache whose blob is `content`.
    void add_hub(const std::string &folder, const std::string &file,
                 const std::filesystem::path &content) const {
        const auto root = hub() / folder, link = root / "snapshots" / kCommit / file;
        const std::string blob = "blob-of-" + std::filesystem::path(file).filename().string();
        std::filesystem::create_directories(root / "blobs");
        std::filesystem::create_directories(link.parent_path());
        std::filesystem::copy_file(content, root / "blobs" / blob);
        std::filesystem::create_symlink((root / "blobs" / blob).lexically_relative(link.parent_path()), link);
        write_text(root / "refs/main", kCommit);
    }

  private:
    TemporaryDirectory directory_;
};

}  // namespace runnel::testing
