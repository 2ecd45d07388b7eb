/* From recipe to session: plugin by plugin, then sizes. */
#include "wire.h"

#include <data/data.h>
#include <inttypes.h>
#include <io/fs.h>
#include <mesh/mesh.h>
#include <moe/options.h>
#include <stdlib.h>
#include <string.h>

#include "choose.h"
#include "command.h"
#include "compare.h"
#include "launch.h"
#include "options.h"
#include "progress.h"
#include "stop.h"
#include "wire_impl.h"

enum { MAX_THREAD_RANKS = 1024 };

/* The resolved options of each plugin section; a session's parts point into them. */
typedef struct wire_memory {
    size_t n;
    loader_found *found; /* [n] what each section came to; desc NULL where it has no effect */
    options sections[];
} wire_memory;

int wire_exit_code(moe_status status) {
    switch (status) {
        case MOE_OK:
            return 0;
        case MOE_E_ARG:
            return 2;
        case MOE_E_UNSUPPORTED:
            return 3;
        case MOE_E_COMM:
            return 4;
        default:
            return 1;
    }
}

/* How a command wants its session. */
typedef struct wire_options {
    const char *command;
    int alone;           /* one rank, all experts on it */
    int processes;       /* the ranks may be processes */
    const char *resumed; /* the resolved recipe of the run that goes on; NULL = a new one */
} wire_options;

/* ---- plugins ---- */
/* One section: the plugin, and its options against the schema. */
static int wire_plugin(session *s, recipe *r, loader *l, size_t i, const char *device, part_ref *out, err_list *errs) {
    const recipe_plugin *p = recipe_plugin_at(r, i);
    const loader_request request = {p->kind, p->name, device, recipe_dir(r), p->where};
    loader_found found;
    if (!loader_find(l, &request, &found, errs)) return 3;
    out->desc = found.desc;
    out->table = found.vtable;
    s->memory->found[i] = found;
    options *o = &s->memory->sections[i];
    if (!options_resolve(out->desc, p->options, p->n_options, p->where, o, errs)) return 2;
    out->kv = o->kv;
    out->n_kv = o->n;
    moe_err err = {.size = sizeof err};
    moe_status status = recipe_note_options(r, i, o->kv, o->n, &err);
    if (status) err_list_add(errs, "%s: %s", p->where, err.msg);
    return status ? 1 : 0;
}

/* The number of a section in the recipe. */
static size_t index_of(const recipe *r, const recipe_plugin *p) {
    size_t i = 0;
    while (recipe_plugin_at(r, i) != p) i++;
    return i;
}

static int wire_kind(session *s, recipe *r, loader *l, const char *kind, const char *device, part_ref *out,
                     err_list *errs) {
    return wire_plugin(s, r, l, index_of(r, recipe_plugin_of(r, kind)), device, out, errs);
}

/* Overrides for some layers exist for routers only. */
static int refuse_overrides(const recipe *r, err_list *errs) {
    int code = 0;
    for (size_t i = 0; i < recipe_count_plugins(r); i++) {
        const recipe_plugin *p = recipe_plugin_at(r, i);
        if ((!p->n_ranges && !p->experts) || strcmp(p->kind, "router") == 0) continue;
        err_list_add(errs, "%s: sections for some layers or parts are built for [router] only", p->where);
        code = 2;
    }
    return code;
}

/* One override of some layers. used: a MoE layer has it. */
static int wire_router(session *s, recipe *r, loader *l, size_t i, int used, const char *device, part_ref *out,
                       err_list *errs) {
    const recipe_plugin *p = recipe_plugin_at(r, i);
    if (used) return wire_plugin(s, r, l, i, device, out, errs);
    err_list_add(errs, "%s: [%s] has no effect: its layers have no experts", p->where, p->section);
    return 2;
}

/* Every router section is checked, used or not: a slip in one that no layer has is still a slip. The base comes first,
 * because overrides inherit its options, and an error in these is to be reported once. */
static int wire_routers(session *s, recipe *r, loader *l, const char *device, err_list *errs) {
    size_t n = recipe_count_plugins(r), base = index_of(r, recipe_plugin_of(r, "router"));
    part_ref *found = calloc(n, sizeof *found);
    int *used = calloc(n, sizeof *used), worst = 0, base_code = 0;
    if (!found || !used) {
        err_list_add(errs, "out of memory for the routers");
        worst = 1;
        goto done;
    }
    for (uint32_t layer = 0; layer < s->parts.n_layers; layer++)
        if (model_layer_is_moe(&s->trainer.model, layer))
            used[index_of(r, recipe_plugin_for(r, "router", layer, false))] = 1;
    if (used[base] || recipe_plugin_at(r, base)->named || recipe_plugin_at(r, base)->n_options)
        worst = base_code = wire_plugin(s, r, l, base, device, &found[base], errs);
    for (size_t i = 0; i < n && !base_code; i++) {
        if (i == base || strcmp(recipe_plugin_at(r, i)->kind, "router") != 0) continue;
        int code = wire_router(s, r, l, i, used[i], device, &found[i], errs);
        if (code > worst) worst = code;
    }
    for (uint32_t layer = 0; layer < s->parts.n_layers; layer++)
        if (model_layer_is_moe(&s->trainer.model, layer))
            s->routers[layer] = found[index_of(r, recipe_plugin_for(r, "router", layer, false))];
    s->parts.routers = s->routers;
done:
    free(found);
    free(used);
    return worst;
}

/* `auto` becomes a name, once all else is in order: to choose takes a measurement by all ranks. */
static int wire_dispatcher(session *s, recipe *r, loader *l, const wire_options *o, int worst, err_list *errs) {
    size_t i = index_of(r, recipe_plugin_of(r, "dispatcher"));
    const char *id = "local";
    moe_err err = {.size = sizeof err};
    if (o->alone || strcmp(recipe_plugin_at(r, i)->name, "auto") == 0) {
        moe_status status = o->alone || worst ? MOE_OK : choose_dispatcher(s, o->resumed, &id, &err);
        if (status) {
            err_list_add(errs, "%s: %s", recipe_plugin_at(r, i)->where, err.msg);
            return wire_exit_code(status);
        }
        recipe_choose_plugin(r, i, id);
    }
    return wire_plugin(s, r, l, i, s->parts.device.desc->device, &s->parts.dispatcher, errs);
}

/* ---- asynchronous devices ---- */
/* A synchronous plugin reads device memory where it lies, which the host cannot on this asynchronous device, unless it
 * is made for it. Schedulers see no memory. */
static int reads_on_host(const moe_desc *device, const part_ref *p) {
    if (!p->desc || strcmp(p->desc->device, device->device) == 0) return 0;
    return !(p->desc->flags & (MOE_ASYNC | MOE_FOLLOWS_DEVICE));
}

/* A comm moves nothing for one rank, so then any will do. */
static int check_async(const session *s, const recipe *r, err_list *errs) {
    const parts_cfg *p = &s->parts;
    const moe_desc *device = p->device.desc;
    const struct {
        const char *kind;
        const part_ref *part;
    } all[] = {{"comm", &p->comm}, {"precision", &p->precision}, {"dispatcher", &p->dispatcher}};
    int code = 0;
    if (!device || !(device->flags & MOE_ASYNC)) return 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!reads_on_host(device, all[i].part) || (i == 0 && s->ranks == 1)) continue;
        err_list_add(errs, "%s: %s '%s' works on memory of the host, and the device is %s%s",
                     recipe_plugin_of(r, all[i].kind)->where, all[i].kind, all[i].part->desc->id, device->device,
                     i ? "" : ": it runs one rank; several want a comm that is made for the device");
        code = EXIT_CODE_PLUGIN;
    }
    for (uint32_t l = 0; l < p->n_layers; l++) {
        if (!reads_on_host(device, &s->routers[l])) continue;
        err_list_add(errs, "%s: router '%s' works on memory of the host, and the device is %s",
                     recipe_plugin_for(r, "router", l, false)->where, s->routers[l].desc->id, device->device);
        return EXIT_CODE_PLUGIN;
    }
    if (s->trace) {
        err_list_add(errs,
                     "%s: trace wants the times of a step's parts, and device/%s does not tell them: it is "
                     "asynchronous",
                     recipe_get(r, "run", "trace")->where, device->id);
        code = EXIT_CODE_PLUGIN;
    }
    return code;
}

/* Ranks on GPUs talk by NCCL, where the recipe does not say how. */
static void choose_comm(const session *s, recipe *r) {
    const recipe_plugin *p = recipe_plugin_of(r, "comm");
    if (p->named || strcmp(s->parts.device.desc->device, "cuda") != 0 || recipe_int(r, "comm", "ranks") == 1) return;
    recipe_choose_plugin(r, index_of(r, p), "nccl");
}

/* All but the dispatcher. */
static int wire_parts(session *s, recipe *r, loader *l, err_list *errs) {
    parts_cfg *p = &s->parts;
    int worst = refuse_overrides(r, errs);
    int code = wire_kind(s, r, l, "device", NULL, &p->device, errs);
    if (code > worst) worst = code;
    if (!p->device.desc) return worst; /* all others are for a device */
    const char *device = p->device.desc->device;
    choose_comm(s, r);
    struct {
        const char *kind;
        part_ref *out;
    } rest[] = {{"comm", &p->comm}, {"scheduler", &p->scheduler}, {"precision", &p->precision}};
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        code = wire_kind(s, r, l, rest[i].kind, device, rest[i].out, errs);
        if (code > worst) worst = code;
    }
    if (s->trainer.model.experts) {
        code = wire_routers(s, r, l, device, errs);
        if (code > worst) worst = code;
    }
    return worst;
}

/* ---- ranks ---- */
/* Several processes of which each takes itself for the whole run would write over each other's files. */
static int refuse_apart(const session *s, const recipe *r, uint32_t world, err_list *errs) {
    const char *variable, *id = s->parts.comm.desc->id;
    const uint32_t started = launch_started(&variable);
    if (started == 1 || world > 1) return 0;
    err_list_add(errs,
                 "%s: a launcher has started %u processes (%s), but comm/%s makes a run of its own of each: choose "
                 "comm.plugin = mpi (mpirun) or nccl (GPUs), or unset %s",
                 recipe_plugin_of(r, "comm")->where, started, variable, id, variable);
    return EXIT_CODE_USAGE;
}

/* The number of ranks is the launcher's; the recipe may say the same. */
static int note_world(session *s, recipe *r, const wire_options *o, err_list *errs) {
    const recipe_value *v = recipe_get(r, "comm", "ranks");
    s->ranks = launch_world(s->launch);
    if (s->ranks > 1 && !o->processes) {
        err_list_add(errs, "moehost %s: is one process; the launcher has started %u", o->command, s->ranks);
        return EXIT_CODE_USAGE;
    }
    if (o->alone) return 0;
    const int apart = refuse_apart(s, r, s->ranks, errs);
    if (apart) return apart;
    if (v->from != RECIPE_DEFAULT && v->v.i != s->ranks) {
        err_list_add(errs, "%s: ranks = %lld, but the launcher of comm/%s has started %u process%s", v->where,
                     (long long)v->v.i, s->parts.comm.desc->id, s->ranks, s->ranks == 1 ? "" : "es");
        return EXIT_CODE_USAGE;
    }
    recipe_note_ranks(r, s->ranks);
    return 0;
}

/* Processes: they meet, and go on together or not at all. What the recipes say is compared before anything is made of
 * it. */
static int meet_processes(session *s, recipe *r, const wire_options *o, int worst, err_list *errs) {
    moe_err err = {.size = sizeof err};
    char *text = NULL;
    size_t bytes = 0;
    moe_status status = launch_open(&s->parts.comm, &s->launch, &err);
    if (status) {
        err_list_add(errs, "%s: comm/%s: %s", recipe_plugin_of(r, "comm")->where, s->parts.comm.desc->id, err.msg);
        return wire_exit_code(status);
    }
    int code = note_world(s, r, o, errs);
    if (code > worst) worst = code;
    worst = launch_agree(s->launch, worst);
    if (worst) return worst;
    FILE *to = open_memstream(&text, &bytes);
    if (to) recipe_print_resolved(r, to);
    if (to) fclose(to);
    status = compare_texts(launch_bootstrap(s->launch), "recipe", text ? text : "", &err);
    free(text);
    if (status) err_list_add(errs, "moehost: %s", err.msg);
    return wire_exit_code(status);
}

static int wire_ranks(session *s, recipe *r, const wire_options *o, int worst, err_list *errs) {
    const moe_comm_v0 *comm = s->parts.comm.table;
    if (comm && comm->launch == MOE_LAUNCH_PROCESSES) return meet_processes(s, r, o, worst, errs);
    s->ranks = (uint32_t)recipe_int(r, "comm", "ranks");
    const int apart = comm && !o->alone ? refuse_apart(s, r, 1, errs) : 0;
    if (apart > worst) worst = apart;
    if (s->ranks <= MAX_THREAD_RANKS) return worst;
    err_list_add(errs, "%s: ranks are threads of this process, at most %d", recipe_get(r, "comm", "ranks")->where,
                 MAX_THREAD_RANKS);
    return EXIT_CODE_USAGE;
}

/* ---- sizes ---- */
/* Does this degree alone divide what it cuts? Errors are said where it is written. */
static int check_cut(const session *s, const recipe *r, const char *key, const model_split *split, err_list *errs) {
    model_local local;
    moe_err err = {.size = sizeof err};
    moe_status status = model_localise(&s->trainer.model, split, &local, &err);
    if (!status) return 0;
    err_list_add(errs, "%s: %s", recipe_get(r, "parallel", key)->where, err.msg);
    return wire_exit_code(status);
}

/* Ranks and degrees; what this version cannot run is refused where it is written. */
static int wire_mesh(session *s, const recipe *r, const wire_options *o, err_list *errs) {
    static const char *const later[] = {"cp", "pp", "vpp"};
    trainer_cfg *t = &s->trainer;
    int code = 0;
    moe_err err = {.size = sizeof err};
    if (o->alone) {
        s->ranks = 1;
        t->mesh = (mesh_cfg){1, 1, 1, 1, 1, 1, 1};
        return mesh_init(&s->mesh, &t->mesh, &err);
    }
    const uint32_t tp = (uint32_t)recipe_int(r, "parallel", "tp"), ep = (uint32_t)recipe_int(r, "parallel", "ep"),
                   etp = (uint32_t)recipe_int(r, "parallel", "etp");
    t->mesh = (mesh_cfg){s->ranks, tp, 1, (uint32_t)recipe_int(r, "parallel", "dp"), 1, etp, ep};
    t->node_size = (uint32_t)recipe_int(r, "parallel", "node_size");
    t->timeout = recipe_float(r, "comm", "timeout");
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        const recipe_value *v = recipe_get(r, "parallel", later[i]);
        if (v->v.i == 1) continue;
        err_list_add(errs, "%s: %s = %lld is not built yet: this version runs tp, dp, ep and etp", v->where, later[i],
                     (long long)v->v.i);
        code = EXIT_CODE_USAGE;
    }
    if (!code && mesh_init(&s->mesh, &t->mesh, &err)) {
        static const char *const keys[] = {"tp", "ep", "etp"};
        const char *key = "dp";
        for (size_t i = sizeof keys / sizeof keys[0]; i-- > 0;)
            if (recipe_int(r, "parallel", keys[i]) > 1) key = keys[i];
        if (recipe_int(r, "parallel", "dp") > 0) key = "dp";
        err_list_add(errs, "%s: %s", recipe_get(r, "parallel", key)->where_key, err.msg);
        return EXIT_CODE_USAGE;
    }
    const model_split cut_tp = {tp, 0, 1, 0, 1, 0}, cut_ep = {1, 0, ep, 0, 1, 0}, cut_etp = {1, 0, 1, 0, etp, 0};
    if (!code) code = check_cut(s, r, "tp", &cut_tp, errs);
    if (!code) code = check_cut(s, r, "ep", &cut_ep, errs);
    if (!code) code = check_cut(s, r, "etp", &cut_etp, errs);
    int64_t slice = code ? 1 : t->model.micro * s->mesh.degree[MESH_DP];
    if (!code && (t->programs & TRAINER_TRAIN) && t->global % slice) {
        err_list_add(errs, "%s: global = %lld is not a multiple of micro * dp = %lld * %u",
                     recipe_get(r, "batch", "global")->where, (long long)t->global, (long long)t->model.micro,
                     s->mesh.degree[MESH_DP]);
        code = EXIT_CODE_USAGE;
    }
    return code;
}

/* ---- data ---- */
static void note_data(void *ctx, const char *text) {
    if (session_speaks(ctx)) fprintf(stderr, "moehost: note: %s\n", text);
}

/* [data] weights: one number above 0 for each item of train. NULL with an error when it does not fit. */
static double *read_weights(const recipe *r, size_t n_train, size_t *n, err_list *errs) {
    const char *const *text = recipe_list(r, "data", "weights", n);
    double *out = calloc(*n + 1, sizeof *out);
    if (!out) err_list_add(errs, "out of memory for the data");
    for (size_t i = 0; out && i < *n; i++) {
        char *end = NULL;
        out[i] = strtod(text[i], &end);
        if (*n == n_train && end != text[i] && !*end && out[i] > 0 && out[i] < 1e30) continue;
        err_list_add(errs, "%s: want one number above 0 for each of the %zu items of train, not '%.40s' of %zu",
                     recipe_get(r, "data", "weights")->where, n_train, text[i], *n);
        free(out);
        out = NULL;
    }
    return out;
}

static int open_data(session *s, const recipe *r, const data_config *cfg, err_list *errs) {
    moe_err err = {.size = sizeof err};
    moe_status status = data_open(cfg, &s->data, &err);
    if (!status) return 0;
    /* the reader says "train: " or "valid: " where it knows; the place says it too */
    bool valid = strncmp(err.msg, "valid: ", 7) == 0, named = valid || strncmp(err.msg, "train: ", 7) == 0;
    const char *where = recipe_get(r, "data", valid && cfg->n_valid ? "valid" : "train")->where;
    err_list_add(errs, "%s: %s", where, named ? err.msg + 7 : err.msg);
    return wire_exit_code(status);
}

static int wire_data(session *s, const recipe *r, err_list *errs) {
    size_t n_train = 0, n_valid = 0, n_weights = 0;
    data_config cfg = {.base = recipe_dir(r),
                       .train = recipe_list(r, "data", "train", &n_train),
                       .valid = recipe_list(r, "data", "valid", &n_valid),
                       .valid_fraction = recipe_float(r, "data", "valid_fraction"),
                       .format = (int32_t)recipe_int(r, "data", "format"),
                       .token_dtype = (int32_t)recipe_int(r, "data", "token_dtype"),
                       .documents = recipe_bool(r, "data", "documents"),
                       .vocab = s->trainer.model.vocab,
                       .seq_len = s->trainer.model.seq,
                       .seed = s->trainer.model.seed,
                       .note = note_data,
                       .note_ctx = s};
    double *weights = read_weights(r, n_train, &n_weights, errs);
    if (!weights) return EXIT_CODE_USAGE;
    cfg.n_train = n_train;
    cfg.n_valid = n_valid;
    cfg.weights = weights;
    cfg.n_weights = n_weights;
    int code = open_data(s, r, &cfg, errs);
    free(weights);
    if (code) return code;
    if (data_count_windows(s->data, DATA_VALID) < 1) s->eval_batches = 0;
    s->trainer.data = s->data;
    return 0;
}

/* ---- the session ---- */
static int print_resolved(session *s, const recipe *r, err_list *errs) {
    size_t bytes = 0;
    FILE *to = open_memstream(&s->resolved, &bytes);
    if (to) recipe_print_resolved(r, to);
    for (size_t i = 0; to && i < s->memory->n; i++) { /* what ran, for whoever wants to know exactly */
        const loader_found *f = &s->memory->found[i];
        if (!f->desc) continue;
        fprintf(to, "; loaded %s/%s %s from %s, xxh3 %016" PRIx64 "\n", f->desc->kind, f->desc->id, f->desc->version,
                f->path, f->hash);
    }
    if (to && fclose(to) == 0) return 0;
    err_list_add(errs, "out of memory for the resolved recipe");
    return 1;
}

/* What must be the same on all ranks, beside the recipe. */
static int list_loaded(session *s, err_list *errs) {
    size_t bytes = 0;
    FILE *to = open_memstream(&s->loaded, &bytes);
    if (to) fprintf(to, "abi = %s %u\n", MOE_ABI_TAG, MOE_MINOR);
    for (size_t i = 0; to && i < s->memory->n; i++) {
        const loader_found *f = &s->memory->found[i];
        if (f->desc)
            fprintf(to, "%s/%s = %s, file %016" PRIx64 "\n", f->desc->kind, f->desc->id, f->desc->version, f->hash);
    }
    if (to && s->data) fprintf(to, "data = %016" PRIx64 "\n", data_hash(s->data));
    if (to && fclose(to) == 0) return 0;
    err_list_add(errs, "out of memory for the list of plugins");
    return 1;
}

static int wire_session(session *s, recipe *r, loader *l, uint32_t programs, const wire_options *o, err_list *errs) {
    *s = (session){.recipe = s->recipe,
                   .loader = s->loader,
                   .steps = recipe_int(r, "run", "steps"),
                   .log_every = recipe_int(r, "run", "log_every"),
                   .eval_every = recipe_int(r, "run", "eval_every"),
                   .eval_batches = recipe_int(r, "run", "eval_batches"),
                   .trace = recipe_int(r, "run", "trace"),
                   .ckpt_every = recipe_int(r, "checkpoint", "every"),
                   .ckpt_keep = recipe_int(r, "checkpoint", "keep"),
                   .ckpt_keep_every = recipe_int(r, "checkpoint", "keep_every")};
    snprintf(s->name, sizeof s->name, "%s", recipe_string(r, "run", "name"));
    snprintf(s->out, sizeof s->out, "%s", recipe_string(r, "run", "out"));
    size_t n_weights = 0;
    const char *const *weights = recipe_list(r, "model", "weights", &n_weights);
    s->weights = n_weights ? weights[0] : NULL;
    wire_model(&s->trainer.model, r);
    wire_optimizer(&s->trainer, r);
    s->trainer.programs = programs;
    s->trainer.global = recipe_int(r, "batch", "global");
    s->trainer.memory_limit = (uint64_t)recipe_int(r, "memory", "limit");
    s->parts.n_layers = s->trainer.model.layers;
    s->parts.log = plugin_log;
    size_t n = recipe_count_plugins(r);
    s->routers = calloc(s->parts.n_layers + 1, sizeof *s->routers);
    s->memory = calloc(1, sizeof *s->memory + n * sizeof s->memory->sections[0]);
    if (s->memory) s->memory->found = calloc(n + 1, sizeof *s->memory->found);
    if (!s->routers || !s->memory || !s->memory->found) {
        err_list_add(errs, "out of memory for the session");
        return 1;
    }
    s->memory->n = n;
    int code = wire_parts(s, r, l, errs), next;
    code = wire_ranks(s, r, o, code, errs);
    if (!s->ranks) return code; /* the ranks have not met */
    if ((next = wire_mesh(s, r, o, errs)) > code) code = next;
    if (s->trainer.model.experts && s->parts.device.desc)
        if ((next = wire_dispatcher(s, r, l, o, code, errs)) > code) code = next;
    if ((next = check_async(s, r, errs)) > code) code = next;
    if (!code && (programs & (TRAINER_TRAIN | TRAINER_EVAL))) code = wire_data(s, r, errs);
    if (!code) code = list_loaded(s, errs);
    return code ? code : print_resolved(s, r, errs);
}

/* Before a command touches a file. Ranks that are threads have one session. */
static int compare_processes(const session *s, err_list *errs) {
    moe_err err = {.size = sizeof err};
    const moe_bootstrap *b = launch_bootstrap(s->launch);
    moe_status status = compare_texts(b, "plugins and data", s->loaded, &err);
    if (!status) status = compare_texts(b, "recipe", s->resolved, &err);
    if (status) err_list_add(errs, "moehost: %s", err.msg);
    return wire_exit_code(status);
}

int session_open(session *s, const command_args *args, uint32_t programs) {
    *s = (session){0};
    unsigned flags = programs & (TRAINER_TRAIN | TRAINER_EVAL) ? RECIPE_NEED_DATA : 0;
    err_list errs = {0};
    s->recipe = command_recipe(args, flags);
    if (!s->recipe) return EXIT_CODE_USAGE;
    s->loader = command_loader();
    if (!s->loader) return EXIT_CODE_USAGE;
    char *resumed = command_flag(args, "resume") ? fs_join(recipe_string(s->recipe, "run", "out"), "recipe.ini") : NULL;
    const wire_options o = {.command = args->command->name,
                            .alone = (programs & SESSION_ALONE) != 0,
                            .processes = (programs & SESSION_PROCESSES) != 0,
                            .resumed = resumed};
    programs &= ~(uint32_t)(SESSION_ALONE | SESSION_PROCESSES);
    int code = wire_session(s, s->recipe, s->loader, programs, &o, &errs);
    free(resumed);
    if (s->launch) code = launch_gather_errors(s->launch, code, &errs);
    if (s->launch && !code) code = compare_processes(s, &errs);
    if (session_speaks(s)) err_list_print(&errs, stderr);
    err_list_clear(&errs);
    return code;
}

void session_free(session *s) {
    for (size_t i = 0; s->memory && i < s->memory->n; i++) options_free(&s->memory->sections[i]);
    if (s->memory) free(s->memory->found);
    free(s->memory);
    free(s->routers);
    free(s->resolved);
    free(s->loaded);
    launch_close(s->launch);
    data_close(s->data);
    loader_destroy(s->loader);
    recipe_destroy(s->recipe);
    *s = (session){0};
}

moe_status session_trainer(const session *s, const trainer_cfg *cfg, const moe_bootstrap *bootstrap, trainer **out,
                           moe_err *err) {
    parts_cfg with = s->parts;
    with.rank = bootstrap->rank;
    with.world = bootstrap->world;
    with.bootstrap = bootstrap;
    trainer_cfg own = *cfg;
    own.on_stuck = stop_give_up;
    return trainer_create(out, &own, &with, err);
}

moe_status session_run(const session *s, ranks_fn fn, void *arg, moe_err *err) {
    return s->launch ? launch_run(s->launch, fn, arg, err) : ranks_run(s->ranks, fn, arg, err);
}

int session_speaks(const session *s) {
    return launch_speaks(s->launch);
}

int session_keeps(const session *s, uint32_t rank) {
    return rank == 0 || s->launch;
}
