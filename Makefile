# make            build/runnel
# make demo       build, then stream text from a model
# make test       build and run the tests
# make asan       the tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make lint       formatting and the rules of the house
# make clean
#
# Every target installs what it needs first (scripts/setup) when something is missing.

BUILD ?= build
CXX ?= g++
OPT ?= -O3
# -Wno-restrict: GCC 12 sees an overlap in std::string's operator+ where none is (GCC bug 105651).
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict -Werror
# -ffp-contract=off: the order and rounding of every float operation is part of the product (kernels/cpu/README.md).
SANITIZE ?=
CXXFLAGS += -std=c++20 $(OPT) -g1 $(WARN) $(SANITIZE) -ffp-contract=off -fno-math-errno -pthread -I.
LDLIBS = -l:libpcre2-8.a -l:libutf8proc.a -l:libedit.a -l:libtinfo.a -l:libbsd.a -l:libmd.a
LDFLAGS += $(SANITIZE) -pthread -static-libstdc++ -static-libgcc

ISA =
# The same kernels are compiled for several instruction sets and chosen at run time: the file name says which.
%_avx2.o: ISA = -mavx2 -mfma -mf16c -mbmi2
# (GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes: PR 105593.)
%_avx512.o: ISA = -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512 \
  -Wno-uninitialized -Wno-maybe-uninitialized

sources := $(shell find gguf kernels engine -name '*.cpp' 2>/dev/null)
tests := $(shell find tests -name '*.cpp' -not -path 'tests/tools/*' 2>/dev/null)
tools := $(shell find tests/tools -name '*.cpp' 2>/dev/null)
objects := $(sources:%.cpp=$(BUILD)/obj/%.o)
test_objects := $(tests:%.cpp=$(BUILD)/obj/%.o)

.PHONY: all demo test asan lint format clean setup
all: $(BUILD)/runnel

# Dependencies: asked of dpkg only when a header is not where the compiler finds it.
setup:
	@printf '%s\n' '#include <CLI/CLI.hpp>' '#include <doctest/doctest.h>' '#include <nlohmann/json.hpp>' \
	  '#define PCRE2_CODE_UNIT_WIDTH 8' '#include <pcre2.h>' '#include <histedit.h>' '#include <utf8proc.h>' \
	  | $(CXX) -std=c++20 -E -x c++ - >/dev/null 2>&1 || scripts/setup

$(BUILD)/runnel: $(BUILD)/obj/main.o $(BUILD)/librunnel.a
	$(CXX) $(LDFLAGS) -o $@ $(BUILD)/obj/main.o $(BUILD)/librunnel.a $(LDLIBS)

$(BUILD)/librunnel.a: $(objects)
	@rm -f $@
	ar rcs $@ $(objects)

$(BUILD)/tests: $(test_objects) $(BUILD)/librunnel.a
	$(CXX) $(LDFLAGS) -o $@ $(test_objects) $(BUILD)/librunnel.a $(LDLIBS)

# Speed of the matrix kernels alone (kernels/cpu/README.md).
$(BUILD)/bench-linear: $(BUILD)/obj/tests/tools/bench_linear.o $(BUILD)/librunnel.a
	$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Random-weight models (scripts/make-model): needs gguf/ alone.
$(BUILD)/make-model: $(BUILD)/obj/tests/tools/make_model.o $(BUILD)/obj/tests/support/model_maker.o \
  $(BUILD)/obj/tests/support/model_vocabulary.o $(filter $(BUILD)/obj/gguf/%,$(objects))
	$(CXX) $(LDFLAGS) -o $@ $^

$(BUILD)/obj/%.o: %.cpp Makefile | setup
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $(ISA) -MMD -MP -c -o $@ $<

# The commit is compiled into one file, rebuilt when it changes.
commit := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
$(shell mkdir -p $(BUILD) && echo '$(commit)' | cmp -s - $(BUILD)/commit || echo '$(commit)' > $(BUILD)/commit)
$(BUILD)/obj/engine/commands/version.o: $(BUILD)/commit
$(BUILD)/obj/engine/commands/version.o: CXXFLAGS += -DRUNNEL_COMMIT='"$(commit)"'

test: $(BUILD)/tests $(BUILD)/runnel
	RUNNEL=$(BUILD)/runnel $(BUILD)/tests $(TEST_ARGS)

asan: setup
	$(MAKE) BUILD=build-asan OPT=-O1 \
	  SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' test

demo: $(BUILD)/runnel
	@scripts/demo $(BUILD)/runnel

lint:
	@command -v clang-format >/dev/null || scripts/setup --lint
	scripts/lint

format:
	clang-format -i $$(git ls-files '*.cpp' '*.h')

clean:
	rm -rf build build-asan

-include $(tools:%.cpp=$(BUILD)/obj/%.d) $(objects:.o=.d) $(test_objects:.o=.d) $(BUILD)/obj/main.d
