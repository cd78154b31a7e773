// Finds the cause of wrong output: the file, the CPU, the GPU, the driver or this program.
#include "engine/commands/doctor/doctor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/commands/doctor/doctor_cases.h"
#include "engine/commands/doctor/doctor_checks.h"
#include "engine/commands/doctor/doctor_cpu.h"
#include "engine/commands/doctor/doctor_file.h"
#include "engine/commands/doctor/doctor_report.h"
#include "engine/commands/doctor/doctor_text.h"
#include "engine/decode/device.h"
#include "engine/decode/error.h"
#include "engine/measure/bandwidth.h"
#include "engine/model/model.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace runnel::commands {
namespace {

using Area = Finding::Area;
using Verdict = Finding::Verdict;
using kernels::Absence;

constexpr int32_t kTextTokens = 40, kQuickTextTokens = 12;
constexpr double kCpuTolerance = 0.1;  // the CPU rounds activations to 8 bits, and a few are large
constexpr size_t kTestedMemory = size_t{1} << 30;  // bytes, at most a quarter of the free memory

std::string gigabytes(double bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GB/s", bytes / 1e9);
    return text;
}

// A progress line on a terminal, overwritten by the next one.
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
    Doctor(const DoctorOptions &options, Io &io, const Machine &machine)
        : options_(options),
          io_(io),
          machine_(machine),
          progress_(io),
          threads_(options.threads > 0 ? options.threads : kernels::cpu::physical_cores()),
          cpu_(kernels::cpu_device(options.threads)) {}

    int run() {
        find_gpus();
        look_at_file();
        add_program(model_ ? model_->program : sample_program(!options_.quick));
        add_longer_program();
        look_at_cpu();
        look_at_gpus();
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
    struct CheckedProgram {
        kernels::Program program;
        std::vector<StepCase> cases;  // of the steps that no program before it has
    };

    void add_program(kernels::Program program) {
        CheckedProgram &added = programs_.emplace_back(std::move(program));
        added.cases = step_cases(added.program, options_.quick ? kernels::kBlockTokens + 3 : 300);
        std::erase_if(added.cases, [&](const StepCase &step) { return !known_.insert(step.name).second; });
    }

    // The form that the model takes in a longer context, if there is one: attention to chosen keys.
    void add_longer_program() {
        if (!model_ || !model_->hyper.context_is_limit) return;
        try {
            add_program(model::build(*file_, model_->hyper.context_length + 1).program);
        } catch (const model::ModelError &) {  // longer contexts are not supported
        }
    }

    void add(Finding finding) {
        progress_.clear();
        if (!options_.json) io_.out.write(line_of(finding));
        findings_.push_back(std::move(finding));
    }

    int32_t text_tokens() const { return options_.quick ? kQuickTextTokens : kTextTokens; }

    // Finds the GPUs to check. Called first, so that a missing device is reported before any work is done.
    void find_gpus() {
        if (options_.device == cpu_->name()) return;
        devices_ = machine_.find(options_.threads);
        if (devices_.gpus.empty()) {
            if (options_.device != "auto" && devices_.absence == Absence::NotCompiledIn)
                throw UsageError("--device " + options_.device + ": " + devices_.why_no_gpu);
            return;
        }
        if (options_.device == "auto") {
            gpus_ = devices_.gpus;
            return;
        }
        try {
            gpus_ = decode::choose_device({options_.device, {}}, devices_).gpus;
        } catch (const kernels::BackendError &error) {
            throw UsageError(error.what());
        }
    }

    // A machine without a GPU is normal, unless the user asked for one; but a driver must work.
    void explain_no_gpu() {
        const bool driver =
            devices_.absence == Absence::DriverTooOld || devices_.absence == Absence::DriverFailed;
        if (!driver && options_.device == "auto")
            return add({Area::Gpu, "no GPU", Verdict::Skipped, devices_.why_no_gpu});
        Finding finding{Area::Gpu, "the NVIDIA driver", Verdict::Failed, devices_.why_no_gpu};
        switch (devices_.absence) {
            case Absence::DriverTooOld:
                finding.remedy = "Install a current NVIDIA driver.";
                break;
            case Absence::NoDriver:
                finding.remedy = "Install the NVIDIA driver (a container: start it with the host's GPUs).";
                break;
            case Absence::DriverFailed:
                finding.remedy =
                    "Restart the machine, and install a current NVIDIA driver if that does not "
                    "help (nvidia-smi shows whether the driver works).";
                break;
            default:
                finding.remedy =
                    "Check whether nvidia-smi lists a GPU, and whether CUDA_VISIBLE_DEVICES hides it.";
        }
        add(std::move(finding));
    }

    // A damaged file is not used for checking kernels.
    void look_at_file() {
        if (options_.path.empty()) return;
        try {
            file_ = gguf::File::open(options_.path);
        } catch (const gguf::FileError &error) {
            if (error.missing) throw;
            return add(no_gguf_file(error.what()));
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
            add(not_a_model(error.what()));
        }
    }

    // A file that does not begin with GGUF is not damaged: downloading it again would not help.
    Finding no_gguf_file(const std::string &why) const {
        Finding finding{Area::File, options_.path, Verdict::Wrong, why};
        char magic[4] = {};
        if (std::ifstream(options_.path, std::ios::binary).read(magic, sizeof magic) &&
            std::string_view(magic, sizeof magic) != "GGUF")
            finding.remedy = "Use a GGUF file of the model.";
        return finding;
    }

    // Reports a file that is not a model. The devices are then checked with the sample program's weights.
    Finding not_a_model(const std::string &why) const {
        Finding finding{Area::File, "model", Verdict::Wrong, why};
        const gguf::Value *const architecture = file_->find("general.architecture");
        const auto supported = model::supported_architectures();
        const auto name = architecture ? architecture->as_string() : std::nullopt;
        const bool known = name && std::ranges::find(supported, *name) != supported.end();
        finding.remedy =
            known ? "No program can run it: download it again, compare its checksum with the publisher's, "
                    "or use another conversion of the model."
                  : "This version of runnel does not run it: use a model of a supported family "
                    "(runnel inspect --supported), or a newer version of runnel.";
        return finding;
    }

    void look_at_cpu() {
        CheckedDevice cpu{Area::Cpu, [this] { return machine_.backend(*cpu_); }, kCpuTolerance};
        cpu.same_bits = [this] { return kernels::cpu::make_cpu_backend(options_.threads, "scalar"); };
        Finding device{Area::Cpu, cpu.make()->info().name, Verdict::Right};
        if (!options_.quick) {
            progress_.show("measuring memory");
            cpu.bytes_per_second = measure::BandwidthMeter(threads_).read();
            device.detail = "reads " + gigabytes(cpu.bytes_per_second);
            device.numbers["bytes_per_second"] = cpu.bytes_per_second;
        }
        add_of("cpu", std::move(device));
        for (Finding &finding : check_cpu_kernels(programs_.front().program, linear_kernels()))
            add_of("cpu", std::move(finding));
        look_at_steps(cpu, "cpu");
    }

    void look_at_steps(const CheckedDevice &device, const std::string &name) {
        for (const CheckedProgram &checked : programs_)
            for (const StepCase &step : checked.cases) {
                progress_.show(name + ": " + step.name);
                Finding finding = check(step, device);
                measure(step, checked.program, device, finding);
                add_of(name, std::move(finding));
            }
    }

    // With several GPUs, each line names its GPU.
    void add_of(const std::string &device, Finding finding) {
        finding.device = device;
        if (finding.area == Area::Gpu && gpus_.size() > 1) finding.subject = device + " " + finding.subject;
        add(std::move(finding));
    }

    void look_at_gpus() {
        if (options_.device == cpu_->name()) return;
        if (devices_.gpus.empty()) return explain_no_gpu();
        for (const kernels::DeviceNote &note : devices_.notes)
            add({Area::Gpu, note.subject, Verdict::Note, note.text});
        for (const kernels::DevicePtr &gpu : gpus_)
            if (look_at_gpu(*gpu)) {
                CheckedDevice checked{Area::Gpu, [this, gpu] { return machine_.backend(*gpu); }};
                checked.bytes_per_second = bytes_per_second_;
                look_at_steps(checked, gpu->name());
                sound_gpus_.push_back(gpu);
            }
    }

    // Checks speed and memory; returns whether further checks make sense.
    bool look_at_gpu(const kernels::Device &gpu) {
        bytes_per_second_ = 0;
        const std::string subject = gpu.info().name;
        try {
            if (const std::string note = gpu.note(); !note.empty())
                add_of(gpu.name(), {Area::Gpu, "machine code", Verdict::Note, note});
            Finding device{Area::Gpu, subject, Verdict::Right};
            if (!options_.quick) {
                progress_.show("measuring the GPU");
                bytes_per_second_ = gpu.copy_bandwidth();
                const double rate = gpu.tensor_rate();
                char text[80];
                std::snprintf(text, sizeof text, "copies %s, multiplies %.0f TFLOP/s (16 bits)",
                              gigabytes(bytes_per_second_).c_str(), rate / 1e12);
                device.detail = text;
                device.numbers = {{"bytes_per_second", bytes_per_second_}, {"bf16_flops", rate}};
            }
            add_of(gpu.name(), std::move(device));
            look_at_memory(gpu);
            return true;
        } catch (const kernels::BackendError &error) {
            add_of(gpu.name(), {Area::Gpu, subject, Verdict::Failed, error.what()});
            return false;
        }
    }

    void look_at_memory(const kernels::Device &gpu) {
        const size_t bytes =
            std::min(options_.quick ? kTestedMemory / 1024 : kTestedMemory, gpu.free_memory() / 4);
        uint64_t changed = 0;
        for (const uint64_t seed : {1u, 2u}) changed += gpu.changed_words(bytes, seed);
        char text[80];
        std::snprintf(text, sizeof text, "%.0f MiB written, copied and read back",
                      static_cast<double>(bytes) / 0x1p20);
        Finding finding{Area::Gpu, "memory", Verdict::Right, text};
        if (changed > 0) {
            finding.verdict = Verdict::Unstable;
            finding.detail += ": " + std::to_string(changed) + " words changed";
        }
        add_of(gpu.name(), std::move(finding));
    }

    void look_at_text() {
        if (!model_) return;
        decode::EngineOptions options;
        options.model = options_.path;
        options.threads = options_.threads;
        try {
            const TextLogits cpu = logits_of_text(options, text_tokens());
            Finding finding = check_text(cpu);
            const bool finite = finding.verdict != Verdict::Wrong;
            // A CPU with wrong kernels produces numbers that are not finite, too.
            if (!finite && is_at_fault(Area::Cpu)) finding.area = Area::Cpu;
            add_of("cpu", std::move(finding));
            for (const kernels::DevicePtr &gpu : sound_gpus_)
                if (finite) look_at_text_on(gpu->name(), options, cpu);
        } catch (const text::TokenizerError &error) {
            Finding finding{Area::File, "tokenizer", Verdict::Wrong, error.what()};
            finding.remedy = "No program can run it: use another conversion of the model.";
            add(std::move(finding));
        } catch (const decode::DecodeError &error) {
            add_of("cpu", {Area::Text, "a text on the CPU", Verdict::Skipped, error.what()});
        } catch (const kernels::BackendError &error) {
            const bool memory = error.kind == kernels::BackendError::Kind::OutOfMemory;
            add_of("cpu", {memory ? Area::Text : Area::Cpu, "a text on the CPU",
                           memory ? Verdict::Skipped : Verdict::Failed, error.what()});
        }
    }

    bool is_at_fault(Area area) const {
        return std::ranges::any_of(findings_,
                                   [&](const Finding &f) { return f.area == area && is_fault(f.verdict); });
    }

    void look_at_text_on(const std::string &name, decode::EngineOptions options, const TextLogits &cpu) {
        options.device.device = name;
        const auto skip = [&](const std::exception &error) {
            add_of(name, {Area::Text, "the same text on " + name, Verdict::Skipped, error.what()});
        };
        try {
            const TextLogits first = logits_of_text(options, text_tokens());
            add_of(name, compare_texts(cpu, first, logits_of_text(options, text_tokens()), name));
        } catch (const kernels::BackendError &error) {
            using Kind = kernels::BackendError::Kind;
            if (error.kind == Kind::OutOfMemory || error.kind == Kind::NoKernel) return skip(error);
            add_of(name, {Area::Gpu, "the same text", Verdict::Failed, error.what()});
        } catch (const decode::DecodeError &error) {
            skip(error);
        }
    }

    const DoctorOptions &options_;
    Io &io_;
    const Machine &machine_;
    Progress progress_;
    int threads_;
    kernels::DevicePtr cpu_;
    kernels::Devices devices_;                    // has no GPUs if only the CPU is checked
    std::vector<kernels::DevicePtr> gpus_;        // to be checked
    std::vector<kernels::DevicePtr> sound_gpus_;  // those of gpus_ that passed
    double bytes_per_second_ = 0;                 // bandwidth of the GPU's memory; 0: not measured
    std::optional<gguf::File> file_;
    std::optional<model::Model> model_;  // from an undamaged file
    std::list<CheckedProgram> programs_;
    std::set<std::string> known_;  // names of their cases
    std::vector<Finding> findings_;
};

}  // namespace

int doctor(const DoctorOptions &options, Io &io, const Machine &machine) {
    return Doctor(options, io, machine).run();
}

int doctor(const DoctorOptions &options, Io &io) {
    return doctor(options, io, Machine{});
}

}  // namespace runnel::commands
