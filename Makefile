# make            build/runnel; with MPI=1 also build/runnel-mpi, for several processes under mpirun
# make demo       build a program with run, chat and pull for the CPU, then stream text from a model
# make install    to PREFIX (/usr/local): program, man page, completions, licences; make uninstall removes them
# make dist       a tarball and a Debian package in build/; on x86-64 they run with glibc 2.31 (2020) or newer
# make test       build and run the tests
# make asan       the tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make tsan       run, batch, chat and others with several threads under ThreadSanitizer; tsan-sample: a few of them
# make ptx-test   the kernel tests again on an interpreter of the compiled PTX (tests/ptx/README.md); needs nvcc
# make fuzz       libFuzzer on all code that reads untrusted input (tests/fuzz/README.md); SECONDS=60: per target
# make lint       formatting, includes and other rules of the code base
# make clean
#
# Every target first installs missing dependencies (scripts/setup). V=1 shows the commands. UNITS=0 compiles each file
# alone: faster after a change of one .cpp file, several times slower in a fresh build folder.

# All cores unless -j is given, so that a plain `make demo` is fast.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

# One line per file; V=1 shows the commands instead. In a fresh build folder the lines are numbered up to the total.
V ?= 0
ifeq ($(V),0)
Q := @
said :=
expected = $(if $(from_scratch),/$(words link $(filter %.o,$(expected_objects))))
say = @$(eval said += x)printf '  [%3s$(expected)] %s\n' $(words $(said)) '$(1)';
endif

comma := ,
BUILD ?= build
from_scratch := $(if $(wildcard $(BUILD)/obj/main.o),,yes)
CXX ?= g++
OPT ?= -O2
# For the kernels and for what else computes: encoding and quantization.
KERNEL_OPT ?= $(patsubst -O2,-O3,$(OPT))
# -Wno-restrict: GCC 12 reports a false overlap in std::string's operator+ (GCC bug 105651).
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict -Werror
# -ffp-contract=off: the order and rounding of every float operation is part of the product (kernels/cpu/README.md).
SANITIZE ?=
DEBUG ?= $(if $(SANITIZE),-g1,-g0)
# The heap below which GCC does not collect garbage, 400 MB: it would spend a tenth of the time on that.
gcc_heap := $(if $(findstring clang,$(CXX)),,--param ggc-min-heapsize=400000)
CXXFLAGS += -std=c++20 $(OPT) $(DEBUG) $(WARN) $(SANITIZE) -ffp-contract=off -fno-math-errno -pthread -I.
LDLIBS = -l:libpcre2-8.a -l:libutf8proc.a -l:libxxhash.a
# (AddressSanitizer sees a throw by code compiled without it only where the C++ library is shared.)
LDFLAGS += $(SANITIZE) -pthread $(if $(SANITIZE),,-static-libstdc++ -static-libgcc)

ISA =
# The same kernels are compiled for several instruction sets, named in the file name, and chosen at run time.
avx2 = -mavx2 -mfma -mf16c -mbmi2
# (GCC 12 warns about the deliberately undefined operands of its own AVX-512 intrinsics: PR 105593.)
avx512 = $(avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512 \
  -Wno-uninitialized -Wno-maybe-uninitialized
%_avx2.o: ISA = $(if $(isas),$(avx2))
%_avx512.o: ISA = $(if $(isas),$(avx512))
%_amx.o: ISA = $(avx512) -mamx-tile -mamx-int8

# CUDA: if nvcc exists, kernels/cuda/ is compiled for CUDA_ARCHS and linked in (the runtime statically, so that the
# program also runs without a driver); otherwise devices_absent.cpp takes its place.
NVCC ?= $(firstword $(shell command -v nvcc; ls /usr/local/cuda/bin/nvcc 2>/dev/null))
# The list stays with the build folder until another is given; a new list compiles the kernels again.
release_archs = $(filter $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code 2>/dev/null)),75 80 86 89 90 100 120)
CUDA_ARCHS ?= $(or $(if $(and $(NVCC),$(filter dist,$(MAKECMDGOALS))),$(release_archs)),$(file <$(BUILD)/cuda-archs),\
  $(if $(shell nvidia-smi -L 2>/dev/null),native,80 90))
cuda_runtime := kernels/cuda/runtime/runtime.cpp
cuda_kernels := $(shell find kernels/cuda -name '*.cu' | sort)
cuda_host := $(filter-out $(cuda_runtime) kernels/cuda/devices_absent.cpp,$(shell find kernels/cuda -name '*.cpp' | sort))
cuda_unit := $(BUILD)/units/kernels/cuda.o
cuda_host_objects := $(if $(filter 0,$(UNITS)),$(cuda_host:%.cpp=$(BUILD)/obj/%.o),$(cuda_unit))
# The kernels use ldmatrix and mma of 8 columns, which exist from sm_75 on.
too_old := $(filter 50 52 53 60 61 62 70 72,$(CUDA_ARCHS))
ifneq ($(too_old),)
$(error CUDA_ARCHS: sm_$(firstword $(too_old)) is too old, the kernels need sm_75 (Turing, 2018): such a GPU runs models on the CPU)
endif
ifneq ($(NVCC),)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
cuda_archs := $(strip $(CUDA_ARCHS))
$(shell mkdir -p $(BUILD) && echo '$(cuda_archs)' | cmp -s - $(BUILD)/cuda-archs || echo '$(cuda_archs)' > $(BUILD)/cuda-archs)
# -fmad=false: the same as -ffp-contract=off. PTX of the newest architecture in the list serves later ones, except that
# of sm_75, whose versions of kernels are chosen by the device at launch, so that no other device may run them.
cuda_arch = -gencode arch=compute_$(1),code=sm_$(1)
newest_arch = $(shell printf '%s\n' $(CUDA_ARCHS) | sort -n | tail -n 1)
gencode = $(if $(filter native,$(CUDA_ARCHS)),-arch=native,$(foreach a,$(CUDA_ARCHS),$(call cuda_arch,$(a))) \
  $(if $(filter 75,$(newest_arch)),,-gencode arch=compute_$(newest_arch),code=compute_$(newest_arch)))
# INSPECT=--no-compress: lets the tests read the machine code in the objects (tests/gpu/), as CI does. Without it, code for
# four or more architectures is compressed for size: a release has 28 MB, with nvcc's default 99 MB (nvcc 13.0).
INSPECT ?=
many_archs = $(word 4,$(CUDA_ARCHS))
tightly = $(if $(many_archs),$(addsuffix =size,$(shell $(NVCC) --help | grep -om1 -e --compress-mode)))
NVCCFLAGS += $(or $(INSPECT),$(tightly)) -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -Werror all-warnings -I. -Xcompiler -Wall,-Wextra
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
cuda_objects := $(cuda_kernels:%.cu=$(BUILD)/obj/%.cuda.o) $(cuda_runtime:%.cpp=$(BUILD)/obj/%.o) \
  $(cuda_host_objects)
else
cuda_objects := $(BUILD)/obj/kernels/cuda/devices_absent.o
endif

# The instruction sets whose kernels are compiled in; the others' tables are empty (kernels/cpu/avx2_absent.cpp).
# ISAS=native: only those that this machine would choose.
ISAS ?= avx2 avx512
native_isa = $(firstword $(shell grep -owm1 avx512_vnni /proc/cpuinfo | sed s/_vnni//; grep -owm1 avx2 /proc/cpuinfo))
isas := $(if $(filter x86_64%,$(shell $(CXX) -dumpmachine)),$(if $(filter native,$(ISAS)),$(native_isa),$(ISAS)))
without = $(foreach i,$(filter-out $(1),avx2 avx512),kernels/cpu/%_$(i).cpp) $(1:%=kernels/cpu/%_absent.cpp) \
  $(if $(filter avx512,$(1)),,kernels/cpu/%_amx.cpp) \
  $(if $(isas),,gguf/group_search_avx%)
all_sources := $(shell find gguf kernels engine -name '*.cpp' -not -path 'kernels/cuda/*' -not -path 'kernels/mpi/*' 2>/dev/null)
# DEMO=1: only the commands of engine/commands/cli/command_entries_demo.cpp, without what only others use.
DEMO ?=
for_others := $(addprefix engine/,convert/% quantize/% measure/% $(addprefix commands/,batch/% bench/% convert/% doctor/% quantize/% \
  choice_scores.cpp devices.cpp grammar.cpp inspect.cpp inspect_% paging_report.cpp perplexity.cpp supported.cpp template.cpp \
  tokenize.cpp cli/command_entries.cpp cli/inspection_commands.cpp)) \
  $(addprefix gguf/,block_grid.cpp codebook_search.cpp encode_% quantize.cpp scale_search.cpp standard_encode%) \
  kernels/activation_run.cpp kernels/scalable_inputs.cpp kernels/reference/reference_backend.cpp
for_demo := engine/quantize/mix.cpp engine/quantize/role.cpp engine/measure/draft_timeline.cpp engine/measure/pass_cost.cpp
left_out := $(if $(filter 1,$(DEMO)),$(filter-out $(for_demo),$(filter $(for_others),$(all_sources))),engine/commands/cli/command_entries_demo.cpp)
sources := $(filter-out $(call without,$(isas)) $(left_out),$(all_sources))
tests := $(shell find tests -name '*.cpp' -not -path 'tests/tools/*' -not -path 'tests/gpu/device/*' \
  -not -path tests/fuzz/driver.cpp 2>/dev/null)
tools := $(shell find tests/tools -name '*.cpp' 2>/dev/null)

# A fresh build would spend most of its time on headers that every file includes, so each folder is compiled as one unit,
# with precompiled headers, and so is the host code of all of kernels/cuda/. alone: files that are not, being compiled for an
# instruction set, or because another file of their folder defines a name of theirs. If the compiler reports a "redefinition",
# add one of the two files. (Those of kernels/cpu are joined only where their -O3 can use the headers' -O2.)
UNITS ?= 1
kernel_sources := $(filter gguf/group_search_% kernels/cpu/experts.cpp $(if $(filter -O2,$(OPT)),$(addprefix kernels/cpu/%,\
  _scalar.cpp _avx2.cpp _avx512.cpp _amx.cpp _absent.cpp),kernels/cpu/%),$(sources))
alone := $(if $(filter 0,$(UNITS)),$(sources),$(kernel_sources) $(filter engine/commands/version.cpp \
  $(addprefix gguf/,encode_simple.cpp encode_symmetric.cpp output_file.cpp standard_encode_ternary.cpp value.cpp),$(sources)))
unit_files = $(if $(filter kernels/cuda,$(1)),$(cuda_host),$(filter $(wildcard $(1)/*.cpp),$(filter-out $(alone),$(sources))))
units := $(patsubst %/,$(BUILD)/units/%.o,$(sort $(dir $(filter-out $(alone),$(sources)))))
objects := $(alone:%.cpp=$(BUILD)/obj/%.o) $(units)

# Test cases likewise: those of a folder as one unit, but for files that cannot be joined (scripts/test-unit).
# TEST_BUILD: the build folder whose test objects are linked, but for those of files that ask for the sanitizer (make asan).
TEST_BUILD ?= $(BUILD)
cases := $(filter %_test.cpp,$(tests))
tests_alone := $(filter-out $(cases),$(tests)) $(if $(filter 0,$(UNITS)),$(cases),$(shell scripts/test-unit --alone $(cases)))
case_files = $(filter $(wildcard $(1)/*_test.cpp),$(filter-out $(tests_alone),$(cases)))
case_units := $(patsubst %/,$(TEST_BUILD)/units/%.o,$(sort $(dir $(filter-out $(tests_alone),$(cases)))))
tests_asking := $(if $(SANITIZE),$(shell grep -l __SANITIZE_ADDRESS__ $(tests_alone)))
test_objects := $(tests_asking:%.cpp=$(BUILD)/obj/%.o) $(patsubst %.cpp,$(TEST_BUILD)/obj/%.o,$(filter-out $(tests_asking),$(tests_alone))) \
  $(case_units)

.PHONY: all ptx ptx-test ptx-sample cuda-objects demo install uninstall dist test asan asan-sample tsan tsan-sample fuzz fuzz-setup fuzzers lint format clean setup
# MPI=1: also the program whose processes run a model together; needs Open MPI (scripts/setup --mpi).
MPI ?=
all: $(BUILD)/runnel $(if $(MPI),$(BUILD)/runnel-mpi)

# Dependencies: dpkg is queried only if the compiler does not find a header.
setup:
	@printf '%s\n' '#include <CLI/CLI.hpp>' '#include <doctest/doctest.h>' '#include <nlohmann/json.hpp>' \
	  '#define PCRE2_CODE_UNIT_WIDTH 8' '#include <pcre2.h>' '#include <utf8proc.h>' '#include <xxhash.h>' '#include <curl/curl.h>' \
	  | $(CXX) -std=c++20 -E -x c++ - >/dev/null 2>&1 || scripts/setup

expected_objects = $(BUILD)/obj/main.o $(objects) $(cuda_objects) \
  $(if $(filter test asan asan-sample %/tests,$(MAKECMDGOALS)),$(test_objects) $(simt_objects))

# (The longest compilations, of half a minute to a minute, begin first: on many cores all would wait for one that begins late.)
longest := $(filter %/linear.cuda.o %/linear_codebooks.cuda.o,$(cuda_objects)) $(filter %/linear_avx2.o %/linear_avx512.o,$(objects))
$(BUILD)/runnel: $(longest) $(BUILD)/obj/main.o $(BUILD)/librunnel.a $(cuda_objects)
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $(BUILD)/obj/main.o $(BUILD)/librunnel.a $(cuda_objects) $(LDLIBS) $(CUDA_LIBS)

# The program of `make dist`: on x86-64 with scripts/old_glibc.cpp, which lets it run with an older glibc.
dist_objects := $(if $(filter x86_64%linux-gnu,$(shell $(CXX) -dumpmachine)),$(BUILD)/obj/scripts/old_glibc.o)
dist_libraries := $(if $(dist_objects),-Wl$(comma)--no-as-needed $(addprefix -l:,libpthread.so.0 libdl.so.2 librt.so.1))
$(BUILD)/runnel-dist: $(dist_objects) $(BUILD)/obj/main.o $(BUILD)/librunnel.a $(cuda_objects)
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) $(BUILD)/librunnel.a $(LDLIBS) $(CUDA_LIBS) $(dist_libraries)

# The demo, as fast as it can be built: with the demo's commands, without the CUDA code, even if nvcc exists, without debug
# information, optimized where the time goes, and with the kernels of one instruction set. The others are not chosen here,
# the scalar ones neither.
$(BUILD)/runnel-demo: setup
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/demo DEMO=1 NVCC= ISAS=native OPT=-O0 KERNEL_OPT=-O2 DEBUG=-g0 WARN=-w $(BUILD)/demo/runnel
	@ln -f $(BUILD)/demo/runnel $@
# (GCC 12 crashes on units with -O3 if the precompiled headers have -O1.)
$(filter $(BUILD)/obj/kernels/cpu/% $(BUILD)/obj/gguf/% \
  $(if $(filter -O0 -O1,$(OPT)),,$(BUILD)/units/gguf% $(BUILD)/units/kernels/cpu.o $(BUILD)/units/engine/quantize.o),$(objects)): \
  override OPT := $(KERNEL_OPT)
# The instances of the matrix kernels are as fast with -O2, with AVX2 faster, and take two thirds of the time. Scalar kernels
# run where no other instruction set is compiled in, or on an x86-64 CPU without AVX2: there -O2 is enough.
$(BUILD)/obj/kernels/cpu/linear_avx2.o $(BUILD)/obj/kernels/cpu/linear_avx512.o \
  $(if $(isas),$(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter kernels/cpu/%_scalar.cpp,$(sources)))): \
  override OPT := $(patsubst -O3,-O2,$(KERNEL_OPT))
ifneq ($(and $(filter native,$(ISAS)),$(isas)),)
$(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter kernels/cpu/%_scalar.cpp,$(sources))): override OPT := -O1
endif

# A unit includes its files, so that GCC takes what they declare for a header's, and names that another file has for shadowed;
# UNITS=0 checks both. ccache must be told to accept precompiled headers.
unit_flags = $(CXXFLAGS) -Wno-shadow $(if $(findstring clang,$(CXX)),,-Wno-subobject-linkage -Wno-maybe-uninitialized \
  $(gcc_heap) -fpch-preprocess)
unit_headers := $(BUILD)/units/headers.h
case_headers := $(BUILD)/units/tests/headers.h
# Code that runs a few times per command or token, or waits for models and files: -Og takes four fifths of the time of -O1.
seldom_run := $(if $(filter -O2,$(OPT)),$(filter-out %/commands/models.o,$(filter $(addprefix $(BUILD)/units/engine/,commands.o \
  commands/% completion.o convert.o measure.o model.o model/% text/%),$(units))))
seldom_headers := $(BUILD)/units/seldom/headers.h
headers_of = $(if $(filter $(1),$(seldom_run)),$(seldom_headers),$(unit_headers))
$(seldom_run) $(seldom_headers).gch: private override OPT := -Og
common_headers = algorithm chrono filesystem fstream functional map memory mutex nlohmann/json.hpp optional set \
  span string thread unordered_map variant vector
export CCACHE_SLOPPINESS = pch_defines,time_macros
.SECONDEXPANSION:
$(case_headers).gch: common_headers += doctest/doctest.h
$(unit_headers).gch $(seldom_headers).gch $(case_headers).gch: Makefile | setup
	@mkdir -p $(@D)
	@printf '#include <%s>\n' $(common_headers) >$(@:.gch=)
	$(Q)$(CXX) $(unit_flags) -x c++-header -o $@ $(@:.gch=)
$(units) $(cuda_unit): $(BUILD)/units/%.o: $$(call unit_files,$$*) Makefile $$(call headers_of,$$@).gch | setup
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(call unit_files,$*) >$(@:.o=.cpp)
	@echo $(call unit_files,$*) >$(@:.o=.files)
	$(call say,$*/*.cpp)$(CXX) $(unit_flags) -include $(call headers_of,$@) -MMD -MP -c -o $@ $(@:.o=.cpp)

ifeq ($(TEST_BUILD),$(BUILD))
$(case_units): $(BUILD)/units/%.o: $$(call case_files,$$*) Makefile scripts/test-unit $(case_headers).gch | setup
	@mkdir -p $(@D)
	@scripts/test-unit $(call case_files,$*) >$(@:.o=.cpp)
	@echo $(call case_files,$*) >$(@:.o=.files)
	$(call say,$*/*_test.cpp)$(CXX) $(unit_flags) -include $(case_headers) -MMD -MP -c -o $@ $(@:.o=.cpp)
endif

# Units that a file has left are made again; of the others, make sees that a file is newer.
units_left = $(foreach unit,$(1),$(if $(filter-out $(call $(2),$(unit:$(BUILD)/units/%.o=%)),$(file <$(unit:.o=.files))),$(unit)))
changed_units := $(call units_left,$(units) $(cuda_unit),unit_files)
ifeq ($(TEST_BUILD),$(BUILD))
changed_units += $(call units_left,$(case_units),case_files)
endif
ifneq ($(strip $(changed_units)),)
$(changed_units): FORCE
endif
.PHONY: FORCE

$(BUILD)/librunnel.a: $(objects)
	@rm -f $@
	$(Q)ar rcs $@ $(objects)

# In the tests the same kernel sources run in an emulator of the device (tests/simt/), which checks every load and
# store through the calls that -fsanitize=thread inserts; the host code of kernels/cuda/ is that of the program.
simt_objects := $(cuda_kernels:%.cu=$(BUILD)/simt/%.o) \
  $(patsubst %.cu,$(BUILD)/simt/%.o,$(wildcard tests/simt/*.cu tests/gpu/device/*.cu)) $(cuda_host_objects)
# (make asan takes the matrix kernels of make test: their many instances would take minutes to compile with sanitizers.)
simt_objects := $(patsubst $(BUILD)/simt/kernels/cuda/linear/%,$(TEST_BUILD)/simt/kernels/cuda/linear/%,$(simt_objects))
SIMT_UNDEFINED = $(if $(SANITIZE),-fsanitize=undefined -fno-sanitize-recover=all)
SIMT_TRACE = -O2 -fno-tree-vectorize -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -Wno-unknown-pragmas \
  $(SIMT_UNDEFINED)
$(BUILD)/simt/%.o: %.cu Makefile | setup
	@mkdir -p $(@D)
	$(call say,$< (emulated))$(CXX) $(filter-out $(SANITIZE),$(CXXFLAGS)) $(SIMT_TRACE) -MMD -MP -x c++ -c -o $@ $<

$(BUILD)/libsimt.a: $(simt_objects)
	@rm -f $@
	$(Q)ar rcs $@ $(simt_objects)

# A preloaded library that makes libc calls of the program fail (tests/fault/).
$(BUILD)/fault.so: tests/fault/fault.c Makefile
	@mkdir -p $(@D)
	$(call say,$@)cc -std=c11 -O1 -Wall -Wextra -Werror -shared -fPIC -o $@ $<

# (The library first: of functions that both have, such as those of std::vector, the linker takes the sanitized ones.)
$(BUILD)/tests: $(test_objects) $(BUILD)/libsimt.a $(BUILD)/librunnel.a | $(BUILD)/fault.so
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ -Wl,--whole-archive $(BUILD)/librunnel.a -Wl,--no-whole-archive $(test_objects) \
	  $(BUILD)/libsimt.a $(LDLIBS)

# The test cases of the thread pool, of communicators and of a divided cache alone, for ThreadSanitizer.
$(BUILD)/thread-tests: $(addprefix $(BUILD)/obj/tests/,main.o kernels/cpu/pool_test.o kernels/communicator_test.o \
  engine/decode/divided_cache_test.o support/tiny_program.o support/reference.o support/mcp_server.o) \
  $(BUILD)/librunnel.a $(BUILD)/obj/kernels/cuda/devices_absent.o
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $(filter %.o,$^) $(BUILD)/librunnel.a $(LDLIBS)

# Runs the kernels' test cases on a real device (scripts/gpu-check); exits with status 77 if there is none.
gpu_test_objects := $(filter $(BUILD)/obj/tests/kernels/cuda/% $(BUILD)/units/tests/kernels/cuda%,$(test_objects)) \
  $(patsubst %.cpp,$(BUILD)/obj/%.o,tests/gpu/device/main.cpp tests/support/reference.cpp tests/support/skip.cpp tests/support/tiny_program.cpp) \
  $(patsubst %.cu,$(BUILD)/obj/%.cuda.o,$(wildcard tests/gpu/device/*.cu))
$(BUILD)/gpu-tests: $(gpu_test_objects) $(cuda_objects) $(BUILD)/librunnel.a
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $(gpu_test_objects) $(cuda_objects) $(BUILD)/librunnel.a $(LDLIBS) $(CUDA_LIBS)

# The kernels' PTX, and the kernels' tests with every launch repeated by an interpreter of it (tests/ptx/).
PTX_ARCHS ?= 80 90
define ptx_rule
$(BUILD)/ptx/compute_$(1)/%.ptx: %.cu Makefile | $(BUILD)/nvcc-version
	@mkdir -p $$(@D)
	$$(call say,$$< (PTX for sm_$(1)))$(NVCC) $(filter-out $(INSPECT),$(NVCCFLAGS)) -ptx -arch=compute_$(1) -MMD -MP -o $$@ $$<
endef
ifneq ($(NVCC),)
$(foreach a,$(PTX_ARCHS),$(eval $(call ptx_rule,$(a))))
endif
ptx_files = $(foreach a,$(PTX_ARCHS),$(patsubst %.cu,$(BUILD)/ptx/compute_$(a)/%.ptx,$(1)))
ptx: $(call ptx_files,$(cuda_kernels))

# Every kernel and test with compute_80 and compute_90 text: minutes of nvcc and of tests. The sample: a few kernels
# of each kind that nvcc compiles in seconds, with the tests that launch them.
empty :=
list = $(subst $(empty) $(empty),:,$(strip $(1)))
ptx_sample := $(patsubst %,$(BUILD)/ptx/compute_90/%.ptx,tests/ptx/sample/decode tests/ptx/sample/prefill \
  $(addprefix kernels/cuda/,linear/linear_prefill_floats linear/quantize select/select steps/elementwise steps/embed \
  steps/normalize experts/experts experts/expert_places))
ptx_sample_tests := ptx*,cuda linear: several*,cuda prefill: several*,cuda quantize*,cuda select*,cuda elementwise*,cuda experts*,cuda places: the*,cuda places: every*
ifneq ($(NVCC),)
ptx-test: $(BUILD)/tests ptx
	$(Q)for a in $(PTX_ARCHS); do RUNNEL_PTX=$(BUILD)/ptx/compute_$$a $(BUILD)/tests -tc='ptx*,cuda*' || exit 1; done
ptx-sample: $(BUILD)/tests $(ptx_sample)
	$(Q)RUNNEL_PTX=$(call list,$(ptx_sample)) $(BUILD)/tests -tc='$(ptx_sample_tests)'
else
ptx-test ptx-sample:
	@echo "$@: there is no nvcc, so no PTX: nothing was run"
endif

# Speed of the matrix kernels alone (kernels/cpu/README.md).
$(BUILD)/bench-linear: $(BUILD)/obj/tests/tools/bench_linear.o $(cuda_objects) $(BUILD)/librunnel.a
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CUDA_LIBS)

# Speed of the masks of constrained output (engine/grammar/README.md).
$(BUILD)/bench-masks: $(BUILD)/obj/tests/tools/bench_masks.o $(cuda_objects) $(BUILD)/librunnel.a
	$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CUDA_LIBS)

# Open MPI (MPI=1): the program for several processes, and what its tests start (tests/kernels/mpi_communicator_test.cpp).
mpi_include := $(firstword $(shell mpicxx --showme:incdirs 2>/dev/null))
mpi_libs = $(addprefix -L,$(shell mpicxx --showme:libdirs)) -lmpi
mpi_objects := $(patsubst %.cpp,$(BUILD)/obj/%.o,tests/tools/mpi_ranks.cpp $(wildcard kernels/mpi/*.cpp))
$(mpi_objects): CXXFLAGS += -isystem $(mpi_include)
$(BUILD)/mpi-ranks: $(mpi_objects) $(cuda_objects) $(BUILD)/librunnel.a
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CUDA_LIBS) $(mpi_libs)
$(BUILD)/runnel-mpi: $(BUILD)/obj/main.o $(filter $(BUILD)/obj/kernels/%,$(mpi_objects)) $(BUILD)/librunnel.a $(cuda_objects)
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CUDA_LIBS) $(mpi_libs)

# The table of the kernels' machine code (scripts/kernel-table).
$(BUILD)/kernel-table: $(BUILD)/obj/tests/tools/kernel_table.o $(BUILD)/obj/tests/gpu/cubin.o
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $^

# The cost model of the matrix kernels (scripts/predict).
$(BUILD)/predict: $(BUILD)/obj/tests/tools/predict.o $(BUILD)/obj/tests/gpu/cubin.o \
  $(filter-out %_test.o,$(filter $(BUILD)/obj/tests/gpu/model/%,$(test_objects)))
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $^

# Random-weight models (scripts/make-model): needs gguf/ alone.
$(BUILD)/make-model: $(BUILD)/obj/tests/tools/make_model.o $(BUILD)/obj/tests/support/model_maker.o \
  $(BUILD)/obj/tests/support/model_families.o $(BUILD)/obj/tests/support/model_metadata.o \
  $(BUILD)/obj/tests/support/model_recurrent.o $(BUILD)/obj/tests/support/model_tensors.o $(BUILD)/obj/tests/support/model_vocabulary.o \
  $(BUILD)/obj/tests/support/assistant_file.o $(BUILD)/obj/tests/support/dflash_file.o \
  $(BUILD)/obj/tests/support/eagle_head.o $(BUILD)/obj/tests/support/head_tensors.o \
  $(filter $(BUILD)/obj/gguf/% $(BUILD)/units/gguf.o $(BUILD)/units/gguf/%,$(objects))
	$(call say,$@)$(CXX) $(LDFLAGS) -o $@ $^

# Tests spend their time in the code under test, so the cases are compiled with -O0, in half the time.
$(test_objects): OPT = -O1
$(filter %_test.o,$(test_objects)) $(case_units) $(case_headers).gch: override OPT := -O0
# The emulator and the PTX interpreter run millions of instructions, so they are optimized.
$(filter-out %_test.o,$(filter $(BUILD)/obj/tests/ptx/% $(BUILD)/obj/tests/simt/%,$(test_objects))): override OPT := -O2

$(BUILD)/obj/%.o: %.cpp Makefile | setup
	@mkdir -p $(@D)
	$(call say,$<)$(CXX) $(CXXFLAGS) $(gcc_heap) $(ISA) -MMD -MP -c -o $@ $<

$(BUILD)/obj/%.cuda.o: %.cu Makefile $(BUILD)/cuda-archs | $(BUILD)/nvcc-version
	@mkdir -p $(@D)
	$(call say,$<)$(filter ccache,$(CXX)) $(NVCC) $(NVCCFLAGS) $(gencode) -MMD -MP -c -o $@ $<
$(BUILD)/nvcc-version:
	@mkdir -p $(@D)
	$(Q)version="$$($(NVCC) --version)" && echo "$$version" | tail -n 1 > $@
cuda-objects: $(cuda_kernels:%.cu=$(BUILD)/obj/%.cuda.o)
$(cuda_runtime:%.cpp=$(BUILD)/obj/%.o): CXXFLAGS += -isystem $(CUDA_HOME)/include

# The commit is compiled into one file, rebuilt when it changes.
commit := $(shell (git describe --always --dirty 2>/dev/null || echo unknown) | tr -c 'a-zA-Z0-9.+\n-' .)
$(shell mkdir -p $(BUILD) && echo '$(commit)' | cmp -s - $(BUILD)/commit || echo '$(commit)' > $(BUILD)/commit)
$(BUILD)/obj/engine/commands/version.o: $(BUILD)/commit
$(BUILD)/obj/engine/commands/version.o: CXXFLAGS += -DRUNNEL_COMMIT='"$(commit)"'

# (make-model: for the dry run of scripts/gpu-check. What the tests only start is not built with sanitizers.)
test: $(BUILD)/tests $(BUILD)/runnel $(if $(SANITIZE),,$(BUILD)/make-model $(BUILD)/runnel-dist $(if $(mpi_include),$(BUILD)/mpi-ranks $(BUILD)/runnel-mpi))
	@scripts/run-tests $(BUILD) $(TEST_ARGS)

# The test cases themselves are those of `make test`; what they test is compiled with the sanitizers. asan-sample (CI): all but
# the longest ones (half a minute to ten minutes there), whose code shorter ones run too.
asan_long := families: logits agree *,families: the CPU*,contradictions: a *,sparse attention: batches*,layer split: every *
asan_long := $(asan_long),tensor split: every *,tensor split: * give the bits of one,--mtp: on *,chat: other answers*,bench --compare*
asan_long := $(asan_long),inspect --plan --devices*,quantize: awq *,quantize: gptq *,cpu backend: * instruction sets change no bit
asan_long := $(asan_long),several GPUs: * the bits of one*,several GPUs: batches*,eagle3: every family*,cuda both ways: random*
asan_long := $(asan_long),* draft: the text is the same*,sparse attention: a tensor split*,cuda chosen attention: a row*
asan_long := $(asan_long),cuda block attention: random*,hybrid demo: after roll-backs*,hybrid demo: an edit*,hidden states: keeping*
asan_long := $(asan_long),processes: samples*,processes: greedy*,quantize: measuring around*,quantize: perplexity --kl-base*
asan_long := $(asan_long),quantize: a target gives*,recurrent: on the CPU?*,next token: top-k*,next token: with grammars*
asan_long := $(asan_long),qwen4exp: batches*,deepseek4: batches*,assistant draft: drafts are the same*,cache kinds: in every type*,sparse attention: a branch*
asan_long := $(asan_long),tool grammar: parameters without*,doctor: the steps of a longer*,demo model: fewer bits*,draft length: at a*
asan_long := $(asan_long),block draft: drafts made together*,eagle3: on one and several*
asan_long := $(asan_long),sparse attention: up to top_k*,cuda backend: logits depend*,gptq: a smaller*,gptq: rounds*
asan_long := $(asan_long),attention: random shapes*,block attention: random*,block draft: the block gets*,cuda backend: experts agree*
asan_long := $(asan_long),assistant draft: drafts made together*,hybrid demo: drafts are accepted*,split draft: on*
asan_long := $(asan_long),cuda indexer: scores and*,append only: the cache*,--prompt-cache auto: a later*
asan_long := $(asan_long),qwen4exp: logits agree*,deepseek4: logits agree*,deepseek4: as long*,deepseek4: the emulated*
asan_long := $(asan_long),choice score: tasks*,quantize: sensitivity is measured*,quantize: types with codebooks*,perplexity: a stride*
asan_long := $(asan_long),processes: drafts of*,divided cache: two*,divided GPUs: forks*,eagle draft: drafts made*,dflash draft: *
asan_long := $(asan_long),eagle3: on the*,assistant draft: drafts read*,assistant draft: the emulated*,model draft: with any*
asan_long := $(asan_long),block draft: drafts are*,draft block: on the*,tree: on the*,next token: three*
asan_long := $(asan_long),several GPUs: a stored*,fetched experts: the simulation*,device plan: the predicted*
asan_long := $(asan_long),--mtp: with --split*,bench: drafts as*,bench: --mtp*,awq: scales*,cuda prepare: outputs of experts*
asan asan-sample: $(test_objects) $(simt_objects)
	$(MAKE) BUILD=build-asan TEST_BUILD=$(BUILD) NVCC= OPT=-O1 WARN=-w \
	  SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' \
	  $(if $(filter asan-sample,$@),TEST_ARGS="--without '$(asan_long)'") test

# The program, which the test cases start, and the tests of threads are built with the sanitizer; a race ends them with code
# 66, which no case accepts. tsan-sample (CI): runs, batches and chats of every kind, once each.
tsan_sample := batch: bytes do not depend on *,batch: every row gets *,batch: an answer comes before *,batch: Ctrl-C*
tsan_sample := $(tsan_sample),chat: messages that were undone *,chat: Ctrl-C*,chat: at a terminal*,run: --samples*,run: stop strings*
tsan_sample := $(tsan_sample),speculation: batch and samples *,perplexity: a full disk*
tsan tsan-sample: $(BUILD)/tests
	$(MAKE) BUILD=build-tsan NVCC= ISAS=native OPT=-O1 KERNEL_OPT=-O3 WARN=-w SANITIZE=-fsanitize=thread \
	  build-tsan/runnel build-tsan/thread-tests
	TSAN_OPTIONS=exitcode=66 build-tsan/thread-tests
	TSAN_OPTIONS=exitcode=66 RUNNEL=build-tsan/runnel $(BUILD)/tests \
	  -tc='$(if $(filter tsan,$@),run*$(comma)batch*$(comma)chat*$(comma)perplexity*$(comma)*samples*$(comma)speculation*,$(tsan_sample))'

# The fuzzers: one program, linked under a name per target, from only the sources that read untrusted input.
FUZZ_CXX ?= $(or $(shell command -v clang++-14),clang++)
FUZZ_BUILD = build-fuzz
SECONDS ?= 60
fuzz_sources := $(shell find gguf engine/text engine/cache engine/grammar tests/fuzz/targets -name '*.cpp' \
  -not -path '*encode*' -not -path '*quantize*' -not -path '*scale*' -not -path gguf/scan.cpp -not -path gguf/writer.cpp \
  -not -path '*codebook*' -not -path '*group_search*') tests/fuzz/driver.cpp \
  kernels/backend.cpp kernels/cache_bytes.cpp kernels/divided_groups.cpp kernels/program.cpp \
  $(addprefix engine/completion/,answer.cpp logprobs.cpp openai.cpp prompt_chunk.cpp stop_matcher.cpp) $(addprefix engine/decode/,cache_plan.cpp executor.cpp \
  prompt_file.cpp random.cpp log_probabilities.cpp sampling_options.cpp sampling_settings.cpp stop_request.cpp speculation/suffix_index.cpp) engine/measure/logits_file.cpp \
  $(addprefix engine/commands/,arguments.cpp cli/config.cpp cli/nearest.cpp io.cpp batch/batch_row.cpp chat/edit/cells.cpp chat/conversation.cpp chat/conversation_text.cpp chat/transcript.cpp)
fuzz_alone := $(filter tests/% $(alone),$(fuzz_sources))
fuzz_files = $(filter $(wildcard $(1)/*.cpp),$(filter-out $(fuzz_alone),$(fuzz_sources)))
fuzz_units := $(patsubst %/,$(FUZZ_BUILD)/units/%.o,$(sort $(dir $(filter-out $(fuzz_alone),$(fuzz_sources)))))
fuzz_objects := $(fuzz_alone:%.cpp=$(FUZZ_BUILD)/obj/%.o) $(fuzz_units)
fuzz_targets := $(basename $(notdir $(wildcard tests/fuzz/targets/*.cpp))) schema regex
FUZZ_SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
fuzz-setup: setup
	@command -v $(FUZZ_CXX) >/dev/null || scripts/setup --fuzz
fuzz_compile = $(filter ccache,$(CXX)) $(FUZZ_CXX) -std=c++20 -O1 -g1 $(FUZZ_SANITIZE) -fsanitize=fuzzer-no-link -pthread -I. -MMD -MP -c
$(FUZZ_BUILD)/obj/%.o: %.cpp Makefile | fuzz-setup
	@mkdir -p $(@D)
	$(call say,$@)$(fuzz_compile) -o $@ $<
$(fuzz_units): $(FUZZ_BUILD)/units/%.o: $$(call fuzz_files,$$*) Makefile | fuzz-setup
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(call fuzz_files,$*) >$(@:.o=.cpp)
	$(call say,$@)$(fuzz_compile) -o $@ $(@:.o=.cpp)
$(FUZZ_BUILD)/fuzz: $(fuzz_objects)
	$(call say,$@)$(FUZZ_CXX) $(FUZZ_SANITIZE) -fsanitize=fuzzer -pthread -o $@ $^ $(LDLIBS)
	@for target in $(fuzz_targets); do ln -sf fuzz $(FUZZ_BUILD)/$$target; done
fuzzers: $(FUZZ_BUILD)/fuzz
fuzz: fuzzers
	scripts/fuzz --seconds $(SECONDS)

demo: $(BUILD)/runnel-demo
	@scripts/demo $(BUILD)/runnel-demo

PREFIX ?= /usr/local
prefix_word = '$(subst ','\'',$(PREFIX))'
install: $(BUILD)/runnel
	@scripts/install $(BUILD)/runnel $(prefix_word)
uninstall:
	@scripts/install --remove $(prefix_word)
dist: $(BUILD)/runnel-dist
	@scripts/dist $(BUILD) $(commit)

# To check that the build without CUDA is complete: make BUILD=build-cpu NVCC= all
lint:
	@command -v clang-format >/dev/null || scripts/setup --lint
	scripts/lint

format:
	clang-format -i $$(git ls-files '*.cpp' '*.h' '*.cu')

clean:
	rm -rf build build-asan build-tsan $(FUZZ_BUILD)

-include $(BUILD)/obj/tests/gpu/device/main.d $(dist_objects:.o=.d) $(tools:%.cpp=$(BUILD)/obj/%.d) $(mpi_objects:.o=.d) $(objects:.o=.d) $(test_objects:.o=.d) $(BUILD)/obj/main.d \
  $(cuda_objects:.o=.d) $(simt_objects:.o=.d) $(fuzz_objects:.o=.d) \
  $(patsubst %.ptx,%.d,$(call ptx_files,$(cuda_kernels)) $(ptx_sample))
