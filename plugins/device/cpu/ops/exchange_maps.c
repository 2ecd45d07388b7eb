/* moe.exchange_maps/0: places of rows in what an all-to-all takes and gives. The parts are plan.h's. */
#include "../../common/plan.h"
#include "args.h"

static const char op[] = MOE_OP_EXCHANGE_MAPS;
enum { MAP_SLOTS = 1 << 13 };

typedef struct maps_call {
    plan_group g;
    int64_t me, ep, slot;
    const int32_t *ids;                                   /* [T,k] */
    const int64_t *slot_row, *kept, *first, *offsets;     /* [T,k], [M,E], [M,E], [G+1] */
    int64_t *parts, *runs;                                /* [MOE_PARTS,M], [2,2] */
    int64_t *sent_slot, *landed_row, *row_from, *slot_at; /* [A], [B], [N], [T,k*etp] */
    int64_t *out_before, *in_before, *to, *from;          /* [E], [M,G], [ep_size], [M]: workspace */
    int64_t slots, places_sent, places_landed, rows;      /* T*k, A, B, N */
} maps_call;

static moe_status sizes(void *dev, const moe_op_args *a, uint64_t *saved, uint64_t *workspace, moe_err *err) {
    (void)dev;
    const moe_status s = op_check_exchange_maps(a, err);
    if (s != MOE_OK) return s;
    const uint64_t m = (uint64_t)a->in[2].shape[0], e = (uint64_t)a->in[2].shape[1];
    const uint64_t ep_size = ((const moe_exchange_maps_attr *)a->attr)->ep_size;
    *saved = 0;
    *workspace = 8 * (e + m * (e / ep_size) + ep_size + m);
    return MOE_OK;
}

/* Everything that is indexed below lies within the maps. */
static moe_status check_places(const maps_call *c, moe_err *err) {
    const struct {
        const char *what, *where;
        int64_t is, most;
    } all[] = {{"rows to send", "sent_slot", c->runs[1], c->places_sent},
               {"rows to come", "landed_row", c->runs[3], c->places_landed},
               {"rows in expert order", "row_from", c->offsets[c->g.groups], c->rows}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].is > all[i].most)
            return moe_fail(err, MOE_E_DATA, "%s: %lld %s, %s has %lld", op, (long long)all[i].is, all[i].what,
                            all[i].where, (long long)all[i].most);
    for (int64_t m = 0; m < c->g.members && c->slot; m++) {
        const int64_t part = c->from[m] > c->to[m / c->g.etp] ? c->from[m] : c->to[m / c->g.etp];
        if (part > c->slot)
            return moe_fail(err, MOE_E_DATA, "%s: %lld rows to or from member %lld, slot is %lld", op, (long long)part,
                            (long long)m, (long long)c->slot);
    }
    for (int64_t i = 0; i < c->g.members * c->g.experts; i++) {
        const int64_t g = i % c->g.experts - c->ep * c->g.groups;
        if (c->kept[i] < 0 || c->first[i] < 0 ||
            (g >= 0 && g < c->g.groups && c->first[i] + c->kept[i] > c->offsets[g + 1]))
            return moe_fail(err, MOE_E_DATA, "%s: member %lld, expert %lld: %lld rows from %lld on", op,
                            (long long)(i / c->g.experts), (long long)(i % c->g.experts), (long long)c->kept[i],
                            (long long)c->first[i]);
    }
    return MOE_OK;
}

/* The rows that have come from member m. */
static void map_member(void *arg, int64_t m, cpu_worker *w) {
    const maps_call *c = arg;
    const int64_t land = c->parts[MOE_PART_LANDED_AT * c->g.members + m];
    const int64_t come = c->parts[MOE_PART_IN_AT * c->g.members + m];
    (void)w;
    for (int64_t g = 0; g < c->g.groups; g++) {
        const int64_t at = m * c->g.experts + c->ep * c->g.groups + g, before = c->in_before[m * c->g.groups + g];
        for (int64_t j = 0; j < c->kept[at]; j++) {
            c->landed_row[land + before + j] = c->first[at] + j;
            c->row_from[c->first[at] + j] = come + before + j;
        }
    }
    for (int64_t j = c->from[m]; j < c->slot; j++) c->landed_row[land + j] = -1;
}

/* The last member's rows end where padding begins. */
static void map_padding(const maps_call *c) {
    const int64_t last = (c->g.members - 1) * c->g.experts + c->ep * c->g.groups;
    for (int64_t g = 0; g < c->g.groups; g++)
        for (int64_t row = c->first[last + g] + c->kept[last + g]; row < c->offsets[g + 1]; row++)
            c->row_from[row] = -1;
    for (int64_t ep = 0; ep < c->g.ep_size; ep++)
        for (int64_t j = c->to[ep]; j < c->slot; j++) c->sent_slot[ep * c->slot + j] = -1;
}

static void map_slots(void *arg, int64_t piece, cpu_worker *w) {
    const maps_call *c = arg;
    const int64_t etp = c->g.etp, *first = c->first + c->me * c->g.experts; /* [E] */
    const int64_t *out = c->parts + MOE_PART_OUT_AT * c->g.members,
                  *back = c->parts + MOE_PART_RETURN_AT * c->g.members;
    (void)w;
    for (int64_t i = piece * MAP_SLOTS; i < cpu_min(c->slots, (piece + 1) * MAP_SLOTS); i++) {
        const int64_t e = c->ids[i], m = c->slot_row[i] < 0 ? 0 : e / c->g.groups * etp;
        const int64_t j = c->slot_row[i] < 0 ? -1 : c->out_before[e] + c->slot_row[i] - first[e];
        if (j >= 0) c->sent_slot[out[m] + j] = i;
        for (int64_t f = 0; f < etp; f++) c->slot_at[i * etp + f] = j < 0 ? -1 : back[m + f] + j;
    }
}

/* A slot with a row has an expert, and one of its rows. */
static moe_status check_slots(const maps_call *c, moe_err *err) {
    const int64_t *first = c->first + c->me * c->g.experts, *kept = c->kept + c->me * c->g.experts;
    for (int64_t i = 0; i < c->slots; i++) {
        const int64_t e = c->ids[i], row = c->slot_row[i];
        if (row >= 0 && (e < 0 || e >= c->g.experts || row < first[e] || row - first[e] >= kept[e]))
            return moe_fail(err, MOE_E_DATA, "%s: slot %lld of expert %lld has row %lld", op, (long long)i,
                            (long long)e, (long long)row);
    }
    return MOE_OK;
}

static maps_call call_of(const moe_op_args *a) {
    const moe_exchange_maps_attr *at = a->attr;
    maps_call c = {.g = plan_group_of(a->in[2].shape[0], a->in[2].shape[1], at->ep_size),
                   .me = at->me,
                   .ep = at->me / at->etp_size,
                   .slot = at->slot,
                   .ids = a->in[0].data,
                   .slot_row = a->in[1].data,
                   .kept = a->in[2].data,
                   .first = a->in[3].data,
                   .offsets = a->in[4].data,
                   .parts = a->out[0].data,
                   .runs = a->out[1].data,
                   .sent_slot = a->out[2].data,
                   .landed_row = a->out[3].data,
                   .row_from = a->out[4].data,
                   .slot_at = a->out[5].data,
                   .out_before = a->workspace,
                   .slots = op_elements(&a->in[0]),
                   .places_sent = a->out[2].shape[0],
                   .places_landed = a->out[3].shape[0],
                   .rows = a->out[4].shape[0]};
    c.in_before = c.out_before + c.g.experts;
    c.to = c.in_before + c.g.members * c.g.groups;
    c.from = c.to + c.g.ep_size;
    return c;
}

/* Reported, and then nothing moves; 0: to be returned. */
static int reports(const maps_call *c, const moe_op_args *a) {
    if (!cpu_reports(a, MOE_E_DATA, -1, 0)) return 0;
    memset(a->out[0].data, 0, (size_t)op_elements(&a->out[0]) * sizeof *c->parts);
    c->runs[1] = c->slot ? c->g.ep_size * c->slot : 0;
    c->runs[3] = c->slot ? c->g.members * c->slot : 0;
    for (int i = 2; i < 6; i++) memset(a->out[i].data, 0xff, (size_t)op_elements(&a->out[i]) * sizeof *c->parts);
    return 1;
}

static moe_status forward(void *dev, const moe_op_args *a, moe_err *err) {
    maps_call c = call_of(a);
    const int64_t groups = c.g.groups;
    for (int64_t ep = 0; ep < c.g.ep_size; ep++)
        c.to[ep] = plan_before(c.kept + c.me * c.g.experts + ep * groups, groups, c.out_before + ep * groups);
    for (int64_t m = 0; m < c.g.members; m++)
        c.from[m] = plan_before(c.kept + m * c.g.experts + c.ep * groups, groups, c.in_before + m * groups);
    plan_parts(&c.g, c.me, c.slot, c.to, c.from, c.parts, c.runs);
    moe_status s = check_places(&c, err);
    if (s == MOE_OK) s = check_slots(&c, err);
    if (s != MOE_OK) return reports(&c, a) ? MOE_OK : s;
    map_padding(&c);
    cpu_run(dev, c.g.members, map_member, &c);
    cpu_run(dev, cpu_blocks(c.slots, MAP_SLOTS), map_slots, &c);
    return MOE_OK;
}

const moe_op CPU_OP(exchange_maps) = {sizeof(moe_op), 0, op, sizes, forward, NULL};
