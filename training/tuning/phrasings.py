"""How people ask for what a tool computes. A hash sets some aside for the evaluation.

`{m}` is a model, `{g}` a device, `{n}` a number of tokens.
"""

# fmt: off
KV_CACHE_SIZE = (
    "How much KV cache does {m} need for {n} tokens?", "KV cache of {m} at {n} tokens",
    "How big is the KV cache of {m} with {n} tokens?", "kv size {m} {n} tokens",
    "What does {n} tokens of KV cache cost with {m}?", "kv cache size for {n} tokens of {m}",
    "How many bytes of KV cache do {n} tokens take on {m}?", "{m}: kv cache for {n} tokens",
    "Compute the KV cache of {m} for {n} tokens.", "{n} tokens, {m}: how much kv cache is that",
    "I have a context of {n} tokens on {m}. How much cache is that?", "{m} {n} tokens kv memory",
    "What is the KV cache of {m} for a context of {n} tokens?", "{m}, {n} tokens, kv cache?",
    "If a request has {n} tokens, how much KV memory does {m} use?",
    "Tell me the size of the KV cache when {m} holds {n} tokens.",
    "How much memory do the keys and values of {n} tokens take in {m}?",
    "Calculate the KV memory of {m} for {n} tokens of context.",
    "For {m}, what do {n} tokens of context weigh in the cache?",
    "memory for keys and values: {m}, {n} tokens",
    "how large does the cache of {m} get at {n} tokens",
    "What will {n} cached tokens of {m} take?", "work out the kv cache for {n} tokens with {m}",
    "How many gigabytes of KV cache for {n} tokens of {m}?",
    "give me the kv bytes of {m} at {n} tokens",
    "With {m} and {n} tokens, how much KV cache do I need?", "need kv cache size, {m}, {n} tokens",
    "A chat of {n} tokens runs on {m}. What does its KV cache take?",
    "Could you compute how much KV cache {m} needs at {n} tokens?",
    "My prompt is {n} tokens long, the model is {m}. How big is the cache?",
    "how many MB of kv cache does a {n} token request need on {m}", "{n} token kv cache {m}",
    "What is the cache footprint of {n} tokens for {m}?",
    "how much vram do {n} tokens of kv take for {m}",
    "I want to serve {m} with {n} tokens of context: how much cache per request?",
    "Per request of {n} tokens, how much KV cache does {m} hold?",
    "size of keys and values for {n} tokens in {m}",
    "How heavy is a context of {n} tokens for {m}?",
    "What KV cache does {m} keep for {n} tokens?", "KV footprint: model {m}, {n} tokens.",
    "How much room in the cache do {n} tokens of {m} take up?",
    "Say I cache {n} tokens with {m}. How much is that?",
)
DECODE_SPEED = (
    "How fast can {m} decode on {g}?", "How many tokens per second does {m} reach on {g}?",
    "tokens per second {m} {g}", "What is the decode speed of {m} on {g}?", "{m} on {g}: how fast",
    "How quickly does {g} generate with {m}?", "decode speed of {m} with {g}", "speed {m} {g}",
    "Compute the tokens per second of {m} on {g}.", "how fast is {m} on {g}",
    "What speed does the bandwidth of {g} allow for {m}?", "{m}, {g}: tokens per second?",
    "At most how many tokens a second does {m} write on {g}?", "how many tok/s for {m} on {g}",
    "If I run {m} on {g}, how fast does it write?", "tok/s of {m} on {g}",
    "What is the upper bound of decode speed for {m} on {g}?", "{g} running {m}, tokens per second",
    "Calculate how fast {g} decodes {m}.", "how quick would {m} be on {g}",
    "How many tokens each second can I expect from {m} on {g}?",
    "Given its memory bandwidth, how fast does {g} run {m}?",
    "bandwidth bound of {m} on {g} in tokens per second", "generation speed {m} on {g}",
    "What rate of tokens does {g} give for {m}?", "I run {m} on {g}. What speed can I get?",
    "With {g}, how many tokens per second does {m} produce?", "decoding rate for {m} on {g}",
    "how fast will answers of {m} come on {g}",
    "What throughput has a single request to {m} on {g}?",
    "Estimate the decode rate of {m} on {g}.", "max tokens per second, {m}, {g}",
    "Tell me how many tokens per second {g} manages with {m}.",
    "For {m} on {g}, what is the best speed of one request?",
    "Is {m} quick on {g}? How many tokens per second?", "per second tokens of {m} using {g}",
    "How fast does one user get tokens from {m} on {g}?", "work out the speed of {m} on {g}",
    "speed of decoding {m} when I have {g}", "what tokens/s would {g} give me for {m}",
    "Could you compute how fast {m} decodes on {g}?", "my {g} runs {m}: how many tokens a second",
)
FITS_ON = (
    "Does {m} fit on {g}?", "Will {m} fit on {g}?", "Can {g} hold {m}?", "{m} on {g}: does it fit",
    "Does {m} fit into the memory of {g}?", "does {m} fit {g}", "fits {m} {g}?",
    "Is {g} large enough for {m}?", "Can I load {m} on {g}?", "can {m} be loaded on {g}",
    "Is there enough memory on {g} for {m}?", "{m} {g} fit?", "Do the weights of {m} fit on {g}?",
    "I have {g}. Can I run {m} on it?", "can i run {m} on {g}", "Is {m} too big for {g}?",
    "is {m} too large for {g}", "Would {m} fit on {g}?", "Check whether {m} fits on {g}.",
    "Do I have enough memory for {m} with {g}?", "Tell me if {m} fits on {g}.",
    "Has {g} enough memory for {m}?", "will the weights of {m} go on {g}",
    "Can the weights of {m} be kept on {g}?", "{g}: enough for {m}?", "Is {g} enough for {m}?",
    "Could {g} store {m}?", "could i fit {m} on {g}", "Does {g} have room for {m}?",
    "room for {m} on {g}?", "I want to host {m} on {g}. Does it fit?", "does {g} take {m}",
    "Are the weights of {m} small enough for {g}?", "Is it possible to put {m} on {g}?",
    "Will I run out of memory when I load {m} on {g}?", "do i need more than {g} for {m}",
    "Can I squeeze {m} onto {g}?", "memory check: {m} on {g}", "Does my {g} hold all of {m}?",
    "See if {m} fits into {g}.", "fit check {m} {g}", "Can one load {m} into {g}?",
)
PHRASINGS = {"kv_cache_size": KV_CACHE_SIZE, "decode_speed": DECODE_SPEED, "fits_on": FITS_ON}
# The name that a tool takes, then other ways to write it.
MODELS = {
    "llama-2-7b": ("Llama 2 7B",), "llama-2-70b": ("Llama 2 70B",),
    "llama-3.1-8b": ("Llama 3.1 8B", "Llama-3.1-8B"), "llama-3.1-70b": ("Llama 3.1 70B",),
    "llama-3.3-70b": ("Llama 3.3 70B", "Llama-3.3-70B"), "llama-3.1-405b": ("Llama 3.1 405B",),
    "llama-3.2-1b": ("Llama 3.2 1B",), "llama-3.2-3b": ("Llama 3.2 3B",),
    "mistral-7b": ("Mistral 7B", "Mistral-7B"), "mixtral-8x7b": ("Mixtral 8x7B",),
    "qwen2.5-7b": ("Qwen2.5 7B", "Qwen 2.5 7B"), "qwen2.5-72b": ("Qwen2.5 72B", "Qwen 2.5 72B"),
    "qwen3-0.6b": ("Qwen3 0.6B", "Qwen 3 0.6B"), "qwen3-8b": ("Qwen3 8B", "Qwen3-8B"),
    "qwen3-32b": ("Qwen3 32B", "Qwen3-32B"), "deepseek-v3": ("DeepSeek V3", "DeepSeek-V3"),
    "gpt-oss-20b": ("GPT-OSS 20B",), "gpt-oss-120b": ("GPT-OSS 120B", "gpt oss 120b"),
}
DEVICES = {
    "h100": ("an H100", "H100", "one H100"), "a100": ("an A100", "A100", "one A100"),
    "h200": ("an H200", "H200", "a single H200"), "b200": ("a B200", "B200"),
    "l4": ("an L4", "L4"), "l40s": ("an L40S", "L40S", "one L40S"), "a10": ("an A10", "A10"),
    "rtx-4090": ("an RTX 4090", "RTX 4090", "a 4090"), "mi300x": ("an MI300X", "MI300X"),
    "rtx-5090": ("an RTX 5090", "RTX 5090", "a 5090"),
}
NO_TOOL = "None of the tools that I have here computes that."
# fmt: on
