#include "gguf/group_search_body.h"
#include "gguf/group_search_tables.h"

namespace runnel::gguf {

constinit const GroupSearch kGroupSearchAvx512 = Search<16>::table("avx512");

}  // namespace runnel::gguf
