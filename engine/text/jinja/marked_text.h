// Text that remembers which of its bytes the template wrote and which came in with the conversation.
//
// Control tokens are found in what the template wrote only, so no message can forge one; therefore every
// operation on strings (slice, strip, join, ...) keeps the marks. It costs nothing where a text has one
// origin, which nearly all have.
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
    Content,  // messages, tools, documents: whatever the template is given
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
    // Content where any byte is.
    Origin origin() const { return runs_.empty() ? origin_ : Origin::Content; }

    void append(std::string_view bytes, Origin origin);
    void append(const MarkedText &text) { append(text, 0, text.size()); }
    void append(const MarkedText &text, size_t begin, size_t length);
    MarkedText substr(size_t begin, size_t length = SIZE_MAX) const;
    void truncate(size_t length);

    // As the tokenizer wants it: one segment per run, special where the template wrote it.
    std::vector<Segment> segments() const;

  private:
    // Bytes up to `end` from the run before on. runs_ is empty for one origin, otherwise origins alternate
    // and the last run ends with the text.
    struct Run {
        size_t end;
        Origin origin;
    };
    size_t run_at(size_t byte) const;

    std::string bytes_;
    std::vector<Run> runs_;
    Origin origin_ = Origin::Template;  // of all, when runs_ is empty
};

}  // namespace runnel::text::jinja
