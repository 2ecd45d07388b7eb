/* The layout of every struct of the ABI on machines with 64-bit pointers, as numbers: members in order, offset and size
 * in bytes. A change here is a change of the binary contract - appending at the end of a struct that begins with size
 * is allowed, everything else is not. X-list: SIZE(struct, bytes), then AT(struct, member, offset, bytes) for each. */
#ifndef TESTS_ABI_LAYOUT_TABLE_H
#define TESTS_ABI_LAYOUT_TABLE_H

/* clang-format off */
#define LAYOUT_TABLE(SIZE, AT) \
    SIZE(moe_err, 512) \
    AT(moe_err, size, 0, 4) \
    AT(moe_err, code, 4, 4) \
    AT(moe_err, msg, 8, 504) \
    SIZE(moe_tensor, 48) \
    AT(moe_tensor, data, 0, 8) \
    AT(moe_tensor, dtype, 8, 4) \
    AT(moe_tensor, ndim, 12, 4) \
    AT(moe_tensor, shape, 16, 32) \
    SIZE(moe_rows, 56) \
    AT(moe_rows, size, 0, 4) \
    AT(moe_rows, groups, 4, 4) \
    AT(moe_rows, max, 8, 8) \
    AT(moe_rows, dev_offsets, 16, 8) \
    AT(moe_rows, dev_counts, 24, 8) \
    AT(moe_rows, host_total, 32, 8) \
    AT(moe_rows, host_offsets, 40, 8) \
    AT(moe_rows, host_counts, 48, 8) \
    SIZE(moe_option, 32) \
    AT(moe_option, key, 0, 8) \
    AT(moe_option, type, 8, 8) \
    AT(moe_option, dflt, 16, 8) \
    AT(moe_option, help, 24, 8) \
    SIZE(moe_kv, 16) \
    AT(moe_kv, key, 0, 8) \
    AT(moe_kv, value, 8, 8) \
    SIZE(moe_host, 32) \
    AT(moe_host, size, 0, 4) \
    AT(moe_host, minor, 4, 4) \
    AT(moe_host, ctx, 8, 8) \
    AT(moe_host, log, 16, 8) \
    AT(moe_host, service, 24, 8) \
    SIZE(moe_bootstrap, 32) \
    AT(moe_bootstrap, size, 0, 4) \
    AT(moe_bootstrap, rank, 4, 4) \
    AT(moe_bootstrap, world, 8, 4) \
    AT(moe_bootstrap, local, 12, 4) \
    AT(moe_bootstrap, ctx, 16, 8) \
    AT(moe_bootstrap, all_gather, 24, 8) \
    SIZE(moe_desc, 88) \
    AT(moe_desc, size, 0, 4) \
    AT(moe_desc, kind_major, 4, 4) \
    AT(moe_desc, kind, 8, 8) \
    AT(moe_desc, id, 16, 8) \
    AT(moe_desc, device, 24, 8) \
    AT(moe_desc, version, 32, 8) \
    AT(moe_desc, vendor, 40, 8) \
    AT(moe_desc, license, 48, 8) \
    AT(moe_desc, summary, 56, 8) \
    AT(moe_desc, options, 64, 8) \
    AT(moe_desc, n_options, 72, 4) \
    AT(moe_desc, flags, 76, 4) \
    AT(moe_desc, vtable, 80, 8) \
    SIZE(moe_entry, 40) \
    AT(moe_entry, magic, 0, 4) \
    AT(moe_entry, size, 4, 4) \
    AT(moe_entry, minor, 8, 4) \
    AT(moe_entry, min_host_minor, 12, 4) \
    AT(moe_entry, pointer_bits, 16, 4) \
    AT(moe_entry, n_descs, 20, 4) \
    AT(moe_entry, abi_tag, 24, 8) \
    AT(moe_entry, descs, 32, 8) \
    SIZE(moe_comm_cfg, 32) \
    AT(moe_comm_cfg, size, 0, 4) \
    AT(moe_comm_cfg, rank, 4, 4) \
    AT(moe_comm_cfg, world, 8, 4) \
    AT(moe_comm_cfg, reserved, 12, 4) \
    AT(moe_comm_cfg, kv, 16, 8) \
    AT(moe_comm_cfg, n_kv, 24, 8) \
    SIZE(moe_comm_v0, 160) \
    AT(moe_comm_v0, size, 0, 4) \
    AT(moe_comm_v0, launch, 4, 4) \
    AT(moe_comm_v0, topology, 8, 8) \
    AT(moe_comm_v0, create, 16, 8) \
    AT(moe_comm_v0, destroy, 24, 8) \
    AT(moe_comm_v0, group_split, 32, 8) \
    AT(moe_comm_v0, group_destroy, 40, 8) \
    AT(moe_comm_v0, group_info, 48, 8) \
    AT(moe_comm_v0, all_reduce, 56, 8) \
    AT(moe_comm_v0, all_gather, 64, 8) \
    AT(moe_comm_v0, reduce_scatter, 72, 8) \
    AT(moe_comm_v0, broadcast, 80, 8) \
    AT(moe_comm_v0, all_to_all_v, 88, 8) \
    AT(moe_comm_v0, barrier, 96, 8) \
    AT(moe_comm_v0, p2p, 104, 8) \
    AT(moe_comm_v0, window_create, 112, 8) \
    AT(moe_comm_v0, window_destroy, 120, 8) \
    AT(moe_comm_v0, abort, 128, 8) \
    AT(moe_comm_v0, poll, 136, 8) \
    AT(moe_comm_v0, waiting, 144, 8) \
    AT(moe_comm_v0, extension, 152, 8) \
    SIZE(moe_a2a_args, 56) \
    AT(moe_a2a_args, size, 0, 4) \
    AT(moe_a2a_args, reserved, 4, 4) \
    AT(moe_a2a_args, in, 8, 8) \
    AT(moe_a2a_args, out, 16, 8) \
    AT(moe_a2a_args, in_at, 24, 8) \
    AT(moe_a2a_args, in_bytes, 32, 8) \
    AT(moe_a2a_args, out_at, 40, 8) \
    AT(moe_a2a_args, out_bytes, 48, 8) \
    SIZE(moe_p2p_op, 32) \
    AT(moe_p2p_op, buf, 0, 8) \
    AT(moe_p2p_op, bytes, 8, 8) \
    AT(moe_p2p_op, peer, 16, 4) \
    AT(moe_p2p_op, tag, 20, 4) \
    AT(moe_p2p_op, receive, 24, 4) \
    AT(moe_p2p_op, reserved, 28, 4) \
    SIZE(moe_window, 32) \
    AT(moe_window, size, 0, 4) \
    AT(moe_window, n, 4, 4) \
    AT(moe_window, bytes, 8, 8) \
    AT(moe_window, peers, 16, 8) \
    AT(moe_window, self, 24, 8) \
    SIZE(moe_comm_service, 24) \
    AT(moe_comm_service, size, 0, 4) \
    AT(moe_comm_service, reserved, 4, 4) \
    AT(moe_comm_service, table, 8, 8) \
    AT(moe_comm_service, self, 16, 8) \
    SIZE(moe_device_cfg, 32) \
    AT(moe_device_cfg, size, 0, 4) \
    AT(moe_device_cfg, index, 4, 4) \
    AT(moe_device_cfg, rank, 8, 4) \
    AT(moe_device_cfg, world, 12, 4) \
    AT(moe_device_cfg, kv, 16, 8) \
    AT(moe_device_cfg, n_kv, 24, 8) \
    SIZE(moe_device_info, 128) \
    AT(moe_device_info, size, 0, 4) \
    AT(moe_device_info, compute_units, 4, 4) \
    AT(moe_device_info, memory_total, 8, 8) \
    AT(moe_device_info, alignment, 16, 8) \
    AT(moe_device_info, own_memory, 24, 8) \
    AT(moe_device_info, name, 32, 96) \
    SIZE(moe_fault, 32) \
    AT(moe_fault, code, 0, 8) \
    AT(moe_fault, token, 8, 8) \
    AT(moe_fault, value, 16, 8) \
    AT(moe_fault, layer, 24, 8) \
    SIZE(moe_capture, 40) \
    AT(moe_capture, size, 0, 4) \
    AT(moe_capture, reserved, 4, 4) \
    AT(moe_capture, begin, 8, 8) \
    AT(moe_capture, end, 16, 8) \
    AT(moe_capture, launch, 24, 8) \
    AT(moe_capture, destroy, 32, 8) \
    SIZE(moe_op_args, 80) \
    AT(moe_op_args, size, 0, 4) \
    AT(moe_op_args, n_in, 4, 4) \
    AT(moe_op_args, n_out, 8, 4) \
    AT(moe_op_args, reserved, 12, 4) \
    AT(moe_op_args, stream, 16, 8) \
    AT(moe_op_args, in, 24, 8) \
    AT(moe_op_args, out, 32, 8) \
    AT(moe_op_args, attr, 40, 8) \
    AT(moe_op_args, rows, 48, 8) \
    AT(moe_op_args, saved, 56, 8) \
    AT(moe_op_args, workspace, 64, 8) \
    AT(moe_op_args, fault, 72, 8) \
    SIZE(moe_op, 40) \
    AT(moe_op, size, 0, 4) \
    AT(moe_op, reserved, 4, 4) \
    AT(moe_op, name, 8, 8) \
    AT(moe_op, sizes, 16, 8) \
    AT(moe_op, forward, 24, 8) \
    AT(moe_op, backward, 32, 8) \
    SIZE(moe_device_v0, 152) \
    AT(moe_device_v0, size, 0, 4) \
    AT(moe_device_v0, n_ops, 4, 4) \
    AT(moe_device_v0, ops, 8, 8) \
    AT(moe_device_v0, create, 16, 8) \
    AT(moe_device_v0, destroy, 24, 8) \
    AT(moe_device_v0, info, 32, 8) \
    AT(moe_device_v0, alloc, 40, 8) \
    AT(moe_device_v0, free, 48, 8) \
    AT(moe_device_v0, copy, 56, 8) \
    AT(moe_device_v0, fill, 64, 8) \
    AT(moe_device_v0, stream_create, 72, 8) \
    AT(moe_device_v0, stream_destroy, 80, 8) \
    AT(moe_device_v0, event_create, 88, 8) \
    AT(moe_device_v0, event_destroy, 96, 8) \
    AT(moe_device_v0, event_record, 104, 8) \
    AT(moe_device_v0, event_wait, 112, 8) \
    AT(moe_device_v0, event_sync, 120, 8) \
    AT(moe_device_v0, stream_sync, 128, 8) \
    AT(moe_device_v0, call_host, 136, 8) \
    AT(moe_device_v0, extension, 144, 8) \
    SIZE(moe_device_service, 24) \
    AT(moe_device_service, size, 0, 4) \
    AT(moe_device_service, flags, 4, 4) \
    AT(moe_device_service, table, 8, 8) \
    AT(moe_device_service, self, 16, 8) \
    SIZE(moe_parallel, 24) \
    AT(moe_parallel, size, 0, 4) \
    AT(moe_parallel, threads, 4, 4) \
    AT(moe_parallel, run, 8, 8) \
    AT(moe_parallel, self, 16, 8) \
    SIZE(moe_dispatcher_cfg, 128) \
    AT(moe_dispatcher_cfg, size, 0, 4) \
    AT(moe_dispatcher_cfg, layer, 4, 4) \
    AT(moe_dispatcher_cfg, top_k, 8, 4) \
    AT(moe_dispatcher_cfg, n_experts, 12, 4) \
    AT(moe_dispatcher_cfg, ep_rank, 16, 4) \
    AT(moe_dispatcher_cfg, ep_size, 20, 4) \
    AT(moe_dispatcher_cfg, etp_rank, 24, 4) \
    AT(moe_dispatcher_cfg, etp_size, 28, 4) \
    AT(moe_dispatcher_cfg, hidden, 32, 8) \
    AT(moe_dispatcher_cfg, max_tokens, 40, 8) \
    AT(moe_dispatcher_cfg, row_align, 48, 8) \
    AT(moe_dispatcher_cfg, min_rows, 56, 8) \
    AT(moe_dispatcher_cfg, recv_rows, 64, 8) \
    AT(moe_dispatcher_cfg, overflow, 72, 4) \
    AT(moe_dispatcher_cfg, node_size, 76, 4) \
    AT(moe_dispatcher_cfg, group, 80, 8) \
    AT(moe_dispatcher_cfg, layout_group, 88, 8) \
    AT(moe_dispatcher_cfg, first_rank, 96, 4) \
    AT(moe_dispatcher_cfg, host_counts, 100, 4) \
    AT(moe_dispatcher_cfg, kv, 104, 8) \
    AT(moe_dispatcher_cfg, n_kv, 112, 8) \
    AT(moe_dispatcher_cfg, shared, 120, 8) \
    SIZE(moe_dispatcher_needs, 56) \
    AT(moe_dispatcher_needs, size, 0, 4) \
    AT(moe_dispatcher_needs, dispatch_phases, 4, 4) \
    AT(moe_dispatcher_needs, combine_phases, 8, 4) \
    AT(moe_dispatcher_needs, groups, 12, 4) \
    AT(moe_dispatcher_needs, handle, 16, 8) \
    AT(moe_dispatcher_needs, workspace, 24, 8) \
    AT(moe_dispatcher_needs, max_rows, 32, 8) \
    AT(moe_dispatcher_needs, own_memory, 40, 8) \
    AT(moe_dispatcher_needs, host_handle, 48, 8) \
    SIZE(moe_layout_args, 96) \
    AT(moe_layout_args, size, 0, 4) \
    AT(moe_layout_args, reserved, 4, 4) \
    AT(moe_layout_args, stream, 8, 8) \
    AT(moe_layout_args, expert_ids, 16, 8) \
    AT(moe_layout_args, handle, 24, 8) \
    AT(moe_layout_args, workspace, 32, 8) \
    AT(moe_layout_args, rows, 40, 8) \
    AT(moe_layout_args, offsets, 48, 8) \
    AT(moe_layout_args, counts, 56, 8) \
    AT(moe_layout_args, fault, 64, 8) \
    AT(moe_layout_args, host_handle, 72, 8) \
    AT(moe_layout_args, host_offsets, 80, 8) \
    AT(moe_layout_args, host_counts, 88, 8) \
    SIZE(moe_plane, 96) \
    AT(moe_plane, token_order, 0, 48) \
    AT(moe_plane, expert_order, 48, 48) \
    SIZE(moe_move_args, 96) \
    AT(moe_move_args, size, 0, 4) \
    AT(moe_move_args, n_planes, 4, 4) \
    AT(moe_move_args, direction, 8, 4) \
    AT(moe_move_args, reserved, 12, 4) \
    AT(moe_move_args, stream, 16, 8) \
    AT(moe_move_args, handle, 24, 8) \
    AT(moe_move_args, workspace, 32, 8) \
    AT(moe_move_args, planes, 40, 8) \
    AT(moe_move_args, rows, 48, 8) \
    AT(moe_move_args, slot_scalar, 56, 8) \
    AT(moe_move_args, row_scalar, 64, 8) \
    AT(moe_move_args, sent, 72, 8) \
    AT(moe_move_args, sent_far, 80, 8) \
    AT(moe_move_args, host_handle, 88, 8) \
    SIZE(moe_dispatcher_v0, 72) \
    AT(moe_dispatcher_v0, size, 0, 4) \
    AT(moe_dispatcher_v0, reserved, 4, 4) \
    AT(moe_dispatcher_v0, create, 8, 8) \
    AT(moe_dispatcher_v0, destroy, 16, 8) \
    AT(moe_dispatcher_v0, needs, 24, 8) \
    AT(moe_dispatcher_v0, layout, 32, 8) \
    AT(moe_dispatcher_v0, pack, 40, 8) \
    AT(moe_dispatcher_v0, exchange, 48, 8) \
    AT(moe_dispatcher_v0, unpack, 56, 8) \
    AT(moe_dispatcher_v0, extension, 64, 8) \
    SIZE(moe_rmsnorm_attr, 8) \
    AT(moe_rmsnorm_attr, size, 0, 4) \
    AT(moe_rmsnorm_attr, eps, 4, 4) \
    SIZE(moe_attention_attr, 64) \
    AT(moe_attention_attr, size, 0, 4) \
    AT(moe_attention_attr, heads, 4, 4) \
    AT(moe_attention_attr, kv_heads, 8, 4) \
    AT(moe_attention_attr, head_dim, 12, 4) \
    AT(moe_attention_attr, batch, 16, 8) \
    AT(moe_attention_attr, seq, 24, 8) \
    AT(moe_attention_attr, scale, 32, 4) \
    AT(moe_attention_attr, v_dim, 36, 4) \
    AT(moe_attention_attr, window, 40, 8) \
    AT(moe_attention_attr, rotary_dim, 48, 4) \
    AT(moe_attention_attr, rotary_first, 52, 4) \
    AT(moe_attention_attr, interleaved, 56, 4) \
    AT(moe_attention_attr, amplitude, 60, 4) \
    SIZE(moe_head_norm_attr, 32) \
    AT(moe_head_norm_attr, size, 0, 4) \
    AT(moe_head_norm_attr, eps, 4, 4) \
    AT(moe_head_norm_attr, first, 8, 8) \
    AT(moe_head_norm_attr, segments, 16, 8) \
    AT(moe_head_norm_attr, width, 24, 8) \
    SIZE(moe_mla_pack_attr, 24) \
    AT(moe_mla_pack_attr, size, 0, 4) \
    AT(moe_mla_pack_attr, heads, 4, 4) \
    AT(moe_mla_pack_attr, nope, 8, 4) \
    AT(moe_mla_pack_attr, rope, 12, 4) \
    AT(moe_mla_pack_attr, v_dim, 16, 4) \
    AT(moe_mla_pack_attr, reserved, 20, 4) \
    SIZE(moe_linear_attr, 16) \
    AT(moe_linear_attr, size, 0, 4) \
    AT(moe_linear_attr, role, 4, 4) \
    AT(moe_linear_attr, accumulate, 8, 4) \
    AT(moe_linear_attr, reserved, 12, 4) \
    SIZE(moe_swiglu_attr, 12) \
    AT(moe_swiglu_attr, size, 0, 4) \
    AT(moe_swiglu_attr, alpha, 4, 4) \
    AT(moe_swiglu_attr, limit, 8, 4) \
    SIZE(moe_jitter_attr, 32) \
    AT(moe_jitter_attr, size, 0, 4) \
    AT(moe_jitter_attr, eps, 4, 4) \
    AT(moe_jitter_attr, key, 8, 8) \
    AT(moe_jitter_attr, first_token, 16, 8) \
    AT(moe_jitter_attr, step, 24, 8) \
    SIZE(moe_expert_rows_attr, 32) \
    AT(moe_expert_rows_attr, size, 0, 4) \
    AT(moe_expert_rows_attr, first, 4, 4) \
    AT(moe_expert_rows_attr, groups, 8, 4) \
    AT(moe_expert_rows_attr, n_experts, 12, 4) \
    AT(moe_expert_rows_attr, align, 16, 8) \
    AT(moe_expert_rows_attr, min_rows, 24, 8) \
    SIZE(moe_capacity_attr, 32) \
    AT(moe_capacity_attr, size, 0, 4) \
    AT(moe_capacity_attr, n_experts, 4, 4) \
    AT(moe_capacity_attr, drop, 8, 4) \
    AT(moe_capacity_attr, reserved, 12, 4) \
    AT(moe_capacity_attr, capacity, 16, 8) \
    AT(moe_capacity_attr, scope, 24, 8) \
    SIZE(moe_permute_attr, 8) \
    AT(moe_permute_attr, size, 0, 4) \
    AT(moe_permute_attr, k, 4, 4) \
    SIZE(moe_clip_attr, 8) \
    AT(moe_clip_attr, size, 0, 4) \
    AT(moe_clip_attr, max_norm, 4, 4) \
    SIZE(moe_copy_attr, 8) \
    AT(moe_copy_attr, size, 0, 4) \
    AT(moe_copy_attr, streaming, 4, 4) \
    SIZE(moe_vocabulary_attr, 24) \
    AT(moe_vocabulary_attr, size, 0, 4) \
    AT(moe_vocabulary_attr, reserved, 4, 4) \
    AT(moe_vocabulary_attr, first, 8, 8) \
    AT(moe_vocabulary_attr, whole, 16, 8) \
    SIZE(moe_fma_attr, 16) \
    AT(moe_fma_attr, size, 0, 4) \
    AT(moe_fma_attr, rounds, 4, 4) \
    AT(moe_fma_attr, factor, 8, 4) \
    AT(moe_fma_attr, term, 12, 4) \
    SIZE(moe_adamw_attr, 20) \
    AT(moe_adamw_attr, size, 0, 4) \
    AT(moe_adamw_attr, beta1, 4, 4) \
    AT(moe_adamw_attr, beta2, 8, 4) \
    AT(moe_adamw_attr, eps, 12, 4) \
    AT(moe_adamw_attr, weight_decay, 16, 4) \
    SIZE(moe_precision_cfg, 24) \
    AT(moe_precision_cfg, size, 0, 4) \
    AT(moe_precision_cfg, reserved, 4, 4) \
    AT(moe_precision_cfg, kv, 8, 8) \
    AT(moe_precision_cfg, n_kv, 16, 8) \
    SIZE(moe_precision_needs, 24) \
    AT(moe_precision_needs, size, 0, 4) \
    AT(moe_precision_needs, act_dtype, 4, 4) \
    AT(moe_precision_needs, weight_dtype, 8, 4) \
    AT(moe_precision_needs, takes_filled, 12, 4) \
    AT(moe_precision_needs, row_align, 16, 8) \
    SIZE(moe_linear_args, 72) \
    AT(moe_linear_args, size, 0, 4) \
    AT(moe_linear_args, role, 4, 4) \
    AT(moe_linear_args, accumulate, 8, 4) \
    AT(moe_linear_args, reserved, 12, 4) \
    AT(moe_linear_args, stream, 16, 8) \
    AT(moe_linear_args, a, 24, 8) \
    AT(moe_linear_args, b, 32, 8) \
    AT(moe_linear_args, out, 40, 8) \
    AT(moe_linear_args, rows, 48, 8) \
    AT(moe_linear_args, workspace, 56, 8) \
    AT(moe_linear_args, filled, 64, 8) \
    SIZE(moe_precision_v0, 56) \
    AT(moe_precision_v0, size, 0, 4) \
    AT(moe_precision_v0, reserved, 4, 4) \
    AT(moe_precision_v0, create, 8, 8) \
    AT(moe_precision_v0, destroy, 16, 8) \
    AT(moe_precision_v0, needs, 24, 8) \
    AT(moe_precision_v0, sizes, 32, 8) \
    AT(moe_precision_v0, linear, 40, 8) \
    AT(moe_precision_v0, extension, 48, 8) \
    SIZE(moe_random_key, 8) \
    AT(moe_random_key, k0, 0, 4) \
    AT(moe_random_key, k1, 4, 4) \
    SIZE(moe_random_block, 16) \
    AT(moe_random_block, v, 0, 16) \
    SIZE(moe_router_cfg, 64) \
    AT(moe_router_cfg, size, 0, 4) \
    AT(moe_router_cfg, layer, 4, 4) \
    AT(moe_router_cfg, n_layers, 8, 4) \
    AT(moe_router_cfg, top_k, 12, 4) \
    AT(moe_router_cfg, n_experts, 16, 4) \
    AT(moe_router_cfg, n_identity, 20, 4) \
    AT(moe_router_cfg, hidden, 24, 8) \
    AT(moe_router_cfg, max_tokens, 32, 8) \
    AT(moe_router_cfg, kv, 40, 8) \
    AT(moe_router_cfg, n_kv, 48, 8) \
    AT(moe_router_cfg, seed, 56, 8) \
    SIZE(moe_param_spec, 56) \
    AT(moe_param_spec, name, 0, 8) \
    AT(moe_param_spec, init, 8, 8) \
    AT(moe_param_spec, ndim, 16, 4) \
    AT(moe_param_spec, dtype, 20, 4) \
    AT(moe_param_spec, shape, 24, 32) \
    SIZE(moe_router_needs, 72) \
    AT(moe_router_needs, size, 0, 4) \
    AT(moe_router_needs, inputs, 4, 4) \
    AT(moe_router_needs, workspace, 8, 8) \
    AT(moe_router_needs, saved, 16, 8) \
    AT(moe_router_needs, params, 24, 8) \
    AT(moe_router_needs, state, 32, 8) \
    AT(moe_router_needs, n_params, 40, 4) \
    AT(moe_router_needs, n_state, 44, 4) \
    AT(moe_router_needs, losses, 48, 8) \
    AT(moe_router_needs, n_losses, 56, 4) \
    AT(moe_router_needs, scope, 60, 4) \
    AT(moe_router_needs, loss_scope, 64, 4) \
    AT(moe_router_needs, input_jitter, 68, 4) \
    SIZE(moe_route_args, 200) \
    AT(moe_route_args, size, 0, 4) \
    AT(moe_route_args, flags, 4, 4) \
    AT(moe_route_args, stream, 8, 8) \
    AT(moe_route_args, step, 16, 8) \
    AT(moe_route_args, microbatch, 24, 8) \
    AT(moe_route_args, first_token, 32, 8) \
    AT(moe_route_args, seq_len, 40, 8) \
    AT(moe_route_args, logits, 48, 8) \
    AT(moe_route_args, hidden, 56, 8) \
    AT(moe_route_args, token_ids, 64, 8) \
    AT(moe_route_args, mask, 72, 8) \
    AT(moe_route_args, params, 80, 8) \
    AT(moe_route_args, state, 88, 8) \
    AT(moe_route_args, expert_ids, 96, 8) \
    AT(moe_route_args, weights, 104, 8) \
    AT(moe_route_args, counts, 112, 8) \
    AT(moe_route_args, losses, 120, 8) \
    AT(moe_route_args, saved, 128, 8) \
    AT(moe_route_args, workspace, 136, 8) \
    AT(moe_route_args, divisor, 144, 8) \
    AT(moe_route_args, d_weights, 152, 8) \
    AT(moe_route_args, d_logits, 160, 8) \
    AT(moe_route_args, d_hidden, 168, 8) \
    AT(moe_route_args, d_params, 176, 8) \
    AT(moe_route_args, batch_counts, 184, 8) \
    AT(moe_route_args, fault, 192, 8) \
    SIZE(moe_end_step_args, 48) \
    AT(moe_end_step_args, size, 0, 4) \
    AT(moe_end_step_args, reserved, 4, 4) \
    AT(moe_end_step_args, stream, 8, 8) \
    AT(moe_end_step_args, step, 16, 8) \
    AT(moe_end_step_args, state, 24, 8) \
    AT(moe_end_step_args, counts, 32, 8) \
    AT(moe_end_step_args, update, 40, 8) \
    SIZE(moe_router_v0, 64) \
    AT(moe_router_v0, size, 0, 4) \
    AT(moe_router_v0, reserved, 4, 4) \
    AT(moe_router_v0, create, 8, 8) \
    AT(moe_router_v0, destroy, 16, 8) \
    AT(moe_router_v0, needs, 24, 8) \
    AT(moe_router_v0, route, 32, 8) \
    AT(moe_router_v0, route_bwd, 40, 8) \
    AT(moe_router_v0, end_step, 48, 8) \
    AT(moe_router_v0, extension, 56, 8) \
    SIZE(moe_shape_in, 32) \
    AT(moe_shape_in, size, 0, 4) \
    AT(moe_shape_in, n_layers, 4, 4) \
    AT(moe_shape_in, n_microbatches, 8, 4) \
    AT(moe_shape_in, pp, 12, 4) \
    AT(moe_shape_in, grad_bytes, 16, 8) \
    AT(moe_shape_in, memory_limit, 24, 8) \
    SIZE(moe_shape_out, 16) \
    AT(moe_shape_out, size, 0, 4) \
    AT(moe_shape_out, pieces_fwd, 4, 4) \
    AT(moe_shape_out, pieces_bwd, 8, 4) \
    AT(moe_shape_out, n_buckets, 12, 4) \
    SIZE(moe_sched_node, 40) \
    AT(moe_sched_node, name, 0, 8) \
    AT(moe_sched_node, layer, 8, 4) \
    AT(moe_sched_node, microbatch, 12, 4) \
    AT(moe_sched_node, phase, 16, 4) \
    AT(moe_sched_node, lane, 20, 4) \
    AT(moe_sched_node, group, 24, 4) \
    AT(moe_sched_node, deferrable, 28, 4) \
    AT(moe_sched_node, cost, 32, 8) \
    SIZE(moe_sched_buffer, 16) \
    AT(moe_sched_buffer, bytes, 0, 8) \
    AT(moe_sched_buffer, fixed, 8, 4) \
    AT(moe_sched_buffer, reserved, 12, 4) \
    SIZE(moe_sched_view, 64) \
    AT(moe_sched_view, size, 0, 4) \
    AT(moe_sched_view, n_nodes, 4, 4) \
    AT(moe_sched_view, n_buffers, 8, 4) \
    AT(moe_sched_view, reserved, 12, 4) \
    AT(moe_sched_view, nodes, 16, 8) \
    AT(moe_sched_view, buffers, 24, 8) \
    AT(moe_sched_view, pred_start, 32, 8) \
    AT(moe_sched_view, pred, 40, 8) \
    AT(moe_sched_view, use_start, 48, 8) \
    AT(moe_sched_view, use, 56, 8) \
    SIZE(moe_scheduler_cfg, 32) \
    AT(moe_scheduler_cfg, size, 0, 4) \
    AT(moe_scheduler_cfg, reserved, 4, 4) \
    AT(moe_scheduler_cfg, kv, 8, 8) \
    AT(moe_scheduler_cfg, n_kv, 16, 8) \
    AT(moe_scheduler_cfg, seed, 24, 8) \
    SIZE(moe_scheduler_v0, 48) \
    AT(moe_scheduler_v0, size, 0, 4) \
    AT(moe_scheduler_v0, reserved, 4, 4) \
    AT(moe_scheduler_v0, create, 8, 8) \
    AT(moe_scheduler_v0, destroy, 16, 8) \
    AT(moe_scheduler_v0, shape, 24, 8) \
    AT(moe_scheduler_v0, order, 32, 8) \
    AT(moe_scheduler_v0, extension, 40, 8)
/* clang-format on */

#endif
