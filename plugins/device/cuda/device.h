/* Inside device/cuda: the functions of its table that are not operations. The contract of each is in <moe/device.h>. */
#ifndef DEVICE_CUDA_DEVICE_H
#define DEVICE_CUDA_DEVICE_H
#include "cuda.h"

/* memory.c */
moe_status cuda_alloc(void *self, int32_t space, uint64_t bytes, void **out, moe_err *err);
void cuda_free(void *self, int32_t space, void *ptr, uint64_t bytes);
moe_status cuda_copy(void *self, void *stream, void *dst, const void *src, uint64_t bytes, moe_err *err);
moe_status cuda_fill(void *self, void *stream, void *dst, uint8_t byte, uint64_t bytes, moe_err *err);

/* stream.c */
moe_status cuda_stream_create(void *self, const char *name, void **out, moe_err *err);
void cuda_stream_destroy(void *self, void *stream);
moe_status cuda_stream_sync(void *self, void *stream, moe_err *err);
moe_status cuda_event_create(void *self, void **out, moe_err *err);
void cuda_event_destroy(void *self, void *event);
moe_status cuda_event_record(void *self, void *event, void *stream, moe_err *err);
moe_status cuda_event_wait(void *self, void *stream, void *event, moe_err *err);
moe_status cuda_event_sync(void *self, void *event, moe_err *err);
moe_status cuda_call_host(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err);
#endif
