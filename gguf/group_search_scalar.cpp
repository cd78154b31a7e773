// Four lanes, which every 64-bit processor has.
#include "gguf/group_search_body.h"
#include "gguf/group_search_tables.h"

namespace runnel::gguf {

constinit const GroupSearch kGroupSearchScalar = Search<4>::table("scalar");

}  // namespace runnel::gguf
