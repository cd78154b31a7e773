#include "tests/support/reference.h"

#include <bit>
#include <cmath>

namespace runnel::kernels::reference {

void hadamard(std::span<double> head) {
    const size_t size = head.size() & (~head.size() + 1);
    for (size_t first = 0; first < head.size(); first += size) {
        const Row x(head.begin() + static_cast<std::ptrdiff_t>(first),
                    head.begin() + static_cast<std::ptrdiff_t>(first + size));
        for (size_t i = 0; i < size; ++i) {
            double sum = 0;
            for (size_t j = 0; j < size; ++j) sum += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
            head[first + i] = sum / std::sqrt(static_cast<double>(size));
        }
    }
}

}  // namespace runnel::kernels::reference
