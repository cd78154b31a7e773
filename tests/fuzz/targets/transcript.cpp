// A saved chat.
#include "engine/commands/chat/transcript.h"
#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/io.h"
#include "tests/fuzz/targets.h"
#include "tests/support/memory_file.h"

namespace runnel::fuzz {

void transcript(Input input) {
    const testing::MemoryFile file(input);
    try {
        const commands::Transcript loaded = commands::Transcript::load(file.path());
        commands::Conversation talk;
        for (const text::Message &message : loaded.messages) talk.add({.message = message});
        commands::Conversation copy;
        for (const commands::Json &entry : talk.entries()) copy.apply(entry);
        require(copy.entries() == talk.entries(), "a conversation can be rebuilt from its entries");
        (void)commands::tree_text(talk, 80, false);
        (void)commands::markdown(talk);
    } catch (const commands::InputError &) {
    } catch (const commands::UsageError &) {
    }
}

}  // namespace runnel::fuzz
