/* Streams and events are the runtime's own: a stream of the ABI is a cudaStream_t, an event a cudaEvent_t. */
#include "device.h"

/* Lanes other than compute carry what others wait for, so their kernels go first. */
moe_status cuda_stream_create(void *self, const char *name, void **out, moe_err *err) {
    int least = 0, greatest = 0;
    cudaStream_t s = NULL;
    (void)self;
    moe_status status =
        cuda_status(cudaDeviceGetStreamPriorityRange(&least, &greatest), "device/cuda: priorities of streams", err);
    if (status != MOE_OK) return status;
    const int priority = strcmp(name, "compute") == 0 ? least : greatest;
    status = cuda_status(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, priority), "device/cuda: stream", err);
    if (status == MOE_OK) *out = s;
    return status;
}

void cuda_stream_destroy(void *self, void *stream) {
    (void)self;
    if (!stream) return;
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
}

moe_status cuda_stream_sync(void *self, void *stream, moe_err *err) {
    (void)self;
    return cuda_status(cudaStreamSynchronize(stream), "device/cuda: work of a stream", err);
}

moe_status cuda_event_create(void *self, void **out, moe_err *err) {
    cudaEvent_t e = NULL;
    (void)self;
    const moe_status s = cuda_status(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "device/cuda: event", err);
    if (s == MOE_OK) *out = e;
    return s;
}

void cuda_event_destroy(void *self, void *event) {
    (void)self;
    if (event) cudaEventDestroy(event);
}

moe_status cuda_event_record(void *self, void *event, void *stream, moe_err *err) {
    (void)self;
    return cuda_status(cudaEventRecord(event, stream), "device/cuda: record of an event", err);
}

moe_status cuda_event_wait(void *self, void *stream, void *event, moe_err *err) {
    (void)self;
    return cuda_status(cudaStreamWaitEvent(stream, event, 0), "device/cuda: wait for an event", err);
}

moe_status cuda_event_sync(void *self, void *event, moe_err *err) {
    (void)self;
    return cuda_status(cudaEventSynchronize(event), "device/cuda: work before an event", err);
}

moe_status cuda_call_host(void *self, void *stream, moe_host_fn fn, void *arg, moe_err *err) {
    (void)self;
    return cuda_status(cudaLaunchHostFunc(stream, fn, arg), "device/cuda: call of the host", err);
}
