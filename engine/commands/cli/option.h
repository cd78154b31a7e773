// The options of a command as data. One table feeds the command line, help, shell completion, the man page,
// the configuration file and the environment.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/decode/sampling_settings.h"

namespace runnel::commands {

using decode::NumberRange;
using decode::shown_number;
using decode::whole_numbers;

// The sections of help, in order.
enum class Group { Prompt, Sampling, Context, Device, Drafts, Output, General };
inline constexpr Group kGroups[] = {Group::Prompt, Group::Sampling, Group::Context, Group::Device,
                                    Group::Drafts, Group::Output,   Group::General};
std::string_view title(Group group);

// A value that an option does not accept; what() says what it accepts: "a number from 0 to 1".
class ValueError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Option {
    std::vector<std::string> names;  // as typed, "-c" before "--ctx-size", other spellings after them
    std::string value;               // the value's name in help: "N", "FILE"; empty: a flag
    std::string help;
    std::string fallback;              // the default shown in help; empty: none
    std::vector<std::string> choices;  // all values, if there are only a few
    std::string alone;                 // the value if the option stands without one; empty: it needs a value
    Group group = Group::General;
    bool is_rare = false;                          // shown by --help-all only
    bool is_repeatable = false;                    // values accumulate
    std::function<void(const std::string &)> set;  // throws ValueError
    std::function<void()> clear;                   // clears a repeatable option

    bool is_flag() const { return value.empty(); }
    // The first long name without dashes: its key in configuration files.
    std::string_view name() const;
    bool is_called(std::string_view typed) const;
    // RUNNEL_CTX_SIZE for --ctx-size.
    std::string variable() const;

    Option &in(Group where) {
        group = where;
        return *this;
    }
    Option &rare() {
        is_rare = true;
        return *this;
    }
    Option &takes(std::string_view what) {
        value = what;
        return *this;
    }
    Option &or_alone(std::string_view what) {
        alone = what;
        return *this;
    }
    Option &by_default(std::string_view what) {
        fallback = what;
        return *this;
    }
};

// Throws ValueError.
double number_in(const NumberRange &range, const std::string &text);
// true, false, on, off, yes, no, 1, 0. Throws ValueError.
bool truth(const std::string &text);
// Bytes: "800M", "4G", "1.5GiB", powers of 1024. Throws ValueError.
int64_t byte_size(const std::string &text, int64_t most);
// Joins words: "a, b or c".
std::string listed(const std::vector<std::string> &words);

// Keeps references to the values that its options set. If an option is given twice, the last one counts.
class OptionTable {
  public:
    // `names`: separated by commas. The option belongs to the group of the last in_group().
    Option &flag(std::string_view names, bool &value, std::string_view help);
    Option &text(std::string_view names, std::string &value, std::string_view help);
    Option &text(std::string_view names, std::optional<std::string> &value, std::string_view help);
    Option &list(std::string_view names, std::vector<std::string> &values, std::string_view help);
    // An option of any other kind: `set` receives its value.
    Option &add(std::string_view names, std::string_view value, std::string_view help,
                std::function<void(const std::string &)> set);

    template <class T>
    Option &number(std::string_view names, T &value, NumberRange range, std::string_view help) {
        Option &option = add(names, "N", help, [&value, range](const std::string &text) {
            value = static_cast<T>(number_in(range, text));
        });
        return option.by_default(shown_number(static_cast<double>(value)));
    }
    template <class T>
    Option &number(std::string_view names, std::optional<T> &value, NumberRange range,
                   std::string_view help) {
        return add(names, "N", help, [&value, range](const std::string &text) {
            value = static_cast<T>(number_in(range, text));
        });
    }
    template <class T>
    Option &numbers(std::string_view names, std::vector<T> &values, NumberRange range,
                    std::string_view help) {
        Option &option = add(names, "N,...", help, [&values, range](const std::string &text) {
            for (const std::string &part : split(text))
                values.push_back(static_cast<T>(number_in(range, part)));
        });
        option.is_repeatable = true;
        option.clear = [&values] { values.clear(); };
        return option;
    }
    template <class E>
    Option &choice(std::string_view names, E &value,
                   std::vector<std::pair<std::string, std::type_identity_t<E>>> choices,
                   std::string_view help) {
        std::vector<std::string> words;
        std::string fallback;
        for (const auto &[word, meaning] : choices) {
            words.push_back(word);
            if (meaning == value && fallback.empty()) fallback = word;
        }
        Option &option = add(names, "WORD", help, [&value, words, choices](const std::string &text) {
            for (const auto &[word, meaning] : choices)
                if (word == text) {
                    value = meaning;
                    return;
                }
            throw ValueError(listed(words));
        });
        option.choices = words;
        return option.by_default(fallback);
    }

    void in_group(Group group) { group_ = group; }

    // Lets an option of one value take a list of them, "1,2,4": `values` becomes the words of the list, each of
    // which the option accepts. Returns what sets one of them. Precondition: there is such an option.
    std::function<void(const std::string &)> take_list(std::string_view typed,
                                                       std::vector<std::string> &values);

    // Null if there is no option of that name ("--ctx-size", "-c").
    const Option *find(std::string_view typed) const;
    const std::deque<Option> &options() const { return options_; }

  private:
    static std::vector<std::string> split(std::string_view text);

    std::deque<Option> options_;
    Group group_ = Group::General;
};

}  // namespace runnel::commands
