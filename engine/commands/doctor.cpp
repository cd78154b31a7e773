// Gibberish, and who is at fault: file, CPU, GPU, driver or this program.
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/commands.h"
#include "engine/commands/doctor_cases.h"
#include "engine/commands/doctor_checks.h"
#include "engine/commands/doctor_cpu.h"
#include "engine/commands/doctor_file.h"
#include "engine/commands/doctor_report.h"
#include "engine/commands/doctor_text.h"
#include "engine/decode/bandwidth.h"
#include "engine/decode/device.h"
#include "engine/decode/error.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pool.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/probe.h"

namespace runnel::commands {
namespace {

using Area = Finding::Area;
using Verdict = Finding::Verdict;

constexpr int32_t kTextTokens = 40, kQuickTextTokens = 12;
constexpr double kCpuTolerance = 0.1;              // activations of 8 bits, a few of them large
constexpr size_t kTestedMemory = size_t{1} << 30;  // bytes, at most a quarter of what is free

std::string gigabytes(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GB/s", bytes / 1e9);
    return text;
}

// A line on a terminal that is written over.
class Progress {
  public:
    explicit Progress(Io &io) : io_(io), shown_(io.err.is_terminal() && !io.quiet) {}
    ~Progress() { clear(); }
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    void show(const std::string &text) {
        const auto now = std::chrono::steady_clock::now();
        if (!shown_ || now - last_ < std::chrono::milliseconds(100)) return;
        last_ = now;
        drawn_ = true;
        io_.progress("\r" + text + "\x1b[K");
    }
    void clear() {
        if (drawn_) io_.progress("\r\x1b[K");
        drawn_ = false;
    }

  private:
    Io &io_;
    bool shown_, drawn_ = false;
    std::chrono::steady_clock::time_point last_{};
};

class Doctor {
  public:
    Doctor(const DoctorOptions &options, Io &io)
        : options_(options),
          io_(io),
          progress_(io),
          threads_(options.threads > 0 ? options.threads : kernels::cpu::physical_cores()) {}

    int run() {
        look_at_file();
        const kernels::Program program = model_ ? model_->program : sample_program(!options_.quick);
        const std::vector<StepCase> cases =
            step_cases(program, options_.quick ? kernels::kBlockTokens + 3 : 300);
        look_at_cpu(program, cases);
        look_at_gpus(program, cases);
        look_at_text();
        progress_.clear();
        const Conclusion conclusion = conclude(findings_);
        if (options_.json)
            io_.out.write(dump(to_json(findings_, conclusion), 2));
        else
            io_.out.write("\n" + conclusion.text + "\n");
        return conclusion.exit_code;
    }

  private:
    void add(Finding finding) {
        progress_.clear();
        if (!options_.json) io_.out.write(line_of(finding));
        findings_.push_back(std::move(finding));
    }

    int32_t text_tokens() const { return options_.quick ? kQuickTextTokens : kTextTokens; }

    // A damaged file is no model to check kernels with.
    void look_at_file() {
        if (options_.path.empty()) return;
        try {
            file_ = gguf::File::open(options_.path);
        } catch (const gguf::FileError &error) {
            if (error.missing) throw;
            return add({Area::File, options_.path, Verdict::Wrong, error.what()});
        }
        bool damaged = false;
        for (Finding &finding : check_file(*file_, threads_, [&](uint64_t done, uint64_t all) {
                 progress_.show("reading the file: " + std::to_string(done * 100 / all) + "%");
             })) {
            damaged = damaged || finding.verdict == Verdict::Wrong;
            add(std::move(finding));
        }
        if (damaged) return;
        try {
            model_ = model::build(*file_);
        } catch (const model::ModelError &error) {
            add({Area::File, "model", Verdict::Note,
                 std::string(error.what()) + ": the devices are checked with weights of their own"});
        }
    }

    void look_at_cpu(const kernels::Program &program, const std::vector<StepCase> &cases) {
        const kernels::DeviceInfo info = kernels::cpu::make_cpu_backend(options_.threads)->info();
        Finding device{Area::Cpu, info.name, Verdict::Right};
        CheckedDevice cpu{Area::Cpu, [this] { return kernels::cpu::make_cpu_backend(options_.threads); },
                          kCpuTolerance};
        if (!options_.quick) {
            progress_.show("measuring memory");
            cpu.bytes_per_second = decode::BandwidthMeter(threads_).read();
            device.detail = "reads " + gigabytes(cpu.bytes_per_second);
            device.numbers["bytes_per_second"] = cpu.bytes_per_second;
        }
        add(std::move(device));
        for (Finding &finding : check_cpu_kernels(program, linear_kernels())) add(std::move(finding));
        look_at_steps(program, cases, cpu);
    }

    void look_at_steps(const kernels::Program &program, const std::vector<StepCase> &cases,
                       const CheckedDevice &device) {
        for (const StepCase &step : cases) {
            progress_.show(std::string(name_of(device.area)) + ": " + step.name);
            Finding finding = check(step, device);
            measure(step, program, device, finding);
            add(std::move(finding));
        }
    }

    void look_at_gpus(const kernels::Program &program, const std::vector<StepCase> &cases) {
        if (options_.device == "cpu") return;
        const kernels::cuda::Devices devices = kernels::cuda::find_devices();
        const decode::DeviceChoice choice = decode::choose_device({options_.device, {}}, devices);
        if (!choice.cuda) return add({Area::Gpu, "no GPU", Verdict::Skipped, devices.why_none});
        const bool all = options_.device == "auto";
        for (int i = 0; i < static_cast<int>(devices.found.size()); ++i)
            if (all || i == *choice.cuda)
                look_at_gpu(i, devices.found[static_cast<size_t>(i)], program, cases);
    }

    void look_at_gpu(int number, const kernels::DeviceInfo &info, const kernels::Program &program,
                     const std::vector<StepCase> &cases) {
        CheckedDevice gpu{Area::Gpu, [number] { return kernels::cuda::make_cuda_backend(number); }};
        try {
            Finding device{Area::Gpu, info.name, Verdict::Right};
            if (!options_.quick) {
                progress_.show("measuring the GPU");
                gpu.bytes_per_second = kernels::cuda::copy_bandwidth(number);
                const double rate = kernels::cuda::tensor_rate(number);
                char text[80];
                std::snprintf(text, sizeof text, "copies %s, multiplies %.0f TFLOP/s (16 bits)",
                              gigabytes(gpu.bytes_per_second).c_str(), rate / 1e12);
                device.detail = text;
                device.numbers = {{"bytes_per_second", gpu.bytes_per_second}, {"bf16_flops", rate}};
            }
            add(std::move(device));
            look_at_memory(number, info);
        } catch (const kernels::BackendError &error) {
            return add({Area::Gpu, info.name, Verdict::Failed, error.what()});
        }
        look_at_steps(program, cases, gpu);
        gpus_.push_back(number);
    }

    void look_at_memory(int number, const kernels::DeviceInfo &info) {
        const size_t bytes =
            std::min(options_.quick ? kTestedMemory / 1024 : kTestedMemory, info.memory_free / 4);
        uint64_t changed = 0;
        for (const uint64_t seed : {1u, 2u}) changed += kernels::cuda::changed_words(number, bytes, seed);
        char text[80];
        std::snprintf(text, sizeof text, "%.0f MiB written, copied and read back",
                      static_cast<double>(bytes) / 0x1p20);
        Finding finding{Area::Gpu, "memory", Verdict::Right, text};
        if (changed > 0) {
            finding.verdict = Verdict::Unstable;
            finding.detail += ": " + std::to_string(changed) + " words came back changed";
        }
        add(std::move(finding));
    }

    void look_at_text() {
        if (!model_) return;
        decode::EngineOptions options;
        options.model = options_.path;
        options.threads = options_.threads;
        try {
            const TextLogits cpu = logits_of_text(options, text_tokens());
            add(check_text(cpu));
            for (const int gpu : gpus_) look_at_text_on(gpu, options, cpu);
        } catch (const text::TokenizerError &error) {
            add({Area::File, "tokenizer", Verdict::Wrong, error.what()});
        } catch (const decode::DecodeError &error) {
            add({Area::Text, "a text on the CPU", Verdict::Skipped, error.what()});
        }
    }

    void look_at_text_on(int gpu, decode::EngineOptions options, const TextLogits &cpu) {
        const std::string name = "cuda:" + std::to_string(gpu);
        options.device.device = name;
        const auto skip = [&](const std::exception &error) {
            add({Area::Text, "the same text on " + name, Verdict::Skipped, error.what()});
        };
        try {
            const TextLogits first = logits_of_text(options, text_tokens());
            add(compare_texts(cpu, first, logits_of_text(options, text_tokens()), name));
        } catch (const kernels::BackendError &error) {
            const std::string what = error.what();
            if (error.kind == kernels::BackendError::Kind::OutOfMemory ||
                what.find("has no kernel for") != std::string::npos)
                return skip(error);
            add({Area::Gpu, "the same text on " + name, Verdict::Failed, what});
        } catch (const decode::DecodeError &error) {
            skip(error);
        }
    }

    const DoctorOptions &options_;
    Io &io_;
    Progress progress_;
    int threads_;
    std::optional<gguf::File> file_;
    std::optional<model::Model> model_;  // of a file without damage
    std::vector<int> gpus_;              // that took part
    std::vector<Finding> findings_;
};

}  // namespace

int doctor(const DoctorOptions &options, Io &io) {
    return Doctor(options, io).run();
}

}  // namespace runnel::commands
