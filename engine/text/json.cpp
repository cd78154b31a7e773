#include "engine/text/json.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "gguf/printable.h"

namespace runnel::text {
namespace {

using Kind = JsonError::Kind;

// An open container. Its entries move into nlohmann's object only when it closes: that object copies its
// entries when it grows, and its own functions search all keys for every insertion.
struct Open {
    bool is_object;
    std::vector<std::string> keys{};
    std::vector<Json> values{};
};

// Moves the last value of each repeated key to its first entry; returns which entries are repetitions.
std::vector<bool> drop_repeated_keys(Open &object) {
    const std::vector<std::string> &keys = object.keys;
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    std::vector<bool> dropped(keys.size(), false);
    for (size_t i = 0, end = 0; i < order.size(); i = end) {
        for (end = i + 1; end < order.size() && keys[order[end]] == keys[order[i]]; ++end)
            dropped[order[end]] = true;
        if (end > i + 1) object.values[order[i]] = std::move(object.values[order[end - 1]]);
    }
    return dropped;
}

Json closed(Open &&open) {
    if (!open.is_object) return Json(Json::array_t(std::move(open.values)));
    const std::vector<bool> dropped = drop_repeated_keys(open);
    Json::object_t object;
    object.reserve(open.keys.size());
    for (size_t i = 0; i < open.keys.size(); ++i)
        if (!dropped[i]) object.emplace_back(std::move(open.keys[i]), std::move(open.values[i]));
    return Json(std::move(object));
}

// Builds the value from the parser's events.
class Builder {
  public:
    Builder(std::string_view text, const JsonLimits &limits, const std::atomic<bool> *stop)
        : text_(text), limits_(limits), stop_(stop) {}

    Json take() { return std::move(root_); }

    bool null() { return add(nullptr); }
    bool boolean(bool value) { return add(value); }
    bool number_integer(Json::number_integer_t value) { return add(value); }
    bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
    bool number_float(Json::number_float_t value, const std::string &) { return add(value); }
    bool string(std::string &value) { return add(std::move(value)); }
    bool binary(Json::binary_t &) { return false; }  // not possible in JSON text
    bool start_object(size_t) { return open(true); }
    bool start_array(size_t) { return open(false); }
    bool key(std::string &name) {
        open_.back().keys.push_back(std::move(name));
        return true;
    }
    bool end_object() { return close(); }
    bool end_array() { return close(); }

    [[noreturn]] bool parse_error(size_t position, const std::string &token, const Json::exception &error) {
        constexpr int kNumberOverflow = 406;
        const std::string_view before = text_.substr(0, std::min(position, text_.size()));
        const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
        const size_t start = before.rfind('\n');
        const size_t column = std::max<size_t>(before.size() - (start == before.npos ? 0 : start + 1), 1);
        const std::string place =
            "line " + std::to_string(line) + ", column " + std::to_string(column) + ": ";
        if (error.id == kNumberOverflow)
            throw JsonError(Kind::Syntax,
                            place + "the number '" + gguf::printable(token, 40) + "' is too large");
        if (position > text_.size() || token.empty()) throw JsonError(Kind::Syntax, place + "unexpected end");
        const std::string found = gguf::printable(text_.substr(std::max<size_t>(position, 1) - 1, 1));
        throw JsonError(Kind::Syntax, place + "unexpected '" + found + "'");
    }

  private:
    void count() {
        constexpr size_t kLookEvery = 4096;
        if (++values_ > limits_.values)
            throw JsonError(Kind::Limit, "more than " + std::to_string(limits_.values) + " values");
        if (stop_ && values_ % kLookEvery == 0 && stop_->load(std::memory_order_relaxed))
            throw JsonError(Kind::Stopped, "stopped");
    }
    bool put(Json value) {
        if (open_.empty())
            root_ = std::move(value);
        else
            open_.back().values.push_back(std::move(value));
        return true;
    }
    bool add(Json value) {
        count();
        return put(std::move(value));
    }
    bool open(bool is_object) {
        count();
        if (open_.size() == limits_.depth)
            throw JsonError(Kind::Limit, "nested deeper than " + std::to_string(limits_.depth) + " levels");
        open_.push_back({is_object});
        return true;
    }
    bool close() {
        Open last = std::move(open_.back());
        open_.pop_back();
        return put(closed(std::move(last)));
    }

    std::string_view text_;
    const JsonLimits &limits_;
    const std::atomic<bool> *stop_;
    Json root_;
    std::vector<Open> open_;  // outermost first
    size_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const JsonLimits &limits, const std::atomic<bool> *stop) {
    if (text.size() > limits.bytes)
        throw JsonError(Kind::Limit, "longer than " + std::to_string(limits.bytes >> 20) + " MiB");
    Builder builder(text, limits, stop);
    Json::sax_parse(text, &builder);
    return builder.take();
}

const Json *find_member(const Json &object, std::string_view key) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(std::string(key));
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace runnel::text
