// `runnel doctor`: what it says of sound devices and files, and whom it blames for damaged ones.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/commands/commands.h"
#include "engine/commands/doctor_cases.h"
#include "engine/commands/doctor_checks.h"
#include "engine/commands/doctor_cpu.h"
#include "engine/commands/doctor_file.h"
#include "engine/commands/doctor_report.h"
#include "engine/commands/doctor_text.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/probe.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::commands;
using nlohmann::json;
using runnel::testing::ModelShape;
using runnel::testing::TemporaryModel;
using Area = Finding::Area;
using Verdict = Finding::Verdict;

namespace {

constexpr int32_t kFewTokens = 35;

CheckedDevice emulated() {
    return {Area::Gpu, [] { return kernels::cuda::make_cuda_backend(0); }};
}

ModelShape shape_of(const char *arch, const char *type) {
    ModelShape shape;
    shape.arch = arch, shape.type = type, shape.layers = 1;
    return shape;
}

std::vector<Finding> check_all(const kernels::Program &program, const CheckedDevice &device) {
    std::vector<Finding> findings;
    for (const StepCase &step : step_cases(program, kFewTokens)) findings.push_back(check(step, device));
    return findings;
}

// A device that computes on the CPU and changes what comes out when a program has a matrix of a format.
class Faulty final : public kernels::Backend {
  public:
    enum class Fault { SomeRows, FewTokens, NowAndThen, NotFinite, Refuses };
    Faulty(Fault fault, gguf::Type type) : fault_(fault), type_(type) {}

    kernels::DeviceInfo info() const override { return cpu_->info(); }
    void load(const kernels::Program &program, const kernels::CacheConfig &cache, int32_t most) override {
        affected_ = false;
        for (const kernels::Step &step : program.steps)
            if (const auto *linear = std::get_if<kernels::Linear>(&step))
                for (const auto &part : linear->parts)
                    affected_ |= program.weights[static_cast<size_t>(part.weight)].type == type_;
        vocab_ = static_cast<size_t>(program.vocab);
        cpu_->load(program, cache, most);
    }
    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        using kernels::BackendError;
        if (affected_ && fault_ == Fault::Refuses)
            throw BackendError(BackendError::Kind::Failed,
                               "CUDA: running kernels: unspecified launch failure");
        const bool done = cpu_->execute(batch, logits);
        ++calls_;
        const bool now = affected_ && (fault_ != Fault::FewTokens || batch.tokens.size() <= 16) &&
                         (fault_ != Fault::NowAndThen || calls_ % 2 == 0);
        if (!now) return done;
        for (size_t row = 3; row < vocab_; row += 9) {
            float &value = logits[(batch.logit_rows.size() - 1) * vocab_ + row];
            value = fault_ == Fault::NotFinite ? NAN : value + 50;
        }
        return done;
    }
    void copy_blocks(int32_t group, std::span<const kernels::BlockCopy> copies) override {
        cpu_->copy_blocks(group, copies);
    }
    void read_block(int32_t group, kernels::BlockId block, std::span<std::byte> bytes) override {
        cpu_->read_block(group, block, bytes);
    }
    void write_block(int32_t group, kernels::BlockId block, std::span<const std::byte> bytes) override {
        cpu_->write_block(group, block, bytes);
    }

  private:
    std::unique_ptr<kernels::Backend> cpu_ = kernels::cpu::make_cpu_backend(1);
    Fault fault_;
    gguf::Type type_;
    bool affected_ = false;
    size_t vocab_ = 0;
    int calls_ = 0;
};

// doctor() in this process, where the GPU is the emulated one. Returns its exit code.
int call_doctor(const std::filesystem::path &model, const char *device, json &report) {
    const testing::TemporaryDirectory directory;
    const std::string out = (directory / "out").string();
    DoctorOptions options;
    options.path = model.string(), options.device = device, options.quick = true, options.json = true,
    options.threads = 1;
    const int fd = open(out.c_str(), O_CREAT | O_RDWR, 0600);
    REQUIRE(fd >= 0);
    Io io;
    io.out = Output(fd, "a file");
    io.quiet = true;
    const int code = doctor(options, io);
    close(fd);
    const std::vector<std::byte> bytes = testing::read_bytes(out);
    report = json::parse(reinterpret_cast<const char *>(bytes.data()),
                         reinterpret_cast<const char *>(bytes.data()) + bytes.size());
    return code;
}

// The finding whose subject contains a text; fails when there is none.
const Finding &about(const std::vector<Finding> &findings, const std::string &text) {
    const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding &f) {
        return f.subject.find(text) != std::string::npos;
    });
    CAPTURE(text);
    REQUIRE(found != findings.end());
    return *found;
}

}  // namespace

TEST_CASE("doctor: every kind of step is right on the CPU and on the emulated device") {
    for (const auto &[arch, type] : {std::pair{"llama", "Q8_0"},
                                     {"qwen3", "Q4_0"},
                                     {"gemma2", "F16"},
                                     {"gpt-oss", "MXFP4"},
                                     {"deepseek2", "Q8_0"}}) {
        CAPTURE(arch);
        const TemporaryModel tiny(shape_of(arch, type));
        const model::Model model = model::build(tiny.file);
        size_t matrices = 0;
        for (const Finding &f :
             check_all(model.program, {Area::Cpu, [] { return kernels::cpu::make_cpu_backend(1); }, 0.1})) {
            CAPTURE(f.subject);
            CAPTURE(f.detail);
            CHECK(f.verdict == Verdict::Right);
            matrices += f.subject.starts_with("matrix");
        }
        CHECK(matrices >= 2);
        if (std::string(arch) != "gpt-oss") continue;  // llama: below; the emulator takes its time
        for (const Finding &f : check_all(model.program, emulated())) {
            CAPTURE(f.subject);
            CAPTURE(f.detail);
            CHECK(f.verdict == Verdict::Right);
        }
    }
}

TEST_CASE("doctor: a wrong kernel is named, and it alone") {
    ModelShape shape = shape_of("llama", "Q4_K_M");
    shape.width = 256, shape.ff = 256;
    const TemporaryModel tiny(shape);
    const model::Model model = model::build(tiny.file);
    using Fault = Faulty::Fault;
    const auto with = [&](Fault fault) {
        return check_all(
            model.program,
            {Area::Gpu, [fault] { return std::make_unique<Faulty>(fault, gguf::Type::Q6_K); }, 0.1});
    };
    const auto check_only_q6 = [](const std::vector<Finding> &findings, Verdict expected) {
        size_t wrong = 0;
        for (const Finding &f : findings) {
            CAPTURE(f.subject);
            const bool q6 = f.subject.find("matrix q6_K") != std::string::npos;
            CHECK(f.verdict == (q6 ? expected : Verdict::Right));
            wrong += q6;
        }
        CHECK(wrong > 0);
    };
    std::vector<Finding> findings = with(Fault::SomeRows);
    check_only_q6(findings, Verdict::Wrong);
    Conclusion said = conclude(findings);
    CHECK(said.fault == "kernel");
    CHECK(said.text.find("matrix q6_K") != std::string::npos);
    CHECK(said.text.find("matrix q4_K") == std::string::npos);
    CHECK(said.exit_code == exit_code::kFailed);

    findings = with(Fault::FewTokens);
    check_only_q6(findings, Verdict::Wrong);
    CHECK(about(findings, "matrix q6_K").detail.find("few tokens in a batch") != std::string::npos);

    findings = with(Fault::NowAndThen);
    check_only_q6(findings, Verdict::Unstable);
    CHECK(conclude(findings).fault == "gpu");

    findings = with(Fault::NotFinite);
    check_only_q6(findings, Verdict::Wrong);
    CHECK(about(findings, "matrix q6_K").detail.find("not finite") != std::string::npos);

    findings = with(Fault::Refuses);
    check_only_q6(findings, Verdict::Failed);
    said = conclude(findings);
    CHECK(said.fault == "driver");
    CHECK(about(findings, "matrix q6_K").detail.find("unspecified launch failure") != std::string::npos);
}

TEST_CASE("doctor: whom it blames") {
    const Finding right{Area::Gpu, "matrix a", Verdict::Right};
    const auto fault = [&](std::vector<Finding> findings) { return conclude(findings).fault; };
    CHECK(fault({right}) == "none");
    CHECK(fault({{Area::Gpu, "no GPU", Verdict::Skipped}}) == "none");
    CHECK(fault({right, {Area::Gpu, "matrix b", Verdict::Wrong}}) == "kernel");
    CHECK(fault({right, {Area::Gpu, "matrix b", Verdict::Varies}}) == "kernel");
    CHECK(fault({{Area::Gpu, "matrix b", Verdict::Wrong}}) == "driver");  // nothing is right
    CHECK(fault({right, {Area::Text, "the same text", Verdict::Wrong}}) == "kernel");
    CHECK(fault({right, {Area::Text, "the same text", Verdict::Unstable}}) == "gpu");
    CHECK(fault({right, {Area::Cpu, "matrices", Verdict::Wrong}, {Area::Gpu, "b", Verdict::Wrong}}) == "cpu");
    CHECK(fault({{Area::Cpu, "matrices", Verdict::Wrong}, {Area::File, "t", Verdict::Wrong}}) == "file");
    const std::vector<Finding> slow = {{Area::Gpu, "matrix a", Verdict::Slow}};
    CHECK(conclude(slow).exit_code == exit_code::kDone);
    CHECK(conclude(slow).text.find("matrix a") != std::string::npos);
    CHECK(line_of({Area::Gpu, "matrix\ta", Verdict::Wrong, "x"}).find('\t') == std::string::npos);
}

TEST_CASE("doctor: instruction sets that differ are told apart") {
    static const kernels::cpu::LinearKernels broken = [] {
        kernels::cpu::LinearKernels table = kernels::cpu::linear_scalar();
        table.name = "broken";
        table.multiply = [](gguf::Type type, const std::byte *w, int64_t cols, int64_t from, int64_t to,
                            const void *packed, int32_t tokens, float *out, int64_t stride, void *scratch,
                            const std::byte *next) {
            kernels::cpu::linear_scalar().multiply(type, w, cols, from, to, packed, tokens, out, stride,
                                                   scratch, next);
            if (type == gguf::Type::Q6_K) out[to - 1] += 1e-6f;
        };
        return table;
    }();
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    ModelShape shape = shape_of("llama", "Q4_K_M");
    shape.width = 256, shape.ff = 256;
    const TemporaryModel mixed(shape);
    const model::Model model = model::build(mixed.file);
    auto tables = linear_kernels();
    for (const Finding &f : check_cpu_kernels(model.program, tables)) CHECK(f.verdict == Verdict::Right);
    tables.push_back(&broken);
    const std::vector<Finding> findings = check_cpu_kernels(model.program, tables);
    CHECK(about(findings, "q4_K").verdict == Verdict::Right);
    CHECK(about(findings, "q6_K").verdict == Verdict::Wrong);
    CHECK(about(findings, "q6_K").detail.find("not broken") != std::string::npos);
    CHECK(conclude(findings).fault == "cpu");
}

TEST_CASE("doctor: a sound model on the emulated device, from file to text") {
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    json report;
    CHECK(call_doctor(tiny.path, "cuda", report) == exit_code::kDone);
    CAPTURE(report.dump());
    CHECK(report["fault"] == "none");
    size_t gpu = 0, text = 0;
    for (const json &c : report["checks"]) {
        CAPTURE(c.dump());
        gpu += c["area"] == "gpu" && c["verdict"] == "right";
        if (c["area"] == "text" && c.contains("mean_kl")) {
            ++text;
            CHECK(c["mean_kl"] < 2e-2);
        }
    }
    CHECK(gpu > 8);
    CHECK(text == 1);
}

TEST_CASE("doctor: a damaged file is found out, whatever the damage") {
    ModelShape shape = shape_of("llama", "Q8_0");
    shape.width = 512, shape.ff = 1024;
    const TemporaryModel tiny(shape);
    std::vector<std::byte> bytes = testing::read_bytes(tiny.path);
    const gguf::Tensor &tensor = *tiny.file.find_tensor("blk.0.ffn_up.weight");
    const auto damaged = [&](const char *name, auto change) {
        std::vector<std::byte> copy = bytes;
        change(copy);
        const std::filesystem::path path = tiny.directory / name;
        testing::write_file(path, copy);
        return path;
    };
    const auto garbage = damaged("garbage.gguf", [&](std::vector<std::byte> &b) {
        std::mt19937 random(5);
        for (size_t i = 0; i < 8192; ++i) b[tensor.offset + 4096 + i] = static_cast<std::byte>(random());
    });
    json report;
    CHECK(call_doctor(garbage, "cpu", report) == exit_code::kModelFile);
    CHECK(report["fault"] == "file");
    CHECK(report["checks"][0]["subject"] == "blk.0.ffn_up.weight");
    CHECK(report["checks"][0]["not_finite"].get<int>() > 1);
    CHECK(report["checks"][0]["first_byte"].get<uint64_t>() >= tensor.offset);

    const auto cut = damaged("cut.gguf", [&](std::vector<std::byte> &b) { b.resize(b.size() - 5000); });
    CHECK(call_doctor(cut, "cpu", report) == exit_code::kModelFile);
    CHECK(report["checks"][0]["detail"].get<std::string>().find("truncated or damaged") != std::string::npos);
    CHECK(report["checks"].size() > 10);  // the devices are looked at all the same
}

TEST_CASE("doctor: pages of zeros in a large tensor are noted") {
    ModelShape shape = shape_of("llama", "F16");
    shape.width = 512, shape.ff = 2048;
    const TemporaryModel tiny(shape);
    std::vector<std::byte> bytes = testing::read_bytes(tiny.path);
    const gguf::Tensor &tensor = *tiny.file.find_tensor("blk.0.ffn_up.weight");
    REQUIRE(tensor.bytes >= 1 << 20);
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset), 400 << 10, std::byte{0});
    const gguf::File file = gguf::File::from_bytes(bytes, "zeros");
    uint64_t shown = 0;
    const std::vector<Finding> findings =
        check_file(file, 3, [&](uint64_t done, uint64_t all) { shown += done > 0 && done <= all; });
    CHECK(shown > 0);
    REQUIRE(findings.size() == 2);
    CHECK(findings[0].verdict == Verdict::Note);
    CHECK(findings[0].subject == "blk.0.ffn_up.weight");
    CHECK(conclude(findings).fault == "none");
}

TEST_CASE("doctor: texts are held against each other") {
    TextLogits cpu{{1, 2}, {0, 1, 2, 3, 2, 1}, 3}, gpu = cpu, noisy = cpu;
    CHECK(compare_texts(cpu, gpu, gpu, "a GPU").verdict == Verdict::Right);
    for (float &l : gpu.logits) l += 5;  // a distribution does not change by that
    CHECK(compare_texts(cpu, gpu, gpu, "a GPU").verdict == Verdict::Right);
    CHECK(compare_texts(cpu, gpu, cpu, "a GPU").verdict == Verdict::Unstable);
    noisy.logits = {2, 1, 0, 1, 2, 3};
    CHECK(compare_texts(cpu, noisy, noisy, "a GPU").verdict == Verdict::Wrong);
    noisy.logits[4] = INFINITY;
    CHECK(compare_texts(cpu, noisy, noisy, "a GPU").verdict == Verdict::Wrong);
    CHECK(check_text(noisy).verdict == Verdict::Wrong);
    CHECK(check_text(cpu).verdict == Verdict::Right);
    cpu.logits = {9, 9, -30, 0, 0, 0};  // the second token is never guessed
    CHECK(check_text(cpu).verdict == Verdict::Note);
}

TEST_CASE("doctor: speeds of the emulated device are measured and judged") {
    CHECK(kernels::cuda::copy_bandwidth(0, 1 << 14, 1) > 0);
    CHECK(kernels::cuda::tensor_rate(0, 2) > 0);
    CHECK(kernels::cuda::changed_words(0, 1 << 14, 3) == 0);
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    const model::Model model = model::build(tiny.file);
    for (StepCase &step : step_cases(model.program, kFewTokens)) {
        if (!step.name.starts_with("matrix")) continue;
        CheckedDevice cpu{Area::Cpu, [] { return kernels::cpu::make_cpu_backend(1); }, 0.1};
        Finding finding{Area::Cpu, step.name, Verdict::Right};
        measure(step, model.program, cpu, finding);
        CHECK(!finding.numbers.contains("share"));  // nobody has measured the memory
        cpu.bytes_per_second = 1e15;
        step.bytes = kLargeMatrix;  // as if it were one
        measure(step, model.program, cpu, finding);
        CHECK(finding.verdict == Verdict::Slow);
        CHECK(finding.numbers["share"].get<double>() < kSlow);
        break;
    }
}

TEST_CASE("doctor: as a program, on a machine that may have no GPU") {
    if (!testing::program_under_test()) {
        MESSAGE("no program to test: set RUNNEL, or build build/runnel");
        return;
    }
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    const auto run = [](std::vector<std::string> arguments) {
        testing::Process process{};
        process.stdout_limit = static_cast<size_t>(-1);
        process.arguments = std::move(arguments);
        return testing::execute(process);
    };
    const testing::Result all = run({"doctor", tiny.path.string(), "--quick", "--device", "cpu"});
    CAPTURE(all.out);
    CHECK(all.code == exit_code::kDone);
    CHECK(all.err == "");
    CHECK(all.out.find("cpu  right") != std::string::npos);
    CHECK(all.out.find("file right") != std::string::npos);
    CHECK(all.out.ends_with("Everything that was looked at is right.\n"));
    const testing::Result as_json = run({"doctor", "-m", tiny.path.string(), "--quick", "--json"});
    CHECK(json::parse(as_json.out)["fault"] == "none");
    CHECK(run({"doctor", (tiny.directory / "none.gguf").string()}).code == exit_code::kUsage);
    CHECK(run({"doctor", "--device", "gpu"}).code == exit_code::kUsage);
    CHECK(run({"doctor", tiny.path.string(), "more"}).code == exit_code::kUsage);
    std::vector<std::byte> cut = testing::read_bytes(tiny.path);
    cut.resize(cut.size() / 2);
    testing::write_file(tiny.directory / "cut.gguf", cut);
    const testing::Result damaged =
        run({"doctor", (tiny.directory / "cut.gguf").string(), "--quick", "--device", "cpu"});
    CHECK(damaged.code == exit_code::kModelFile);
    CHECK(damaged.out.find("file WRONG") != std::string::npos);
    CHECK(damaged.out.find("The file is damaged") != std::string::npos);
}
