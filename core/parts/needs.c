/* The one place where a router's declaration is checked: core/model and the probe of the host take what has passed here
 * as it is. Names become those of tensors in files and of metrics, so their letters are few. */
#include "parts/needs.h"

#include <math.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NUMBERS ((int64_t)1 << 56)
#define MOST_BYTES ((uint64_t)1 << 56)

/* Parameters that core itself keeps under layers.N.router. */
static const char *const own[] = {"weight", "logit_bias"};

int needs_parse_init(const char *init, float *std, float *fill) {
    static const char normal[] = "normal ";
    float sigma = 0;
    if (strncmp(init, normal, sizeof normal - 1) == 0) {
        const char *number = init + sizeof normal - 1;
        char *end;
        sigma = strtof(number, &end);
        if (!strchr(".0123456789", *number) || end == number || *end || !isfinite(sigma)) return 0;
    } else if (strcmp(init, "zeros") != 0 && strcmp(init, "ones") != 0) {
        return 0;
    }
    *std = sigma;
    *fill = strcmp(init, "ones") == 0 ? 1 : 0;
    return 1;
}

/* ---- names ---- */
/* what, i: "loss 3". */
static moe_status check_name(const char *name, const char *what, uint32_t i, moe_err *err) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    if (!name) return moe_fail(err, MOE_E_UNSUPPORTED, "%s %u has no name: it is NULL", what, i);
    size_t used = strnlen(name, NEEDS_MAX_NAME + 1), good = 0;
    if (used == 0) return moe_fail(err, MOE_E_UNSUPPORTED, "the name of %s %u is empty", what, i);
    if (used > NEEDS_MAX_NAME)
        return moe_fail(err, MOE_E_UNSUPPORTED, "the name of %s %u is longer than %d bytes", what, i, NEEDS_MAX_NAME);
    while (good < used && strchr(letters, name[good])) good++;
    if (good < used)
        return moe_fail(err, MOE_E_UNSUPPORTED,
                        "the name of %s %u, '%s', has byte 0x%02x at %zu: only letters, digits, _ and - are taken",
                        what, i, name, (unsigned char)name[good], good);
    return MOE_OK;
}

/* ---- parameters and state ---- */
static moe_status check_shape(const moe_param_spec *s, const char *what, moe_err *err) {
    int64_t count = 1;
    if (s->ndim < 1 || s->ndim > 4)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' has %d dimensions; 1 to 4 are taken", what, s->name, s->ndim);
    for (int d = 0; d < s->ndim; d++) {
        if (s->shape[d] < 1)
            return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' has dimension %d of %lld", what, s->name, d,
                            (long long)s->shape[d]);
        if (__builtin_mul_overflow(count, s->shape[d], &count) || count > MOST_NUMBERS)
            return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' has more than 2^56 numbers, with dimension %d of %lld",
                            what, s->name, d, (long long)s->shape[d]);
    }
    return MOE_OK;
}

static moe_status check_values(const moe_param_spec *s, const char *what, int trained, moe_err *err) {
    float std, fill;
    if (s->dtype != MOE_F32 && (trained || s->dtype != MOE_I64))
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' has dtype %d; %s", what, s->name, s->dtype,
                        trained ? "parameters are MOE_F32" : "state is MOE_F32 or MOE_I64");
    if (!s->init) return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' has no init: it is NULL", what, s->name);
    if (!needs_parse_init(s->init, &std, &fill))
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' has init '%.60s', which is none of zeros, ones, normal SIGMA",
                        what, s->name, s->init);
    if (s->dtype == MOE_I64 && strncmp(s->init, "normal", 6) == 0)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s '%s' is MOE_I64 and has init '%.60s'", what, s->name, s->init);
    return MOE_OK;
}

/* The name of parameter (trained) or state i is nobody's before it; one array may be both. */
static moe_status check_taken(const moe_router_needs *n, uint32_t i, int trained, moe_err *err) {
    const char *what = trained ? "parameter" : "state", *name = trained ? n->params[i].name : n->state[i].name;
    uint32_t params = trained ? i : n->n_params, state = trained ? 0 : i;
    for (size_t k = 0; k < sizeof own / sizeof own[0]; k++)
        if (strcmp(name, own[k]) == 0)
            return moe_fail(err, MOE_E_UNSUPPORTED, "%s %u is named '%s', as the host's own parameter is", what, i,
                            name);
    for (uint32_t k = 0; k < params; k++)
        if (strcmp(name, n->params[k].name) == 0)
            return moe_fail(err, MOE_E_UNSUPPORTED, "%s %u is named '%s', as parameter %u is", what, i, name, k);
    for (uint32_t k = 0; k < state; k++)
        if (strcmp(name, n->state[k].name) == 0)
            return moe_fail(err, MOE_E_UNSUPPORTED, "%s %u is named '%s', as state %u is", what, i, name, k);
    return MOE_OK;
}

static moe_status check_specs(const moe_router_needs *n, const moe_param_spec *specs, uint32_t count, int trained,
                              moe_err *err) {
    const char *what = trained ? "parameter" : "state";
    if (count > NEEDS_MAX_SPECS)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s is %u; this host takes at most %d",
                        trained ? "n_params" : "n_state", count, NEEDS_MAX_SPECS);
    if (count && !specs)
        return moe_fail(err, MOE_E_UNSUPPORTED, "%s and %s is NULL", trained ? "n_params is not 0" : "n_state is not 0",
                        trained ? "params" : "state");
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        status = check_name(specs[i].name, what, i, err);
        if (!status) status = check_taken(n, i, trained, err);
        if (!status) status = check_shape(&specs[i], what, err);
        if (!status) status = check_values(&specs[i], what, trained, err);
    }
    return status;
}

/* ---- losses ---- */
static moe_status check_losses(const moe_router_needs *n, moe_err *err) {
    if (n->n_losses > NEEDS_MAX_LOSSES)
        return moe_fail(err, MOE_E_UNSUPPORTED, "reports %u losses; this host takes at most %d", n->n_losses,
                        NEEDS_MAX_LOSSES);
    if (n->n_losses && !n->losses)
        return moe_fail(err, MOE_E_UNSUPPORTED, "n_losses is %u and losses is NULL", n->n_losses);
    moe_status status = MOE_OK;
    for (uint32_t i = 0; i < n->n_losses && !status; i++) {
        status = check_name(n->losses[i], "loss", i, err);
        for (uint32_t k = 0; k < i && !status; k++)
            if (strcmp(n->losses[i], n->losses[k]) == 0)
                status = moe_fail(err, MOE_E_UNSUPPORTED, "losses %u and %u are both named '%s'", k, i, n->losses[i]);
    }
    return status;
}

moe_status needs_check_router(const moe_router_needs *n, moe_err *err) {
    moe_status status = check_specs(n, n->params, n->n_params, 1, err);
    if (!status) status = check_specs(n, n->state, n->n_state, 0, err);
    if (!status) status = check_losses(n, err);
    if (status) return status;
    if (n->scope > MOE_SCOPE_GLOBAL || n->loss_scope > MOE_SCOPE_GLOBAL)
        return moe_fail(err, MOE_E_UNSUPPORTED, "scope is %u and loss_scope %u; MOE_SCOPE_GLOBAL, the last, is %d",
                        n->scope, n->loss_scope, MOE_SCOPE_GLOBAL);
    if (n->workspace > MOST_BYTES || n->saved > MOST_BYTES)
        return moe_fail(err, MOE_E_UNSUPPORTED, "workspace is %llu and saved %llu bytes; at most 2^56 are taken",
                        (unsigned long long)n->workspace, (unsigned long long)n->saved);
    if (!(n->input_jitter >= 0 && n->input_jitter <= 1))
        return moe_fail(err, MOE_E_UNSUPPORTED, "input_jitter is %g; 0 to 1 are taken", (double)n->input_jitter);
    return MOE_OK;
}
