/* See cross_args.h. */
#include "cross_args.h"

cross_input cross_slots(const disp *d, const moe_tensor *ids, int64_t *rows, uint32_t *places) {
    const int64_t slots = ids->shape[0] * d->top_k;
    const int32_t *id = ids->data;
    for (int64_t i = 0; i < slots; i++) {
        rows[i] = id[i] < 0 ? -1 : 0;
        places[i] = id[i] < 0 ? 0 : (uint32_t)id[i] / d->groups;
    }
    return (cross_input){.tokens = ids->shape[0], .k = d->top_k, .rows = rows, .places = places};
}

void cross_call_of(const moe_move_args *args, cross_call *call) {
    *call = (cross_call){.stream = args->stream, .rows = args->rows, .n_planes = args->n_planes};
    for (uint32_t i = 0; i < args->n_planes; i++) {
        const moe_tensor *x = &args->planes[i].token_order, *y = &args->planes[i].expert_order;
        call->planes[i] = (cross_plane){.tokens = {.rows = x->data},
                                        .experts = y->data,
                                        .width = disp_width_bytes(x),
                                        .narrow = x->dtype == MOE_BF16};
    }
    if (!disp_present(args->slot_scalar)) return;
    call->scalars = args->slot_scalar->data;
    call->row_scalar = args->row_scalar->data;
}

int64_t cross_width(const moe_move_args *args) {
    int64_t width = 0;
    for (uint32_t i = 0; i < args->n_planes; i++) width += disp_width_bytes(&args->planes[i].token_order);
    return width;
}
