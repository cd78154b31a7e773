// Text that records which of its bytes came from the template and which from the conversation.
//
// Control tokens are recognized only in text of the template, so no message can forge one; therefore
// every string operation (slice, strip, join, ...) keeps the marks. A text with a single origin, the
// usual case, has no overhead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace runnel::text::jinja {

enum class Origin : uint8_t {
    Template,
    Content,  // input of the template: messages, tools, documents
};

class MarkedText {
  public:
    MarkedText() = default;
    explicit MarkedText(std::string bytes, Origin origin = Origin::Template)
        : bytes_(std::move(bytes)), origin_(origin) {}

    const std::string &bytes() const { return bytes_; }
    std::string_view view() const { return bytes_; }
    size_t size() const { return bytes_.size(); }
    bool empty() const { return bytes_.empty(); }
    // Content if any byte is content.
    Origin origin() const { return runs_.empty() ? origin_ : Origin::Content; }

    void append(std::string_view bytes, Origin origin);
    void append(const MarkedText &text) { append(text, 0, text.size()); }
    void append(const MarkedText &text, size_t begin, size_t length);
    MarkedText substr(size_t begin, size_t length = SIZE_MAX) const;
    void truncate(size_t length);

    // For the tokenizer: one segment per run, special if it came from the template.
    std::vector<Segment> segments() const;

  private:
    // A run extends from the previous run's end to `end`. runs_ is empty for a single origin; otherwise
    // origins alternate and the last run ends with the text.
    struct Run {
        size_t end;
        Origin origin;
    };
    size_t run_at(size_t byte) const;

    std::string bytes_;
    std::vector<Run> runs_;
    Origin origin_ = Origin::Template;  // of the whole text if runs_ is empty
};

}  // namespace runnel::text::jinja
