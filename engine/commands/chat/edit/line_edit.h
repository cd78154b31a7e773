// Applies the keys of the line editor to its text. Knows nothing of the terminal.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "engine/commands/chat/edit/edit_screen.h"
#include "engine/commands/chat/edit/edit_text.h"
#include "engine/commands/chat/edit/history.h"
#include "engine/commands/chat/edit/keys.h"

namespace runnel::commands {

class LineEdit {
  public:
    // What the caller has to do after a key.
    enum class Action {
        None,
        Submit,     // text() is the message
        GiveUp,     // Ctrl-C
        End,        // Ctrl-D in an empty text
        Suspend,    // Ctrl-Z
        Editor,     // Ctrl-G: open the text in $EDITOR
        Complete,   // Tab
        Reasoning,  // Ctrl-T: show or fold it
        Redraw,     // Ctrl-L: clear the screen and draw the text again
    };
    // `history` must outlive it. `blocks`: a first line of """ begins a text that ends with another such line.
    LineEdit(History &history, std::string prompt, bool blocks)
        : history_(history), prompt_(std::move(prompt)), blocks_(blocks) {}

    // `columns`: of the window, for Up and Down.
    Action press(const Key &key, int columns);
    EditText &text() { return text_; }
    const EditText &text() const { return text_; }
    // What Submit sends: the text without the marks of a block.
    std::string message() const;
    // Replaces the text with one that was not typed.
    void set(std::string text);
    // The given prompt, or during a Ctrl-R search the search's prompt.
    std::string prompt() const;

  private:
    struct Search {
        std::string part, before;  // the text to find; the edited text when the search began
        size_t index;              // of the match shown
        bool failed = false;
    };
    Action press_control(char letter, int columns);
    Action enter();
    bool in_open_block() const;
    bool is_block() const;
    void up(int columns);
    void down(int columns);
    void kill(size_t begin, size_t end);
    // Returns true if the key belongs to the search; otherwise the search is over.
    bool search(const Key &key);
    void find(size_t before);

    Action act(const Key &key, int columns);

    History &history_;
    std::string prompt_;
    bool blocks_;
    EditText text_;
    std::string killed_;            // for Ctrl-Y
    bool pasted_ = false;           // something in the text was not typed
    bool typed_backslash_ = false;  // the last key was a backslash
    std::optional<Search> search_;
};

}  // namespace runnel::commands
