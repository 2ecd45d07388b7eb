/* One forward pass a token over the whole window. */
#include "generate.h"

#include <math.h>
#include <moe/options.h>
#include <moe/random.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"
#include "stop.h"

typedef struct generation {
    session *s;
    const generate_options *o;
    FILE *to;
} generation;

/* Draws from softmax(logits / temperature); u in (0,1). Ties and temperature 0: the lowest of the likeliest. */
static int32_t draw(const float *logits, int64_t vocab, double temperature, double u) {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature <= 0) return (int32_t)best;
    double sum = 0, top = (double)logits[best];
    for (int64_t i = 0; i < vocab; i++) sum += exp(((double)logits[i] - top) / temperature);
    double rest = u * sum;
    for (int64_t i = 0; i < vocab; i++) {
        rest -= exp(((double)logits[i] - top) / temperature);
        if (rest <= 0) return (int32_t)i;
    }
    return (int32_t)best;
}

/* window [seq] holds n tokens; one more is put at its end, the oldest falls out when it is full. */
static void push(int32_t *window, int64_t seq, int64_t *n, int32_t token) {
    if (*n == seq) memmove(window, window + 1, (size_t)(--*n) * sizeof *window);
    window[(*n)++] = token;
}

static void print_token(const generation *g, int32_t token, int first) {
    if (g->o->prompt)
        fputc(token, g->to);
    else
        fprintf(g->to, first ? "%d" : " %d", token);
}

/* The prompt, as far as the window holds it, and on paper. */
static void take_prompt(const generation *g, int32_t *window, int64_t seq, int64_t *n) {
    int64_t length = g->o->prompt ? (int64_t)strlen(g->o->prompt) : g->o->n_ids;
    for (int64_t i = 0; i < length; i++) {
        int32_t token = g->o->prompt ? (uint8_t)g->o->prompt[i] : g->o->ids[i];
        push(window, seq, n, token);
        print_token(g, token, i == 0);
    }
}

static moe_status loop(generation *g, trainer *t, int32_t *window, float *logits, moe_err *err) {
    const model_cfg *c = &g->s->trainer.model;
    /* of a text, a byte each: higher ids stand for none */
    const int64_t ids = g->o->prompt && c->vocab > 256 ? 256 : c->vocab;
    moe_random_key key = moe_random_key_make(g->o->seed, MOE_RANDOM_SAMPLE, "generate");
    int64_t n = 0;
    take_prompt(g, window, c->seq, &n);
    for (int64_t i = 0; i < g->o->tokens && !stop_requested(); i++) {
        moe_status status = trainer_logits(t, window, n, logits, err);
        if (status) return status;
        double u = (double)moe_random_unit(moe_random_words(key, (uint64_t)i, 0).v[0]);
        int32_t token = draw(logits + (n - 1) * c->vocab, ids, g->o->temperature, u);
        push(window, c->seq, &n, token);
        print_token(g, token, 0);
        fflush(g->to);
    }
    fputc('\n', g->to);
    if (fflush(g->to) || ferror(g->to)) return moe_fail(err, MOE_E_IO, "standard output: cannot be written");
    return MOE_OK;
}

static moe_status run(void *arg, uint32_t rank, const moe_bootstrap *bootstrap, moe_err *err) {
    generation *g = arg;
    const model_cfg *c = &g->s->trainer.model;
    (void)rank;
    trainer *t = NULL;
    int32_t *window = calloc((size_t)c->seq, sizeof *window);
    float *logits = malloc((size_t)(c->seq * c->vocab) * sizeof *logits);
    moe_status status = window && logits ? session_trainer(g->s, &g->s->trainer, bootstrap, &t, err)
                                         : moe_fail(err, MOE_E_NOMEM, "out of memory for the context");
    if (!status) status = weights_load(g->o->weights, t, err);
    if (!status) status = loop(g, t, window, logits, err);
    if (status && t) trainer_abort(t, err->msg);
    trainer_destroy(t);
    free(window);
    free(logits);
    return status;
}

moe_status generate(session *s, const generate_options *o, FILE *to, moe_err *err) {
    generation g = {s, o, to};
    return session_run(s, run, &g, err);
}
