// The table of model families. A new one is a file beside llama.cpp and a line in families.cpp.
#pragma once

#include <span>
#include <string_view>

#include "engine/model/builder.h"

namespace runnel::model {

struct Family {
    std::string_view architecture;  // general.architecture
    void (*emit)(Builder &);        // writes the whole program
};

std::span<const Family> families();

void emit_llama(Builder &);
void emit_qwen2(Builder &);
void emit_qwen3(Builder &);

}  // namespace runnel::model
