// Parses source to a tree, with Jinja's grammar: the built-in statements, loop controls (break,
// continue), and Hugging Face's {% generation %} tag. include, import and extends are rejected,
// because there is nothing to load.
#pragma once

#include <memory>
#include <string_view>

#include "engine/text/jinja/ast.h"

namespace runnel::text::jinja {

// Longer templates and deeper nesting are rejected. The longest published template has about 20 KB.
inline constexpr size_t kMaxSource = size_t{1} << 20;
inline constexpr uint32_t kMaxHeight = 250;  // of an expression
inline constexpr uint32_t kMaxBlocks = 100;  // statements within statements

// `source` as normalize_source() gives it. Throws TemplateError{Syntax}.
std::shared_ptr<const Program> parse(std::string_view source);

}  // namespace runnel::text::jinja
