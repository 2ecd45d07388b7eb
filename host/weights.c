/* One rule for eval and generate. */
#include "weights.h"

#include <hf/load.h>
#include <inttypes.h>
#include <io/checkpoint.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "identity.h"
#include "run_dir.h"

static moe_status find_checkpoint(const session *s, const command_args *args, char **dir, moe_err *err) {
    const char *given = command_value(args, "ckpt");
    int64_t step;
    if (!given) return ckpt_latest(s->out, dir, &step, err);
    return run_dir_take_checkpoint(given, dir, err);
}

static moe_status check(const session *s, const char *dir, moe_err *err) {
    ckpt_view *view = NULL;
    moe_status status = ckpt_open(dir, &view, err); /* verifies the checksums */
    if (!status) status = identity_check(view, s, IDENTITY_MODEL, err);
    ckpt_close(view);
    return status;
}

moe_status weights_choose(const session *s, const command_args *args, int allow_initial, weights *out, moe_err *err) {
    *out = (weights){NULL, NULL};
    moe_status status = find_checkpoint(s, args, &out->checkpoint, err);
    if (!status && out->checkpoint) status = check(s, out->checkpoint, err);
    if (status) return status;
    if (!out->checkpoint && command_value(args, "out"))
        return moe_fail(err, MOE_E_ARG, "%.300s: there is no checkpoint", s->out);
    if (!out->checkpoint) out->folder = s->weights;
    if (!out->checkpoint && !out->folder && !allow_initial)
        return moe_fail(err, MOE_E_ARG, "%.300s: there is no checkpoint; train first, or give --out or --ckpt", s->out);
    if (out->checkpoint && !command_value(args, "ckpt"))
        fprintf(stderr, "moehost: note: weights of %s\n", out->checkpoint);
    else if (out->folder)
        fprintf(stderr, "moehost: note: no checkpoint in %s: weights of %s\n", s->out, out->folder);
    else if (!out->checkpoint)
        fprintf(stderr,
                "moehost: note: no checkpoint in %s and no [model] weights: the initial ones of seed %" PRIu64 "\n",
                s->out, s->trainer.model.seed);
    return MOE_OK;
}

moe_status weights_load(const weights *w, trainer *t, moe_err *err) {
    if (w->checkpoint) return trainer_load(t, w->checkpoint, 0, err);
    return w->folder ? hf_load(t, w->folder, err) : MOE_OK;
}

void weights_free(weights *w) {
    free(w->checkpoint);
    *w = (weights){NULL, NULL};
}
