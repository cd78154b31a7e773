#include "engine/commands/doctor/doctor_report.h"

#include <algorithm>
#include <functional>

#include "engine/commands/io.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using Area = Finding::Area;
using Verdict = Finding::Verdict;

std::string padded(std::string_view text, size_t width) {
    std::string result(text);
    result.resize(std::max(result.size(), width), ' ');
    return result;
}

// "q4_K, q6_K and 3 more"
std::string list_of(const std::vector<Finding> &findings,
                    const std::function<bool(const Finding &)> &wanted) {
    constexpr size_t kMost = 4;
    std::string text;
    size_t count = 0;
    for (const Finding &f : findings) {
        if (!wanted(f)) continue;
        if (count < kMost) text += (count ? "; " : "") + gguf::printable(f.subject, 200);
        ++count;
    }
    return count > kMost ? text + " and " + std::to_string(count - kMost) + " more" : text;
}

class Judge {
  public:
    explicit Judge(const std::vector<Finding> &findings) : findings_(findings) {}

    Conclusion conclude() const {
        if (has(Area::File, Verdict::Wrong)) return of_file();
        if (faults(Area::Cpu) > 0) return of_cpu();
        if (faults(Area::Gpu) + faults(Area::Text) > 0) return of_gpu();
        return {"none", all_well(), exit_code::kDone};
    }

  private:
    size_t count(const std::function<bool(const Finding &)> &wanted) const {
        return static_cast<size_t>(std::count_if(findings_.begin(), findings_.end(), wanted));
    }
    bool has(Area area, Verdict verdict) const {
        return count([&](const Finding &f) { return f.area == area && f.verdict == verdict; }) > 0;
    }
    bool has(Verdict verdict) const {
        return count([&](const Finding &f) { return f.verdict == verdict; }) > 0;
    }
    size_t faults(Area area) const {
        return count([&](const Finding &f) { return f.area == area && is_fault(f.verdict); });
    }
    std::string named(Area area, Verdict verdict) const {
        return list_of(findings_, [&](const Finding &f) {
            return f.area == area && f.verdict == verdict && f.role != Finding::Role::Summary;
        });
    }
    // told(): the area's first fault that has its own remedy, or null. all_told(): whether all its faults have one.
    const Finding *told(Area area) const {
        const auto found = std::find_if(findings_.begin(), findings_.end(), [&](const Finding &f) {
            return f.area == area && is_fault(f.verdict) && !f.remedy.empty();
        });
        return found == findings_.end() ? nullptr : &*found;
    }
    bool all_told(Area area) const {
        return std::none_of(findings_.begin(), findings_.end(), [&](const Finding &f) {
            return f.area == area && is_fault(f.verdict) && f.remedy.empty();
        });
    }
    std::string named(Area area) const {
        return list_of(findings_, [&](const Finding &f) { return f.area == area && is_fault(f.verdict); });
    }

    Conclusion of_file() const {
        if (all_told(Area::File)) {
            const Finding &why = *told(Area::File);
            return {"file", "The file is at fault: " + gguf::printable(why.detail, 300) + ". " + why.remedy,
                    exit_code::kModelFile};
        }
        return {"file",
                "The file is damaged (" + named(Area::File, Verdict::Wrong) +
                    "): download it again, and compare its checksum with the publisher's.",
                exit_code::kModelFile};
    }

    Conclusion of_cpu() const {
        if (faults(Area::Cpu) ==
            count([](const Finding &f) { return f.area == Area::Cpu && f.verdict == Verdict::Failed; }))
            return {"cpu",
                    "The CPU failed (" + named(Area::Cpu) +
                        "): these lines say why. Free memory, or choose fewer threads with -t.",
                    exit_code::kFailed};
        return {"cpu",
                "The CPU's results are wrong (" + named(Area::Cpu) +
                    "). If another run shows the same errors, RUNNEL_CPU=scalar avoids these kernels, and "
                    "please report them. If not, memory or an overclocked CPU is at fault.",
                exit_code::kFailed};
    }

    // Whether every comparison of the device with the reference failed.
    bool nothing_right(const std::string &device) const {
        const auto steps = [&](auto wanted) {
            return count([&](const Finding &f) {
                return f.area == Area::Gpu && f.role == Finding::Role::Step && f.device == device &&
                       wanted(f.verdict);
            });
        };
        return steps([](Verdict v) { return v == Verdict::Wrong; }) > 0 &&
               steps([](Verdict v) { return v == Verdict::Right || v == Verdict::Slow; }) == 0;
    }

    Conclusion of_gpu() const {
        const std::string without = " Until then: --device cpu.";
        // The names of the parts are those of kernels/cuda/runtime/switches.h.
        const std::string halves =
            " RUNNEL_CUDA_OFF=pdl,graphs,prefetch,staging,carveout,peer,trigger,nccl disables parts of the "
            "GPU's "
            "work, each by its name: find the one that makes the difference.";
        if (has(Verdict::Unstable))
            return {"gpu",
                    "The GPU is at fault: the same work gave different results (" +
                        list_of(findings_, [](const Finding &f) { return f.verdict == Verdict::Unstable; }) +
                        "). Heat, power, overclocking or its memory: look at nvidia-smi and dmesg (Xid)." +
                        halves + without,
                    exit_code::kFailed};
        if (const Finding *why = told(Area::Gpu))
            return {"driver",
                    "The GPU's driver is at fault: " + gguf::printable(why->detail, 300) + ". " +
                        why->remedy + without,
                    exit_code::kFailed};
        if (has(Area::Gpu, Verdict::Failed))
            return {"driver",
                    "The driver does not run the kernels (" + named(Area::Gpu, Verdict::Failed) +
                        "): restart the machine, and install a current driver." + without,
                    exit_code::kFailed};
        const auto broken = std::find_if(findings_.begin(), findings_.end(),
                                         [&](const Finding &f) { return nothing_right(f.device); });
        if (broken != findings_.end())
            return {"driver",
                    "Nothing that the GPU" + (broken->device.empty() ? "" : " " + broken->device) +
                        " computes is right: the driver does not suit this program, or the GPU is "
                        "broken. Install a current driver." +
                        without,
                    exit_code::kFailed};
        const std::string what = faults(Area::Gpu) > 0 ? named(Area::Gpu) : named(Area::Text);
        return {"kernel",
                "Some kernels are wrong on this GPU (" + what +
                    "), in the same way every time: please report these lines." + halves + without,
                exit_code::kFailed};
    }

    std::string all_well() const {
        const std::string noted = named(Area::File, Verdict::Note);
        std::string text = noted.empty()
                               ? "All checks passed."
                               : "All checks passed, but read the notes about the file (" + noted +
                                     "): if its answers are bad, compare its checksum with the publisher's.";
        const std::string slow =
            list_of(findings_, [](const Finding &f) { return f.verdict == Verdict::Slow; });
        if (!slow.empty()) text += " Slower than the memory allows: " + slow + ".";
        return text;
    }

    const std::vector<Finding> &findings_;
};

}  // namespace

std::string_view name_of(Area area) {
    switch (area) {
        case Area::File:
            return "file";
        case Area::Cpu:
            return "cpu";
        case Area::Gpu:
            return "gpu";
        case Area::Text:
            break;
    }
    return "text";
}

std::string_view name_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::Right:
            return "right";
        case Verdict::Slow:
            return "slow";
        case Verdict::Note:
            return "note";
        case Verdict::Skipped:
            return "skipped";
        case Verdict::Varies:
            return "VARIES";
        case Verdict::Unstable:
            return "UNSTABLE";
        case Verdict::Wrong:
            return "WRONG";
        case Verdict::Failed:
            break;
    }
    return "FAILED";
}

bool is_fault(Verdict verdict) {
    return verdict == Verdict::Varies || verdict == Verdict::Unstable || verdict == Verdict::Wrong ||
           verdict == Verdict::Failed;
}

std::string line_of(const Finding &finding) {
    std::string text = padded(name_of(finding.area), 5) + padded(name_of(finding.verdict), 9) +
                       padded(gguf::printable(finding.subject, 200), 46);
    if (!finding.detail.empty()) text += "  " + gguf::printable(finding.detail, 1000);
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

Conclusion conclude(const std::vector<Finding> &findings) {
    return Judge(findings).conclude();
}

Json to_json(const std::vector<Finding> &findings, const Conclusion &conclusion) {
    Json list = Json::array();
    for (const Finding &f : findings) {
        std::string verdict(name_of(f.verdict));
        std::transform(verdict.begin(), verdict.end(), verdict.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        Json entry = {{"area", name_of(f.area)}, {"subject", f.subject}, {"verdict", verdict}};
        if (!f.device.empty()) entry["device"] = f.device;
        entry["detail"] = f.detail;
        entry.update(f.numbers);
        list.push_back(std::move(entry));
    }
    return {{"fault", conclusion.fault}, {"conclusion", conclusion.text}, {"checks", std::move(list)}};
}

}  // namespace runnel::commands
