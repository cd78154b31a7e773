#include "engine/decode/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "engine/decode/engine.h"
#include "engine/decode/single_sequence.h"
#include "kernels/device.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"

using namespace runnel;
using decode::choose_device;
using decode::DeviceRequest;

namespace {

// A device that only reports its memory.
class ToyGpu final : public kernels::Device {
  public:
    using Free = std::function<size_t()>;
    ToyGpu(size_t number, size_t total, Free free) : number_(number), total_(total), free_(std::move(free)) {}
    std::string name() const override { return "cuda:" + std::to_string(number_); }
    kernels::DeviceInfo info() const override { return {"toy", "cuda", total_, 0}; }
    size_t free_memory() const override { return free_(); }
    kernels::MemoryNeed need(const kernels::Program &, const kernels::CacheConfig &, int32_t) const override {
        return {};
    }
    size_t cache_need(const kernels::Program &, const kernels::CacheConfig &, int32_t) const override {
        return 0;
    }
    std::vector<std::string> missing(const kernels::Program &) const override { return {}; }
    std::unique_ptr<kernels::Backend> backend() const override { return nullptr; }

  private:
    size_t number_, total_;
    Free free_;
};

kernels::Devices toys(const std::vector<std::pair<size_t, ToyGpu::Free>> &memory) {
    kernels::Devices all{.cpu = kernels::cpu_device(), .gpus = {}, .gpu_kind = "cuda"};
    all.gpus_compiled_in = true;
    all.why_no_gpu = memory.empty() ? "no NVIDIA driver was found" : "";
    for (const auto &[total, free] : memory)
        all.gpus.push_back(std::make_shared<ToyGpu>(all.gpus.size(), total, free));
    return all;
}

const kernels::Devices kNone = toys({});
const kernels::Devices kTwo = toys({{100, [] { return size_t{10}; }}, {100, [] { return size_t{90}; }}});

// The names of the chosen GPUs, in order; "" for the CPU.
std::string name_of(const decode::DeviceChoice &choice) {
    std::string names;
    for (const kernels::DevicePtr &gpu : choice.gpus) names += (names.empty() ? "" : " ") + gpu->name();
    return names;
}
decode::DeviceChoice choose_of_two(const DeviceRequest &request) {
    return choose_device(request, kTwo);
}
DeviceRequest one_gpu(const std::string &device, std::optional<int64_t> gpu_layers = {}) {
    return {device, {gpu_layers, {}}, decode::Split::None};
}
DeviceRequest shares(const std::string &device, std::vector<double> of_gpus) {
    return {device, {{}, {}, std::move(of_gpus)}};
}

}  // namespace

TEST_CASE("device: valid and invalid device names are distinguished") {
    for (const char *name : {"auto", "cpu", "cuda", "cuda:0", "cuda:12", "cuda:1,cuda:0"})
        CHECK(decode::is_device_name(name));
    for (const char *name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:0,", ",cuda:0",
                             "cuda:0,cpu", "cuda,cuda:1", "auto,cuda:1", "cuda:1,cuda:1"})
        CHECK(!decode::is_device_name(name));
}

TEST_CASE("device: auto selects a GPU if there is one, otherwise the CPU") {
    CHECK(name_of(choose_device({"auto", {}}, kNone)).empty());
    CHECK(choose_device({"auto", {}}, kNone).note.empty());
    CHECK(choose_device({"auto", {99, {}}}, kNone).note ==
          "no NVIDIA driver was found: everything runs on the CPU");
    CHECK(name_of(choose_of_two(one_gpu("auto"))) == "cuda:1");
    CHECK(!choose_of_two({"auto", {}}).required);
    CHECK(name_of(choose_of_two({"cuda:0", {}})) == "cuda:0");
    CHECK(choose_of_two({"cuda", {32, {}}}).required);
    CHECK(name_of(choose_of_two({"cpu", {}})).empty());
    CHECK(name_of(choose_of_two({"auto", {0, {}}})).empty());
    CHECK(name_of(choose_of_two(one_gpu("auto", 12))) == "cuda:1");
}

TEST_CASE(
    "device: GPUs are opened until the rest can hardly have more memory free, and one that fails is no "
    "obstacle") {
    std::vector<size_t> asked;
    const auto choice = [&](std::vector<int> free, const char *device = "auto") {
        asked.clear();
        std::vector<std::pair<size_t, ToyGpu::Free>> gpus;
        for (const size_t total : {500, 1000, 1000, 1000}) {
            const size_t number = gpus.size();
            gpus.emplace_back(total, [&asked, number, bytes = free[number]] {
                asked.push_back(number);
                if (bytes < 0) throw kernels::BackendError(kernels::BackendError::Kind::Failed, "busy");
                return static_cast<size_t>(bytes);
            });
        }
        return name_of(choose_device(one_gpu(device), toys(gpus)));
    };
    CHECK(choice({500, 990, 990, 990}) == "cuda:1");
    CHECK(asked == std::vector<size_t>{1});
    CHECK(choice({500, 300, 990, 990}) == "cuda:2");
    CHECK(asked == std::vector<size_t>{1, 2});
    CHECK(choice({490, 300, 200, 100}) == "cuda:0");
    CHECK(asked == std::vector<size_t>{1, 2, 3, 0});
    CHECK(choice({490, -1, 600, 700}) == "cuda:3");
    CHECK(choice({-1, -1, -1, -1}) == "cuda:1");
    CHECK(choice({500, 990, 990, 990}, "cuda:0") == "cuda:0");
    CHECK(asked.empty());
}

TEST_CASE("device: looking for GPUs opens none, and one that cannot be opened does not hide the others") {
    struct Reset {
        ~Reset() { simt::settings() = {}; }
    } reset;
    simt::settings().devices = 8;
    simt::settings().opened.clear();
    const kernels::Devices found = kernels::devices();
    CHECK(found.gpus.size() == 8);
    CHECK(simt::settings().opened.empty());
    CHECK(choose_device({"auto", {}}, found).gpus.size() == 8);
    CHECK(simt::settings().opened.empty());
    CHECK(name_of(choose_device(one_gpu("auto"), found)) == "cuda:0");
    CHECK(simt::settings().opened == std::set<int>{0});
    simt::settings().broken_device = 0;
    CHECK(name_of(choose_device(one_gpu("auto"), found)) == "cuda:1");
    simt::settings().devices = 1;
    const testing::TemporaryModel model(testing::ModelShape{});
    decode::EngineOptions options{.model = model.path, .threads = 1, .context = 64, .batch = 32};
    options.device.device = "auto";
    decode::Engine engine(options);
    CHECK(engine.executor().device().kind == "cpu");
    options.device.device = "cuda";
    CHECK_THROWS_AS(decode::Engine{options}, kernels::BackendError);
}

TEST_CASE("device: a GPU that is named but missing is an error") {
    CHECK_THROWS_WITH_AS(choose_device({"cuda", {}}, kNone),
                         "--device cuda: no NVIDIA driver was found (--device cpu needs no GPU)",
                         kernels::BackendError);
    CHECK_THROWS_WITH_AS(choose_of_two({"cuda:2", {}}),
                         "--device cuda:2: there are only 2 GPUs (--device cpu needs no GPU)",
                         kernels::BackendError);
}

TEST_CASE(
    "device: several GPUs come in order of their memory's speed, then its size; a list keeps its order") {
    struct Reset {
        ~Reset() { simt::settings() = {}; }
    } reset;
    constexpr size_t kGiB = size_t{1} << 30;
    simt::settings().devices = 4;
    simt::settings().memory_of = {8 * kGiB, 24 * kGiB, 16 * kGiB, 24 * kGiB};
    simt::settings().bandwidth_of = {9e11, 9e11, 2e12, 9e11};
    simt::settings().opened.clear();
    const kernels::Devices found = kernels::devices();
    const auto choice = [&](const DeviceRequest &request) { return choose_device(request, found); };
    for (const char *any : {"auto", "cuda"}) {
        CHECK(name_of(choice({any, {}})) == "cuda:2 cuda:1 cuda:3 cuda:0");
        CHECK(!choice({any, {}}).fixed);
    }
    CHECK(name_of(choice({"cuda:3,cuda:0", {}})) == "cuda:3 cuda:0");
    CHECK(choice({"cuda:3,cuda:0", {}}).fixed);
    CHECK(choice({"cuda:3,cuda:0", {}}).required);
    CHECK(!choice({"cuda:3", {}}).fixed);
    // Shares count the GPUs by number, or in the order of the list.
    CHECK(name_of(choice(shares("auto", {3, 1}))) == "cuda:0 cuda:1");
    CHECK(choice(shares("auto", {3, 1})).fixed);
    CHECK(name_of(choice(shares("cuda:3,cuda:0", {3, 1}))) == "cuda:3 cuda:0");
    CHECK(simt::settings().opened.empty());
    CHECK_THROWS_WITH_AS(choice(shares("auto", {1, 1, 1, 1, 1})),
                         "--tensor-split has 5 shares, but there are only 4 GPUs", kernels::BackendError);
    CHECK_THROWS_WITH_AS(choice(shares("cuda:1", {1, 1})),
                         "--tensor-split has 2 shares, but --device names 1", kernels::BackendError);
    CHECK_THROWS_WITH_AS(choice({"cuda:1,cuda:4", {}}),
                         "--device cuda:4: there are only 4 GPUs (--device cpu needs no GPU)",
                         kernels::BackendError);
}

// The tests' CUDA device is the emulator.
TEST_CASE("device: a model gives the same greedy text on the GPU as on the CPU") {
    for (const char *type : {"F16", "Q8_0", "Q4_0"}) {
        CAPTURE(type);
        testing::ModelShape shape;
        shape.type = type;
        shape.layers = 1;
        const testing::TemporaryModel model(shape);
        std::string text[2];
        for (const int gpu : {0, 1}) {
            decode::EngineOptions options{.model = model.path, .threads = 1, .context = 64, .batch = 32};
            options.device.device = gpu ? "cuda" : "cpu";
            decode::Engine engine(options);
            CHECK(engine.executor().device().kind == (gpu ? "cuda" : "cpu"));
            decode::SingleSequence session(engine.executor());
            const std::vector<text::TokenId> prompt = {1, 80, 120, 200, 77};
            REQUIRE(session.feed(prompt));
            for (int i = 0; i < 12; ++i) {
                const auto logits = session.logits();
                const auto best = static_cast<text::TokenId>(std::max_element(logits.begin(), logits.end()) -
                                                             logits.begin());
                text[gpu] += std::to_string(best) + " ";
                REQUIRE(session.feed(std::vector<text::TokenId>{best}));
            }
        }
        CHECK(text[0] == text[1]);
    }
}

TEST_CASE("device: --split tensor takes all GPUs that are allowed, in order, and refuses fewer than two") {
    using decode::Split;
    const auto chosen = [](const std::string &device, std::vector<double> of_gpus,
                           const kernels::Devices &found) {
        return choose_device({device, {{}, {}, std::move(of_gpus)}, Split::Tensor}, found);
    };
    const auto refusal = [&](const std::string &device, std::vector<double> of_gpus,
                             const kernels::Devices &found) -> std::string {
        try {
            return "accepted: " + name_of(chosen(device, std::move(of_gpus), found));
        } catch (const kernels::BackendError &error) {
            return error.what();
        }
    };
    for (const char *device : {"auto", "cuda"}) {
        const decode::DeviceChoice choice = chosen(device, {}, kTwo);
        CHECK(name_of(choice) == "cuda:0 cuda:1");
        CHECK(choice.required);
        CHECK(choice.fixed);
    }
    CHECK(name_of(chosen("cuda:1,cuda:0", {3, 1}, kTwo)) == "cuda:1 cuda:0");
    CHECK(refusal("cpu", {}, kTwo) == "--split tensor needs several GPUs, but nothing is to run on a GPU");
    CHECK(refusal("auto", {}, kNone) == "--split tensor needs several GPUs, but no NVIDIA driver was found");
    CHECK(name_of(choose_device({"auto", {}, Split::Context}, kTwo)) == "cuda:0 cuda:1");
    CHECK_THROWS_WITH_AS(
        choose_device({"auto", {}, Split::Context}, kNone),
        "--split context needs several GPUs, or processes (mpirun -n 2 runnel-mpi), but no NVIDIA driver "
        "was found",
        kernels::BackendError);
    CHECK(name_of(choose_device({"auto", {}, Split::Columns}, kTwo)) == "cuda:0 cuda:1");
    CHECK_THROWS_WITH_AS(choose_device({"auto", {}, Split::Columns}, kNone),
                         "--split columns needs several GPUs, but no NVIDIA driver was found",
                         kernels::BackendError);
    CHECK(refusal("cuda:1", {}, kTwo) == "--split tensor needs several GPUs, but --device names one");
    CHECK(refusal("auto", {1}, kTwo) ==
          "--split tensor needs several GPUs, but --tensor-split has one share");
    const kernels::Devices single = toys({{100, [] { return size_t{10}; }}});
    CHECK(refusal("auto", {}, single) == "--split tensor needs several GPUs, but there is only one GPU");
}
