// `runnel doctor`: its findings about devices and models, and the part that it finds at fault. (Damaged
// files: doctor_file_test.cpp.)
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "engine/commands/doctor/doctor.h"
#include "engine/commands/doctor/doctor_cases.h"
#include "engine/commands/doctor/doctor_checks.h"
#include "engine/commands/doctor/doctor_cpu.h"
#include "engine/commands/doctor/doctor_file.h"
#include "engine/commands/doctor/doctor_report.h"
#include "engine/commands/doctor/doctor_text.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_lookup.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/runtime/probe.h"
#include "kernels/cuda/runtime/switches.h"
#include "kernels/forwarding_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/engine/commands/doctor/doctor_support.h"
#include "tests/simt/simt.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"
#include "tests/support/tiny_program.h"

using namespace runnel;
using namespace runnel::commands;
using nlohmann::json;
using runnel::testing::about;
using runnel::testing::call_doctor;
using runnel::testing::ModelShape;
using runnel::testing::shape_of;
using runnel::testing::TemporaryModel;
using Area = Finding::Area;
using Verdict = Finding::Verdict;

namespace {

constexpr int32_t kFewTokens = 35;

CheckedDevice emulated() {
    return {Area::Gpu, [] { return kernels::cuda::make_cuda_backend(0); }};
}

// The CPU as doctor checks it.
CheckedDevice the_cpu() {
    CheckedDevice cpu{Area::Cpu, [] { return kernels::cpu::make_cpu_backend(1); }, 0.1};
    cpu.same_bits = [] { return kernels::cpu::make_cpu_backend(1, "scalar"); };
    return cpu;
}

std::vector<Finding> check_all(const kernels::Program &program, const CheckedDevice &device) {
    std::vector<Finding> findings;
    for (const StepCase &step : step_cases(program, kFewTokens)) findings.push_back(check(step, device));
    return findings;
}

// Whether a program has a matrix of a format in a Linear.
std::function<bool(const kernels::Program &)> multiplies(gguf::Type type) {
    return [type](const kernels::Program &program) {
        for (const kernels::Step &step : program.steps)
            if (const auto *linear = std::get_if<kernels::Linear>(&step))
                for (const auto &part : linear->parts)
                    if (program.weights[static_cast<size_t>(part.weight)].type == type) return true;
        return false;
    };
}
// Whether a program has a step of a kind.
template <class Kind>
bool has(const kernels::Program &program) {
    return std::any_of(program.steps.begin(), program.steps.end(),
                       [](const kernels::Step &step) { return std::holds_alternative<Kind>(step); });
}

// A device that computes on the CPU and changes the results of some programs.
class Faulty final : public kernels::ForwardingBackend {
  public:
    enum class Fault { SomeRows, LastBit, FewTokens, NowAndThen, NotFinite, Refuses, NoKernel };
    Faulty(Fault fault, std::function<bool(const kernels::Program &)> affected)
        : ForwardingBackend(kernels::cpu::make_cpu_backend(1)),
          fault_(fault),
          is_affected_(std::move(affected)) {}

    void load(const kernels::Program &program, const kernels::CacheConfig &cache, int32_t most) override {
        affected_ = is_affected_(program);
        if (affected_ && fault_ == Fault::NoKernel)
            throw kernels::BackendError(kernels::BackendError::Kind::NoKernel, "something is missing");
        vocab_ = static_cast<size_t>(program.vocab);
        ForwardingBackend::load(program, cache, most);
    }
    bool execute(const kernels::Batch &batch, std::span<float> logits) override {
        using kernels::BackendError;
        if (affected_ && fault_ == Fault::Refuses)
            throw BackendError(BackendError::Kind::Failed,
                               "CUDA: running kernels: unspecified launch failure");
        const bool done = ForwardingBackend::execute(batch, logits);
        ++calls_;
        const bool now = affected_ && (fault_ != Fault::FewTokens || batch.tokens.size() <= 16) &&
                         (fault_ != Fault::NowAndThen || calls_ % 2 == 0);
        if (!now) return done;
        for (size_t row = 3; row < vocab_; row += 9) {
            float &value = logits[(batch.logit_rows.size() - 1) * vocab_ + row];
            value = fault_ == Fault::NotFinite ? NAN
                    : fault_ == Fault::LastBit ? std::nextafter(value, value + 1)
                                               : value + 50;
        }
        return done;
    }

  private:
    Fault fault_;
    std::function<bool(const kernels::Program &)> is_affected_;
    bool affected_ = false;
    size_t vocab_ = 0;
    int calls_ = 0;
};

// Logits of tokens whose ids are their positions.
std::vector<float> reference_of(const kernels::Program &program, int32_t tokens) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    std::iota(ids.begin(), ids.end(), 0);
    return kernels::reference::logits_of(program, ids);
}

}  // namespace

TEST_CASE("doctor: every kind of step is right on the CPU and on the emulated device") {
    for (const auto &[arch, type] : {std::pair{"llama", "Q8_0"},
                                     {"qwen3", "Q4_0"},
                                     {"gemma2", "F16"},
                                     {"gpt-oss", "MXFP4"},
                                     {"deepseek2", "Q8_0"},
                                     {"rwkv7", "F16"},
                                     {"rwkv6", "F16"}}) {
        CAPTURE(arch);
        const TemporaryModel tiny(shape_of(arch, type));
        model::Model model = model::build(tiny.file);
        const kernels::Slot x = 0;  // the residual stream
        const int64_t width = model.program.slots[x].width;
        model.program.steps.insert(model.program.steps.begin() + 1,
                                   kernels::Rotate{x, x, static_cast<int32_t>(width & -width)});
        size_t matrices = 0, rotations = 0;
        for (const Finding &f : check_all(model.program, the_cpu())) {
            CAPTURE(f.subject);
            CAPTURE(f.detail);
            CHECK(f.verdict == Verdict::Right);
            matrices += f.subject.starts_with("matrix");
            rotations += f.subject.starts_with("rotation of ");
            // Float kernels never equal double precision exactly: no error at all would mean that they were
            // compared with themselves.
            if (f.subject.starts_with("attention") || f.subject.find("norm") != std::string::npos ||
                f.subject.find("SiLU") != std::string::npos) {
                CHECK(f.numbers["error"].get<double>() > 0);
                CHECK(f.numbers["error"].get<double>() < 1e-3);
            }
        }
        CHECK(matrices >= 2);
        CHECK(rotations == 1);
        // (llama is checked below; the emulator is slow.)
        if (std::string(arch) != "gpt-oss" && std::string(arch) != "deepseek2" &&
            std::string(arch) != "rwkv7")
            continue;
        for (const Finding &f : check_all(model.program, emulated())) {
            CAPTURE(f.subject);
            CAPTURE(f.detail);
            CHECK(f.verdict == Verdict::Right);
        }
    }
}

TEST_CASE("doctor: only the wrong kernel is reported") {
    ModelShape shape = shape_of("llama", "Q4_K_M");
    shape.width = 256, shape.ff = 256;
    const TemporaryModel tiny(shape);
    const model::Model model = model::build(tiny.file);
    using Fault = Faulty::Fault;
    const auto with = [&](Fault fault) {
        return check_all(
            model.program,
            {Area::Gpu, [fault] { return std::make_unique<Faulty>(fault, multiplies(gguf::Type::Q6_K)); },
             0.1});
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

TEST_CASE("doctor: a CPU kernel that is wrong by one bit is found") {
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    const model::Model model = model::build(tiny.file);
    const auto with = [&](Faulty::Fault fault, auto affected) {
        CheckedDevice cpu = the_cpu();
        cpu.make = [=] { return std::make_unique<Faulty>(fault, affected); };
        return check_all(model.program, cpu);
    };
    const auto check_only = [&](const char *subject, const std::vector<Finding> &findings) {
        for (const Finding &f : findings) {
            CAPTURE(f.subject);
            CHECK(f.verdict ==
                  (f.subject.find(subject) != std::string::npos ? Verdict::Wrong : Verdict::Right));
        }
        CHECK(about(findings, subject).verdict == Verdict::Wrong);
        CHECK(conclude(findings).fault == "cpu");
    };
    for (const Faulty::Fault fault : {Faulty::Fault::SomeRows, Faulty::Fault::LastBit}) {
        check_only("attention", with(fault, has<kernels::Attention>));
        check_only("RMS norm", with(fault, has<kernels::Norm>));
    }
    const std::vector<Finding> last_bit = with(Faulty::Fault::LastBit, has<kernels::Attention>);
    CHECK(about(last_bit, "attention").detail.find("other bits than") != std::string::npos);
    // A missing kernel of a GPU is not a fault.
    CHECK(about(with(Faulty::Fault::NoKernel, has<kernels::Attention>), "attention").verdict ==
          Verdict::Skipped);
}

TEST_CASE("doctor: different steps are separate cases, and their windows take effect") {
    const TemporaryModel tiny(shape_of("gemma2", "F16"));
    const model::Model model = model::build(tiny.file);
    kernels::Program program = model.program;
    const auto cases = step_cases(program, kFewTokens);
    const auto attention = [](const std::vector<StepCase> &of) {
        std::vector<StepCase> found;
        for (const StepCase &step : of)
            if (step.name.starts_with("attention")) found.push_back(step);
        return found;
    };
    // Adds the same layer with another scale, and with a longer window.
    const auto first = std::find_if(
        program.steps.begin(), program.steps.end(),
        [](const kernels::Step &step) { return std::holds_alternative<kernels::Attention>(step); });
    REQUIRE(first != program.steps.end());
    auto other = std::get<kernels::Attention>(*first);
    std::get<kernels::Attention>(*first).window = other.window = 1024;
    other.scale *= 2;
    program.steps.insert(program.steps.begin(), other);
    other.window_kind = kernels::Attention::Window::Chunked;
    program.steps.insert(program.steps.begin(), other);
    const std::vector<StepCase> more = attention(step_cases(program, kFewTokens));
    CHECK(more.size() == attention(cases).size() + 2);
    for (size_t i = 0; i < more.size(); ++i)
        for (size_t j = 0; j < i; ++j) CHECK(more[i].name != more[j].name);
    size_t windows = 0;
    for (const StepCase &step : more) {
        if (step.name.find("1024") == std::string::npos) continue;
        ++windows;
        CAPTURE(step.name);
        CHECK(step.name.find("(here 17)") != std::string::npos);
        kernels::Program open = step.program();
        const std::vector<float> right = reference_of(open, step.tokens);
        for (kernels::Step &s : open.steps)
            if (auto *a = std::get_if<kernels::Attention>(&s)) a->window = 0;
        CHECK(distance(reference_of(open, step.tokens), right, open.vocab).all > step.tolerance * 2);
    }
    CHECK(windows == 3);
}

TEST_CASE("doctor: missing GPU kernels are distinguished from failures") {
    kernels::Program program;
    program.slots = {{"x", 256}};
    program.weights = {{"table", gguf::Type::Q8_K, 8, 256, nullptr}};
    program.steps = {kernels::Embed{0, 0}};
    try {
        kernels::cuda::plan(program);
        FAIL("there is a kernel for q8_K");
    } catch (const kernels::BackendError &error) {
        CHECK(error.kind == kernels::BackendError::Kind::NoKernel);
    }
}

TEST_CASE("doctor: each set of findings leads to the part at fault") {
    const auto step = [](const char *subject, Verdict verdict, const char *device = "cuda:0") {
        Finding finding{Area::Gpu, subject, verdict};
        finding.role = Finding::Role::Step, finding.device = device;
        return finding;
    };
    const Finding right = step("matrix a", Verdict::Right);
    const auto fault = [&](std::vector<Finding> findings) { return conclude(findings).fault; };
    CHECK(fault({right}) == "none");
    CHECK(fault({{Area::Gpu, "no GPU", Verdict::Skipped}}) == "none");
    CHECK(fault({right, step("matrix b", Verdict::Wrong)}) == "kernel");
    CHECK(fault({right, step("matrix b", Verdict::Varies)}) == "kernel");
    // No comparison is right; the finding about the GPU's name and memory does not count.
    CHECK(fault({{Area::Gpu, "some GPU", Verdict::Right}, step("matrix b", Verdict::Wrong)}) == "driver");
    CHECK(fault({right, step("matrix b", Verdict::Wrong, "cuda:1")}) == "driver");
    CHECK(conclude({right, step("matrix b", Verdict::Wrong, "cuda:1")}).text.find("cuda:1") !=
          std::string::npos);
    CHECK(fault({right, {Area::Text, "the same text", Verdict::Wrong}}) == "kernel");
    CHECK(fault({right, {Area::Text, "the same text", Verdict::Unstable}}) == "gpu");
    CHECK(fault({right, {Area::Cpu, "matrices", Verdict::Wrong}, {Area::Gpu, "b", Verdict::Wrong}}) == "cpu");
    CHECK(fault({{Area::Cpu, "matrices", Verdict::Wrong}, {Area::File, "t", Verdict::Wrong}}) == "file");
    const std::vector<Finding> slow = {{Area::Gpu, "matrix a", Verdict::Slow}};
    CHECK(conclude(slow).exit_code == exit_code::kDone);
    CHECK(conclude(slow).text.find("matrix a") != std::string::npos);
    CHECK(line_of({Area::Gpu, "matrix\ta", Verdict::Wrong, "x"}).find('\t') == std::string::npos);
}

TEST_CASE("doctor: instruction sets with different results are named") {
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

TEST_CASE("doctor: products by looking up sums are compared too") {
    const kernels::cpu::LinearKernels *sound = kernels::cpu::linear_avx2();
    ModelShape shape = shape_of("llama", "Q1_0");
    shape.width = 256, shape.ff = 256;
    const TemporaryModel model(shape);
    const model::Model built = model::build(model.file);
    const auto of_q1 = [&](const std::vector<const kernels::cpu::LinearKernels *> &tables) {
        return about(check_cpu_kernels(built.program, tables), "q1_0");
    };
    const bool here = sound != nullptr;
    const Finding right = of_q1(linear_kernels());
    CAPTURE(right.detail);
    CHECK(right.verdict == Verdict::Right);
    CHECK((right.detail.find("avx2 looking up") != std::string::npos) == here);
    if (!here) return;
    static const kernels::cpu::LookupKernels broken_lookup{
        sound->lookup->most_tokens, sound->lookup->sum,
        [](gguf::Type type, const std::byte *tiles, int64_t cols, int64_t from, int64_t to, const void *sums,
           int32_t tokens, float *out, int64_t stride, const std::byte *next) {
            kernels::cpu::linear_avx2()->lookup->multiply(type, tiles, cols, from, to, sums, tokens, out,
                                                          stride, next);
            out[to - 1] += 1e-3f;
        }};
    static kernels::cpu::LinearKernels broken = *sound;
    broken.lookup = &broken_lookup;
    const Finding wrong = of_q1({&kernels::cpu::linear_scalar(), &broken});
    CAPTURE(wrong.detail);
    CHECK(wrong.verdict == Verdict::Wrong);
    CHECK(wrong.detail.find("not avx2 looking up") != std::string::npos);
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

namespace {
// Restores the emulated device's settings and the environment's switches when it is destroyed.
struct Emulated {
    simt::Settings before = simt::settings();
    ~Emulated() {
        simt::settings() = before;
        unsetenv(kernels::cuda::kSwitchesVariable);
    }
};
}  // namespace

TEST_CASE("doctor: the steps of a longer context are checked too") {
    for (const char *arch : {"deepseek32", "minimax-m3"}) {
        CAPTURE(arch);
        ModelShape shape = shape_of(arch, "Q8_0");
        shape.layers = 2, shape.context = 512, shape.indexer_top_k = 64;
        const TemporaryModel tiny(shape);
        for (const char *device : {"cpu", "cuda"}) {
            CAPTURE(device);
            json report;
            CHECK(call_doctor(tiny.path, device, report) == exit_code::kDone);
            CAPTURE(report.dump());
            size_t dense = 0, sparse = 0;
            for (const json &c : report["checks"]) {
                const std::string subject = c["subject"];
                if (c["area"] != "cpu" || subject.find("attention") == std::string::npos) continue;
                CHECK(c["verdict"] == "right");
                (subject.find("with an indexer") == std::string::npos ? dense : sparse) += 1;
            }
            CHECK(sparse == 1);
            CHECK(dense == 1);
        }
    }
}

TEST_CASE("doctor: parts that are left out and machine code that is missing are noted") {
    const Emulated emulated;
    simt::settings().code = 80;
    setenv(kernels::cuda::kSwitchesVariable, "graphs,pdl", 1);
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    json report;
    CHECK(call_doctor(tiny.path, "cuda", report) == exit_code::kDone);
    CAPTURE(report.dump());
    const auto detail = [&](const char *subject) {
        for (const json &c : report["checks"])
            if (c["subject"] == subject && c["verdict"] == "note") return c["detail"].get<std::string>();
        return std::string();
    };
    CHECK(detail("RUNNEL_CUDA_OFF") == "disabled: graphs,pdl");
    CHECK(detail("machine code").find("no machine code for the GPU (sm_90)") != std::string::npos);
}

TEST_CASE("doctor: a GPU with only wrong results is named among several") {
    const Emulated emulated;
    simt::settings().devices = 2;
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    Machine machine;
    machine.backend = [](const kernels::Device &device) -> std::unique_ptr<kernels::Backend> {
        if (device.name() == "cpu") return device.backend();
        return std::make_unique<Faulty>(
            Faulty::Fault::SomeRows,
            [faulty = device.name() == "cuda:1"](const kernels::Program &) { return faulty; });
    };
    json report;
    CHECK(call_doctor(tiny.path, "auto", report, machine) == exit_code::kFailed);
    CAPTURE(report.dump());
    CHECK(report["fault"] == "driver");
    const std::string said = report["conclusion"];
    CHECK(said.find("Nothing that the GPU cuda:1 computes is right") != std::string::npos);
    size_t wrong = 0;
    for (const json &c : report["checks"]) {
        CAPTURE(c.dump());
        if (c["area"] != "gpu") continue;
        REQUIRE(c.contains("device"));
        CHECK(c["subject"].get<std::string>().starts_with(c["device"].get<std::string>() + " "));
        wrong += c["verdict"] == "wrong" && c["device"] == "cuda:1";
        if (c["device"] == "cuda:0" && c.contains("error")) CHECK(c["verdict"] != "failed");
    }
    CHECK(wrong > 5);
    CHECK(call_doctor(tiny.path, "cuda:1", report, machine) == exit_code::kFailed);
    for (const json &c : report["checks"])
        if (c["area"] == "gpu") CHECK(c["device"] == "cuda:1");
    CHECK_THROWS_AS(call_doctor(tiny.path, "cuda:2", report, machine), UsageError);
}

TEST_CASE("doctor: a driver that is too old or fails is at fault; a missing driver is not") {
    using kernels::Absence;
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    Machine machine;
    json report;
    const auto fault = [&](const char *device, Absence absence) {
        machine.find = [absence](int threads) {
            return kernels::Devices{kernels::cpu_device(threads), {},     "cuda", true,
                                    "that is the reason",         absence};
        };
        const int code = call_doctor(tiny.path, device, report, machine);
        CHECK(code == (report["fault"] == "none" ? exit_code::kDone : exit_code::kFailed));
        return report["fault"].get<std::string>();
    };
    CHECK(fault("auto", Absence::DriverTooOld) == "driver");
    const std::string said = report["conclusion"];
    CHECK(said.find("that is the reason. Install a current NVIDIA driver.") != std::string::npos);
    CHECK(fault("auto", Absence::DriverFailed) == "driver");
    CHECK(fault("auto", Absence::NoDriver) == "none");
    CHECK(fault("auto", Absence::NoDevice) == "none");
    CHECK(fault("auto", Absence::NotCompiledIn) == "none");
    CHECK(fault("cuda", Absence::DriverFailed) == "driver");
    CHECK(fault("cuda:1", Absence::NoDriver) == "driver");
    CHECK(fault("cuda", Absence::NoDevice) == "driver");
    CHECK(report["checks"].size() > 10);
    CHECK_THROWS_AS(fault("cuda", Absence::NotCompiledIn), UsageError);
    CHECK(fault("cpu", Absence::DriverTooOld) == "none");
}

TEST_CASE("doctor: overflow is the model's fault, unless the CPU's kernels are wrong") {
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    std::vector<std::byte> bytes = testing::read_bytes(tiny.path);
    const gguf::Tensor &norm = *tiny.file.find_tensor("output_norm.weight");
    const float large = 3e38f;
    for (size_t at = 0; at < norm.bytes; at += 4) std::memcpy(bytes.data() + norm.offset + at, &large, 4);
    const std::filesystem::path path = tiny.directory / "large.gguf";
    testing::write_file(path, bytes);
    json report;
    CHECK(call_doctor(path, "cpu", report) == exit_code::kModelFile);
    CAPTURE(report.dump());
    CHECK(report["fault"] == "file");
    CHECK(report["conclusion"].get<std::string>().find("overflow") != std::string::npos);
    Machine machine;
    machine.backend = [](const kernels::Device &) {
        return std::make_unique<Faulty>(Faulty::Fault::SomeRows, has<kernels::Attention>);
    };
    CHECK(call_doctor(path, "cpu", report, machine) == exit_code::kFailed);
    CHECK(report["fault"] == "cpu");
}

TEST_CASE("doctor: the texts of CPU and GPU are compared") {
    TextLogits cpu{{1, 2}, {0, 1, 2, 3, 2, 1}, 3}, gpu = cpu, noisy = cpu;
    CHECK(compare_texts(cpu, gpu, gpu, "a GPU").verdict == Verdict::Right);
    for (float &l : gpu.logits) l += 5;  // this does not change the distribution
    CHECK(compare_texts(cpu, gpu, gpu, "a GPU").verdict == Verdict::Right);
    CHECK(compare_texts(cpu, gpu, cpu, "a GPU").verdict == Verdict::Unstable);
    noisy.logits = {2, 1, 0, 1, 2, 3};
    CHECK(compare_texts(cpu, noisy, noisy, "a GPU").verdict == Verdict::Wrong);
    noisy.logits[4] = INFINITY;
    CHECK(compare_texts(cpu, noisy, noisy, "a GPU").verdict == Verdict::Wrong);
    CHECK(check_text(noisy).verdict == Verdict::Wrong);
    CHECK(conclude({check_text(noisy)}).fault == "file");
    CHECK(check_text(cpu).verdict == Verdict::Right);
    cpu.logits = {9, 9, -30, 0, 0, 0};  // the second token is never predicted
    CHECK(check_text(cpu).verdict == Verdict::Note);
}

TEST_CASE("doctor: speeds of the emulated device are measured and rated") {
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
        CHECK(!finding.numbers.contains("share"));  // the memory bandwidth was not measured
        cpu.bytes_per_second = 1e30;
        step.bytes = kLargeMatrix;  // as if the matrix were large
        // If other programs disturb the shorter of the two runs, there is no measurement.
        for (int i = 0; i < 1000 && !finding.numbers.contains("share"); ++i)
            measure(step, model.program, cpu, finding);
        CHECK(finding.verdict == Verdict::Slow);
        CHECK(finding.numbers["share"].get<double>() < kSlow);
        break;
    }
}

TEST_CASE("doctor: as a program, on a machine that may have no GPU") {
    if (!testing::program_under_test()) {
        FAIL("no program to test: set RUNNEL, or build build/runnel");
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
    CHECK(all.out.ends_with("All checks passed.\n"));
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
    // A file that is not a model at all is not called damaged.
    testing::write_file(tiny.directory / "letter.gguf",
                        std::as_bytes(std::span("dear reader, this is a text")));
    const testing::Result letter =
        run({"doctor", (tiny.directory / "letter.gguf").string(), "--quick", "--device", "cpu"});
    CHECK(letter.code == exit_code::kModelFile);
    CHECK(letter.out.find("damaged") == std::string::npos);
    CHECK(letter.out.find("Use a GGUF file") != std::string::npos);
}
