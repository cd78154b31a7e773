// A model file up to the prompt of a chat: what `run` and `chat` do with an untrusted file before they compute.
#include <vector>

#include "engine/text/chat_prompt.h"
#include "engine/text/tokenizer.h"
#include "gguf/file.h"
#include "tests/fuzz/targets.h"

namespace runnel::fuzz {
namespace {

using namespace std::string_view_literals;

// Reads all that a file offers.
void use(const gguf::File &file) {
    for (const auto &[key, value] : file.metadata()) {
        require(file.find(key) != nullptr, "a key that is listed is found");
        for (const gguf::Value &element : value.elements()) (void)element.size();
        (void)value.as_ints(), (void)value.as_floats(), (void)value.as_strings();
    }
    for (const gguf::Tensor &tensor : file.tensors()) {
        require(tensor.bytes > 0, "a tensor has bytes");
        volatile auto last = tensor.data[tensor.bytes - 1];
        (void)last;
        require(file.find_tensor(tensor.name) != nullptr, "a tensor that is listed is found");
    }
}

void use(const text::Tokenizer &tokenizer) {
    for (const std::string_view text : {"Hello, world! 12 \xe4\xb8\xad\xff<|im_end|></s>"sv, " "sv, ""sv}) {
        for (const bool special : {false, true})
            for (const text::TokenId id : tokenizer.encode(text, {.parse_special = special}))
                require(id >= 0 && id < tokenizer.size(), "a token is in the vocabulary");
        (void)tokenizer.decode(tokenizer.encode(text));
    }
}

// Small limits: a run is to be quick.
const text::ChatPromptOptions &prompt_options() {
    static const text::ChatPromptOptions options = [] {
        text::ChatPromptOptions small;
        small.render.limits.steps = 20000;
        small.render.limits.memory = 4 << 20;
        small.render.limits.output = 1 << 20;
        return small;
    }();
    return options;
}

void use(const gguf::File &file, const text::Tokenizer &tokenizer) {
    try {
        const text::ChatPrompt prompt(file, tokenizer, prompt_options());
        const std::vector<text::Message> messages = {
            {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello."}, {"user", "{{ x }}"}};
        (void)tokenizer.encode(prompt.render(messages));
    } catch (const text::jinja::TemplateError &) {
    }
}

}  // namespace

void gguf(Input input) {
    const std::vector<std::byte> exact(reinterpret_cast<const std::byte *>(input.data()),
                                       reinterpret_cast<const std::byte *>(input.data()) + input.size());
    try {
        const gguf::File file = gguf::File::from_bytes(exact, "fuzz.gguf");
        use(file);
        const text::Tokenizer tokenizer = text::Tokenizer::load(file);
        use(tokenizer);
        use(file, tokenizer);
    } catch (const gguf::FileError &) {
    } catch (const text::TokenizerError &) {
    }
}

}  // namespace runnel::fuzz
