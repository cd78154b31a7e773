// A saved chat.
#include "engine/commands/chat/transcript.h"
#include "engine/commands/io.h"
#include "tests/fuzz/targets.h"
#include "tests/support/memory_file.h"

namespace runnel::fuzz {

void transcript(Input input) {
    const testing::MemoryFile file(input);
    try {
        commands::Transcript loaded = commands::Transcript::load(file.path());
        for (const text::Message &message : loaded.messages)
            require(!message.role.empty(), "a message has a role");
        while (loaded.forget_oldest()) {
        }
        (void)loaded.undo();
        (void)loaded.all();
    } catch (const commands::InputError &) {
    } catch (const commands::UsageError &) {
    }
}

}  // namespace runnel::fuzz
