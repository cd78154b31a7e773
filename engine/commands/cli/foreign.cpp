#include "engine/commands/cli/foreign.h"

#include <algorithm>

namespace runnel::commands {
namespace {

using enum Foreign::Meaning;

constexpr std::string_view kOnOff = "on off auto 0 1 true false yes no enabled disabled";
constexpr std::string_view kMapped = "weights are used in the mapped file";
constexpr std::string_view kAttention = "attention is always computed in one pass";
constexpr std::string_view kJinja = "chat templates are always interpreted";
constexpr std::string_view kThreads = "all work uses the same threads: -t N";
constexpr std::string_view kNoRope = "the model's own RoPE settings are used";
constexpr std::string_view kDownload = "runnel pull USER/REPO downloads a GGUF file of Hugging Face";
constexpr std::string_view kImages = "only text is supported";
constexpr std::string_view kLora = "merge the adapter into the model first (llama-export-lora)";
constexpr std::string_view kEmbed = "runnel computes no embeddings or rankings";
constexpr std::string_view kThink = "use --think on, off, low, medium or high";
constexpr std::string_view kLookup =
    "the length of drafts is chosen at run time; --lookup drafts from the text";
constexpr std::string_view kLog = "use --stats, --stats-file FILE, or -q for errors only";
constexpr std::string_view kInteractive = "runnel chat MODEL is a conversation";
constexpr std::string_view kPlacement = "use -ngl N, --cpu-moe or --n-cpu-moe N";
constexpr std::string_view kImatrix = "use runnel imatrix";
constexpr std::string_view kSliding = "layers with a sliding window cache only the window";
constexpr std::string_view kSharing = "prompts with a common prefix share the cache; --cache-size limits it";
constexpr std::string_view kRetrieval = "runnel has no counterpart of the llama.cpp tools that use it";
constexpr std::string_view kPaged = "the cache is always paged; --cache-size limits it";
constexpr std::string_view kQuantized =
    "the file's own quantization is used: choose a file with another one, or use runnel quantize";

constexpr Foreign kForeign[] = {
    // --- llama.cpp: options with another name here
    {"-no-cnv --no-conversation", "", Same, "--raw", {}, "run batch"},
    {"-cnv --conversation", "", Nothing, "chat is always a conversation", {}, "chat"},
    {"-cnv --conversation", "", Missing, kInteractive},
    {"-st --single-turn", "", Nothing, "one prompt is answered", {}, "run batch"},
    {"-st --single-turn", "", Missing, "runnel run MODEL PROMPT answers once"},
    {"--context-shift", "", Same, "--on-overflow shift"},
    {"--no-context-shift", "", Same, "--on-overflow error"},
    {"-mg --main-gpu", "*", Same, "--device cuda:$"},
    {"--mmap -ndio --no-direct-io", "", Same, "--load-mode mmap"},
    {"--no-mmap -dio --direct-io", "", Same, "--load-mode copy"},
    {"--mlock", "", Same, "--load-mode mmap+mlock"},
    {"--list-devices", "", Missing, "runnel devices lists them"},
    {"-cl --cache-list", "", Missing, "runnel list shows the models in the caches"},
    {"--completion-bash", "", Missing, "runnel completion bash prints it"},
    {"--kl-divergence-base --save-all-logits", "*", Missing,
     "use --save-logits FILE to write, --kl-base FILE to compare"},
    {"--kl-divergence", "", Nothing, "--kl-base computes it", {}, "perplexity"},
    {"--prompt", "*", Missing, "the text is the argument after MODEL, or -f FILE", {}, "tokenize"},
    {"--stdin", "", Nothing, "standard input is read without a prompt", {}, "tokenize"},
    {"--no-parse-special --show-count",
     "",
     Nothing,
     "special tokens are read as text unless --special is given; each line of the output is a token",
     {},
     "tokenize"},
    {"-npp", "*", Same, "--n-prompt $", {}, "bench"},
    {"-ntg", "*", Same, "--n-gen $", {}, "bench"},
    {"-pps -tgs", "", Missing, kRetrieval, {}, "bench"},
    {"--output-format", "*", Missing, "results are text, or JSON with --json"},
    {"-oe", "*", Missing, "the result is on standard output, errors are on standard error", {}, "bench"},
    {"-co --color", kOnOff, Nothing, "only chat has colors", {}, "run batch perplexity bench"},

    // --- llama.cpp: options without effect here
    {"-fa --flash-attn", kOnOff, Nothing, kAttention},
    {"--no-flash-attn", "", Nothing, kAttention},
    {"-lzm --lazy-mode", "*", Nothing, kMapped},
    {"--repack -nr --no-repack", "", Nothing, kMapped},
    {"--no-host", "", Nothing, kMapped},
    {"--op-offload --no-op-offload", "", Nothing, "layers run where their weights are"},
    {"-kvo --kv-offload -nkvo --no-kv-offload", "", Nothing,
     "the KV cache of a layer is on the layer's device"},
    {"-kvu --kv-unified -no-kvu --no-kv-unified", "", Nothing, kSharing},
    {"-cram --cache-ram", "*", Nothing, kSharing},
    {"-ctxcp --ctx-checkpoints --swa-checkpoints", "*", Nothing, kSliding},
    {"--swa-full", "", Nothing, kSliding},
    {"-dt --defrag-thold", "*", Nothing, kPaged},
    {"-fit --fit", kOnOff, Nothing, "layers are placed by free memory; runnel inspect shows the plan"},
    {"-fitt --fit-target -fitc --fit-ctx", "*", Nothing, "layers are placed by free memory"},
    {"-fitp --fit-print", kOnOff, Missing, "runnel inspect MODEL shows the memory plan"},
    {"--check-tensors", "", Missing, "runnel doctor MODEL checks the whole file"},
    {"--warmup --no-warmup", "", Nothing, "nothing is computed before the prompt"},
    {"--jinja --no-jinja", "", Nothing, kJinja},
    {"--no-display-prompt --no-escape --simple-io", "", Nothing, "runnel always works this way"},
    {"--no-perf --no-show-timings", "", Nothing, "times are shown by --stats only"},
    {"-mli --multiline-input",
     "",
     Nothing,
     "pasted lines, \"\"\" and Ctrl-G make longer messages",
     {},
     "chat"},
    {"-bs --backend-sampling", "", Nothing, "a GPU already selects the top-k candidates"},
    {"--spec-draft-backend-sampling --no-spec-draft-backend-sampling", "", Nothing,
     "a GPU already selects the top-k candidates"},
    {"-cd --ctx-size-draft", "*", Nothing, "the draft model has the same context as the model"},
    {"-tb --threads-batch", "*", Nothing, kThreads},
    {"-td --threads-draft --spec-draft-threads -tbd --threads-batch-draft --spec-draft-threads-batch", "*",
     Nothing, kThreads},
    {"--prio --poll --prio-batch --poll-batch --cpu-strict --cpu-strict-batch", "*", Nothing, kThreads},
    {"--prio-draft --spec-draft-prio --poll-draft --spec-draft-poll --prio-batch-draft "
     "--spec-draft-prio-batch",
     "*", Nothing, kThreads},
    {"--poll-batch-draft --spec-draft-poll-batch --cpu-strict-draft --spec-draft-cpu-strict", "*", Nothing,
     kThreads},
    {"--cpu-strict-batch-draft --spec-draft-cpu-strict-batch", "*", Nothing, kThreads},
    {"--rpc", "*", Missing, "models run on this machine only"},
    {"--log-colors", kOnOff, Nothing, kLog},
    {"--log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --log-jsonl --no-log-jsonl", "",
     Nothing, kLog},
    {"-lv --verbosity --log-verbosity", "*", Nothing, kLog},
    {"--log-verbose --verbose-prompt", "", Nothing, kLog},
    {"--log-file --log-prompts-dir", "*", Missing, kLog},
    {"-ptc --print-token-count", "*", Missing, kLog},
    {"--draft-p-split --spec-draft-p-split", "*", Nothing, "--draft-branches limits the branches"},
    {"--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match", "*", Nothing, kLookup},
    {"--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-check-rate --spec-ngram-min-hits", "*", Nothing,
     kLookup},
    {"--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits", "*", Nothing,
     kLookup},
    {"--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits", "*", Nothing,
     kLookup},
    {"--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits", "*", Nothing,
     kLookup},
    {"--skip-chat-parsing --no-skip-chat-parsing", "", Nothing, "answers are text"},

    // --- llama.cpp: options that do not exist here
    {"-mu --model-url -dr --docker-repo --server-base", "*", Missing, kDownload},
    {"-hft --hf-token", "*", Missing, "set HF_TOKEN instead: other users can see arguments"},
    {"-hfd -hfrd --hf-repo-draft --spec-draft-hf", "*", Same, "-md hf.co/$"},
    {"--gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default", "",
     Missing, kDownload},
    {"--embd-gemma-default", "", Missing, kDownload},
    {"-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch", "*", Missing,
     "use taskset, and -t N"},
    {"-Cd --cpu-mask-draft --spec-draft-cpu-mask -Crd --cpu-range-draft --spec-draft-cpu-range", "*", Missing,
     "use taskset, and -t N"},
    {"-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch", "*", Missing, "use taskset, and -t N"},
    {"-Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch", "*", Missing, "use taskset, and -t N"},
    {"--numa", "*", Missing, "use numactl"},
    {"-lcs --lookup-cache-static -lcd --lookup-cache-dynamic", "*", Missing,
     "--lookup drafts from the text of the prompt and the answer"},
    {"--keep", "*", Missing, "--on-overflow shift keeps the system prompt", "0 -1"},
    {"-bf --binary-file", "*", Same, "--file $", {}, "perplexity"},
    {"-bf --binary-file", "*", Missing, "-f FILE reads the bytes unchanged"},
    {"--in-file", "*", Missing, kImatrix},
    {"-ofreq --output-frequency --save-frequency --chunk --from-chunk", "*", Missing, kImatrix},
    {"--process-output --ppl --no-ppl --show-statistics --parse-special", "", Missing, kImatrix},
    {"--prompt-cache-all", "", Missing, "--prompt-cache FILE keeps the prompt"},
    {"--prompt-cache-ro", "", Missing, "--prompt-cache FILE keeps the prompt"},
    {"-sp --special", "", Missing, "special tokens are not shown; runnel tokenize shows them in a text"},
    {"--pooling --attention --embd-normalize --embd-output-format --embd-separator --cls-separator", "*",
     Missing, kEmbed},
    {"--embedding --embeddings --rerank --reranking", "", Missing, kEmbed},
    {"--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale", "*", Missing, kNoRope},
    {"--yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", "*", Missing,
     kNoRope},
    {"-gan --grp-attn-n -gaw --grp-attn-w", "*", Missing, kNoRope, "1 512"},
    {"--override-kv", "*", Missing, "the file's own metadata is used"},
    {"--ppl-output-type", "*", Missing, "there is one form of output, and --json", "0"},
    {"-mm --mmproj -mmu --mmproj-url --image --audio --video --image-min-tokens --image-max-tokens", "*",
     Missing, kImages},
    {"--video-fps --video-timestamp-interval --video-ffmpeg-dir", "*", Missing, kImages},
    {"--no-mmproj --no-mmproj-auto --mmproj-auto --mmproj-offload --no-mmproj-offload", "", Nothing, kImages},
    {"-ot --override-tensor -ncffn --n-cpu-ffn", "*", Missing, kPlacement},
    {"-otd --override-tensor-draft --spec-draft-override-tensor", "*", Missing, "use -ngld N"},
    {"-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe", "*", Missing, "use -ngld N"},
    {"-cmoed --cpu-moe-draft --spec-draft-cpu-moe", "", Missing, "use -ngld N"},
    {"-ctkd --cache-type-k-draft --spec-draft-type-k -ctvd --cache-type-v-draft --spec-draft-type-v", "*",
     Missing, "the draft's cache is f16", "f16"},
    {"--lora --lora-scaled", "*", Missing, kLora},
    {"--control-vector --control-vector-scaled --control-vector-layer-range", "*", Missing,
     "there are no control vectors"},
    {"--eagle3", "", Missing, "use -md FILE with an EAGLE-3 head"},
    {"--dflash", "", Missing, "use -md FILE with a DFlash drafter"},
    {"--spec-default", "", Missing, "use --mtp, --lookup, -md MODEL or --self-draft N"},
    {"--spec-synth-len --spec-synth-rates", "*", Missing, "runnel bench measures drafts by acceptance"},
    {"--reasoning-format", "*", Nothing, "reasoning is separated from the answer; --show-thinking shows it"},
    {"-rea --reasoning --reasoning-effort", "*", Same, "--think $"},
    {"--reasoning-budget-message", "*", Missing, kThink},
    {"--reasoning-preserve --no-reasoning-preserve", "", Missing, kThink},
    {"-i --interactive -if --interactive-first --interactive-specials -ins --instruct",
     "",
     Nothing,
     "chat is interactive",
     {},
     "chat"},
    {"-i --interactive -if --interactive-first --interactive-specials -ins --instruct -mli --multiline-input",
     "", Missing, kInteractive},
    {"--in-prefix-bos", "", Missing, "the chat template writes the turns; --raw disables it"},
    {"--in-prefix --in-suffix", "*", Missing, "the chat template writes the turns; --raw disables it"},
    {"--chat-template-name", "*", Missing, "use --chat-template FILE"},
    {"-o --output --output-file", "*", Missing,
     "the result is on stdout: runnel run ... > FILE; chat has /save"},
    {"--context-file --chunk-size --chunk-separator --positive-file --negative-file --pca-batch --pca-iter "
     "--method",
     "*", Missing, kRetrieval},
    {"--diffusion-steps --diffusion-eps --diffusion-algorithm --diffusion-alg-temp", "*", Missing,
     kRetrieval},
    {"--diffusion-block-length --diffusion-cfg-scale --diffusion-add-gumbel-noise", "*", Missing, kRetrieval},
    {"--diffusion-visual", "", Missing, kRetrieval},
    {"--host --port --api-key --slots --metrics -to --timeout", "*", Missing,
     "there is no server: runnel batch answers many prompts"},

    // --- ollama run
    {"--keepalive", "*", Nothing, "a model is mapped from its file, not kept by a service"},
    {"--nowordwrap", "", Nothing, "answers are not wrapped"},
    {"--insecure", "", Missing, kDownload},
    {"--truncate", kOnOff, Missing, "use --on-overflow"},
    {"--dimensions", "*", Missing, kEmbed},
    {"--experimental --experimental-yolo --experimental-websearch", "", Missing,
     "only runnel chat --mcp FILE runs tools; --tools FILE describes tools to the model"},

    // --- mistral.rs
    {"--isq --quant -q4 -q8", "*", Missing, kQuantized},
    {"--from-uqff --quantized-model-id --quantized-filename --quantized-file --tok-model-id --hf-cache "
     "--token-source",
     "*", Missing, kDownload},
    {"-a --arch --architecture", "*", Nothing, "the file names its architecture"},
    {"--dtype --num-device-layers --device-layers --topology", "*", Missing, kPlacement, "auto"},
    {"--cpu", "", Same, "--device cpu"},
    {"--gguf", "", Nothing, "MODEL is a GGUF file"},
    {"--max-seqs", "*", Missing, "use runnel batch --parallel N"},
    {"--max-batch-size", "*", Missing, "use -b N"},
    {"--paged-attn --paged-attention", kOnOff, Nothing, kPaged},
    {"--no-paged-attn", "", Nothing, kPaged},
    {"--pa-gpu-mem --pa-gpu-mem-usage --pa-ctxt-len --pa-blk-size --pa-context-len --pa-block-size "
     "--pa-memory-mb",
     "*", Nothing, kPaged},
    {"--pa-cache-type", "*", Missing, "use --cache-type-k and --cache-type-v"},
    {"--no-kv-cache", "", Missing, "the KV cache is always used"},
    {"--prefix-cache-n", "*", Nothing, kSharing},
    {"--truncate-sequence", "", Missing, "use --on-overflow drop-middle"},
    {"--throughput --throughput-log", "", Same, "--stats"},
    {"--interactive-mode", "", Missing, kInteractive},
    {"--enable-thinking", "", Same, "--think on"},
    {"--jinja-explicit", "*", Same, "--chat-template $"},
    {"--agent --enable-search --search --web", "", Missing,
     "only runnel chat --mcp FILE runs tools; --tools FILE describes tools to the model"},
    {"--mcp-config", "*", Missing, "use runnel chat --mcp FILE"},
};

struct Program {
    std::string_view names, use;
};
constexpr Program kPrograms[] = {
    {"show info gguf-dump gguf", "use runnel inspect MODEL"},
    {"download get fetch", "use runnel pull USER/REPO"},
    {"cp push", "models are files: copy them"},
    {"ls models", "use runnel list"},
    {"remove delete", "use runnel rm NAME"},
    {"ps stop", "a model is loaded by the command that uses it: there is nothing to stop"},
    {"serve server daemon api",
     "there is no server: runnel batch answers many prompts, runnel chat MODEL < PIPE answers lines from a "
     "pipe"},
    {"create modelfile", "options in ~/.config/runnel/config.toml replace a Modelfile"},
    {"cli llama-cli main simple", "use runnel chat MODEL or runnel run MODEL PROMPT"},
    {"generate complete text prompt ask", "use runnel run MODEL PROMPT"},
    {"llama-bench benchmark batched-bench", "use runnel bench MODEL"},
    {"llama-imatrix importance", "use runnel imatrix MODEL -f TEXT -o FILE"},
    {"ppl llama-perplexity kld", "use runnel perplexity MODEL -f FILE"},
    {"llama-tokenize detokenize encode decode", "use runnel tokenize MODEL TEXT, or --decode IDS"},
    {"embed embedding embeddings rerank", kEmbed},
    {"fit-params fit", "use runnel inspect MODEL"},
    {"tune", "use runnel bench MODEL"},
    {"launch signin signout login logout", "models run on this machine only"},
    {"gpu gpus gpu-info list-devices", "use runnel devices"},
};

bool holds(std::string_view words, std::string_view word) {
    if (word.empty()) return false;
    for (size_t from = 0; from <= words.size();) {
        const size_t blank = std::min(words.find(' ', from), words.size());
        if (words.substr(from, blank - from) == word) return true;
        from = blank + 1;
    }
    return false;
}

}  // namespace

bool Foreign::takes(std::string_view value) const {
    return values == "*" || holds(values, value);
}

bool Foreign::is_harmless(std::string_view value) const {
    return holds(harmless, value);
}

Arguments Foreign::replacement(const std::string &value) const {
    Arguments result;
    for (size_t from = 0; from <= text.size();) {
        const size_t blank = std::min(text.find(' ', from), text.size());
        std::string word(text.substr(from, blank - from));
        if (const size_t place = word.find('$'); place != std::string::npos) word.replace(place, 1, value);
        result.push_back(std::move(word));
        from = blank + 1;
    }
    return result;
}

const Foreign *find_foreign(std::string_view name, std::string_view command) {
    for (const Foreign &foreign : kForeign)
        if (holds(foreign.names, name) && (foreign.commands.empty() || holds(foreign.commands, command)))
            return &foreign;
    return nullptr;
}

std::span<const Foreign> foreign_options() {
    return kForeign;
}

std::string_view foreign_command(std::string_view name) {
    for (const Program &program : kPrograms)
        if (holds(program.names, name)) return program.use;
    return {};
}

}  // namespace runnel::commands
