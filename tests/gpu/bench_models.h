/* Expert shapes of models that the rows of products and layers take. */
#ifndef GPU_BENCH_MODELS_H
#define GPU_BENCH_MODELS_H
#include <stdint.h>

typedef struct bench_model {
    const char *name;
    int64_t experts, hidden, ffn, k; /* experts: on this rank */
    int64_t tokens;                  /* whose choices meet these experts: tokens * k rows */
} bench_model;

/* mistralai/Mixtral-8x7B, Qwen/Qwen3-30B-A3B and Qwen3-235B-A22B: all experts. deepseek-ai/DeepSeek-V3: 32 of 256, as a
 * rank of eight has them; of the 8 choices of 4 * 8192 tokens an eighth, here 1 of each token. */
enum { BENCH_MODELS = 4 };
static const bench_model bench_models[BENCH_MODELS] = {{"Mixtral", 8, 4096, 14336, 2, 8192},
                                                       {"Qwen3-30B", 128, 2048, 768, 8, 8192},
                                                       {"Qwen3-235B", 128, 4096, 1536, 8, 8192},
                                                       {"DeepSeek-V3 EP 8", 32, 7168, 2048, 1, 32768}};
/* For shapes that only show that a row runs. */
static const bench_model bench_tiny_model = {"tiny", 4, 32, 16, 2, 24};

#endif
