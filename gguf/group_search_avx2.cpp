#include "gguf/group_search_body.h"
#include "gguf/group_search_tables.h"

namespace runnel::gguf {

constinit const GroupSearch kGroupSearchAvx2 = Search<8>::table("avx2");

}  // namespace runnel::gguf
