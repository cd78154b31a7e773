#include "engine/commands/batch/batch_manifest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <span>
#include <system_error>

#include "engine/commands/json.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr int kVersion = 3;
constexpr std::string_view kBegin = "{\"runnel_batch\":";

std::optional<Json> object_of(std::string_view line) {
    try {
        Json json = parse_json(line);
        if (json.is_object()) return json;
    } catch (const JsonError &) {
    }
    return std::nullopt;
}

template <class T>
bool take(const Json &object, const char *key, T &to) {
    const auto found = object.find(key);
    if (found == object.end()) return false;
    if constexpr (std::is_same_v<T, std::string>) {
        if (!found->is_string()) return false;
    } else if (!found->is_number_unsigned()) {
        return false;
    }
    to = found->get<T>();
    return true;
}

std::optional<ManifestRow> row_of(const Json &object) {
    ManifestRow row;
    if (!take(object, "line", row.line) || !take(object, "at", row.at) || !take(object, "bytes", row.bytes) ||
        !take(object, "row", row.row) || !take(object, "answer", row.answer))
        return std::nullopt;
    return row;
}

std::optional<BatchEnd> end_of(const Json &object) {
    BatchEnd end;
    const auto found = object.find("end");
    if (found == object.end() || !found->is_object() || !take(*found, "rows", end.rows) ||
        !take(*found, "lines", end.lines) || !take(*found, "bytes", end.bytes) ||
        !take(*found, "input", end.input) || !take(*found, "version", end.version))
        return std::nullopt;
    return end;
}

std::optional<BatchSettings> settings_of(const Json &object) {
    int version = 0;
    const auto list = object.find("settings");
    if (!take(object, "runnel_batch", version) || version != kVersion || list == object.end() ||
        !list->is_object())
        return std::nullopt;
    BatchSettings settings;
    for (const auto &[name, value] : list->items()) {
        if (!value.is_string()) return std::nullopt;
        settings.emplace_back(name, value.get<std::string>());
    }
    return settings;
}

const std::string *value_of(const BatchSettings &settings, const std::string &name) {
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const auto &setting) { return setting.first == name; });
    return found == settings.end() ? nullptr : &found->second;
}

std::string shown(const std::string *value) {
    if (!value || value->empty()) return "not given";
    return gguf::printable(*value, 60);
}

}  // namespace

std::string content_hash(std::string_view bytes) {
    base::Checksum sum;
    sum.add_value(uint64_t{bytes.size()});
    sum.add(std::as_bytes(std::span(bytes)));
    return shown_hash(sum.value());
}

std::string shown_hash(const base::Checksum::Value &value) {
    std::string text;
    for (const std::byte byte : std::as_bytes(std::span(&value, 1))) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
        text += digits;
    }
    return text;
}

std::string differences(const BatchSettings &before, const BatchSettings &now) {
    std::string text;
    const auto add = [&](const std::string &name, const std::string *was, const std::string *is) {
        text += (text.empty() ? "" : "; ") + name + " was " + shown(was) + " and is " + shown(is);
    };
    for (const auto &[name, value] : now) {
        const std::string *was = value_of(before, name);
        if (!was || *was != value) add(name, was, &value);
    }
    for (const auto &[name, value] : before)
        if (!value_of(now, name)) add(name, &value, nullptr);
    return text;
}

BatchManifest::BatchManifest(const std::string &path) : path_(path), name_(gguf::printable(path, 4096)) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) return;
    if (!S_ISREG(status.st_mode))
        throw UsageError(name_ + " is not a regular file: batch keeps its record for --resume there");
    read(read_all(path, -1, nullptr, InputFile::Replaceable::Yes));
}

void BatchManifest::read(const std::string &text) {
    // A manifest that was cut within its first line, or begins with zeros, counts as none.
    const std::string_view begin = std::string_view(text).substr(0, kBegin.size());
    const bool ours = kBegin.starts_with(begin) || begin.find_first_not_of('\0') == begin.npos;
    if (!ours)
        throw UsageError(name_ +
                         " was not written by runnel batch, which keeps its record for --resume there: "
                         "choose another output");
    for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
        const std::optional<Json> object = object_of(std::string_view(text).substr(at, end - at));
        if (!object) break;
        if (end_) break;  // nothing follows the end
        if (auto settings = settings_of(*object)) {
            is_mixed_ |= !rows_.empty() && settings_ != settings;
            settings_ = std::move(settings);
            header_ = at;
            take(*object, "output", output_);
        } else if (auto row = settings_ ? row_of(*object) : std::nullopt) {
            is_mixed_ |= row->row.empty();
            rows_.push_back(std::move(*row));
            begins_.push_back(at);
        } else if (auto found = settings_ ? end_of(*object) : std::nullopt) {
            end_ = std::move(found);
            end_at_ = at;
        } else {
            break;
        }
        good_ = end + 1;
    }
}

void BatchManifest::go_on(const std::string &output, const BatchSettings &settings, size_t rows) {
    if (rows == 0)
        good_ = 0;
    else if (rows < rows_.size())
        good_ = begins_[rows];
    else if (end_)
        good_ = end_at_;
    end_.reset();
    if (good_ <= header_) settings_.reset();
    rows_.resize(rows);
    begins_.resize(rows);
    // O_NOFOLLOW: this name is derived from the output's, so the user did not choose a link.
    file_.emplace(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666), true);
    if (file_->get() < 0) fail();
    gguf::refuse_if_read(file_->get(), path_);
    if (ftruncate(file_->get(), static_cast<off_t>(good_)) != 0) fail();
    if (settings_ != settings || output_ != output) write_header(output, settings);
    settings_ = settings;
    output_ = output;
    sync();
}

void BatchManifest::write_header(const std::string &output, const BatchSettings &settings) {
    Json list = Json::object();
    for (const auto &[name, value] : settings) list[name] = value;
    write(dump({{"runnel_batch", kVersion}, {"output", output}, {"settings", std::move(list)}}));
}

void BatchManifest::append(const ManifestRow &row) {
    write(dump({{"line", row.line},
                {"at", row.at},
                {"bytes", row.bytes},
                {"row", row.row},
                {"answer", row.answer}}));
}

void BatchManifest::append(const BatchEnd &end) {
    write(dump({{"end",
                 {{"rows", end.rows},
                  {"lines", end.lines},
                  {"bytes", end.bytes},
                  {"input", end.input},
                  {"version", end.version}}}}));
}

void BatchManifest::write(const std::string &line) {
    try {
        Output(file_->get(), name_).write(line);
    } catch (const OutputError &) {  // a full disk: remove the partial line
        if (ftruncate(file_->get(), static_cast<off_t>(good_)) != 0) fail();
        throw;
    }
    good_ += line.size();
}

void BatchManifest::sync() {
    if (file_ && fdatasync(file_->get()) != 0) fail();
}

void BatchManifest::fail() const {
    throw OutputError("cannot write " + name_ + ": " + std::generic_category().message(errno));
}

}  // namespace runnel::commands
