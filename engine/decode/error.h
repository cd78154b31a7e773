// The one exception type of decode/.
#pragma once

#include <stdexcept>
#include <string>

namespace runnel::decode {

// what() is one line that says what failed and what the user can do.
class DecodeError : public std::runtime_error {
  public:
    enum class Kind {
        Failed,       // while running: logits that are not finite, a file that cannot be written
        OutOfMemory,  // the context does not fit
        BadInput,     // a prompt that is empty or longer than the context, a base file that is not one
    };
    DecodeError(Kind error_kind, const std::string &what) : std::runtime_error(what), kind(error_kind) {}
    Kind kind;
};

}  // namespace runnel::decode
