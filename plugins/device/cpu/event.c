/* Events of the CPU device. To record is to note a stream and its position, to wait is to hold another stream until
 * that position has passed: neither costs a command on the recorded stream. All calls come from the issuing thread. */
#include "runtime.h"

moe_status cpu_event_create(void *self, void **out, moe_err *err) {
    cpu_device *dev = self;
    cpu_event *e = calloc(1, sizeof *e);
    if (!e) return moe_fail(err, MOE_E_NOMEM, "device/cpu: event");
    e->next = dev->events;
    if (e->next) e->next->previous = e;
    dev->events = e;
    *out = e;
    return MOE_OK;
}

void cpu_event_destroy(void *self, void *event) {
    cpu_device *dev = self;
    cpu_event *e = event;
    if (!e) return;
    if (e->previous)
        e->previous->next = e->next;
    else
        dev->events = e->next;
    if (e->next) e->next->previous = e->previous;
    free(e);
}

void cpu_event_forget(cpu_device *dev, const cpu_stream *s) {
    for (cpu_event *e = dev->events; e; e = e->next)
        if (e->stream == s) e->stream = NULL;
}

moe_status cpu_event_record(void *self, void *event, void *stream, moe_err *err) {
    (void)self;
    (void)err;
    cpu_event *e = event;
    e->stream = stream;
    e->position = cpu_stream_position(e->stream);
    return MOE_OK;
}

moe_status cpu_event_wait(void *self, void *stream, void *event, moe_err *err) {
    (void)self;
    (void)err;
    cpu_event *e = event;
    if (e->stream) cpu_stream_hold(stream, e->stream, e->position);
    return MOE_OK;
}

moe_status cpu_event_sync(void *self, void *event, moe_err *err) {
    (void)self;
    (void)err;
    cpu_event *e = event;
    if (e->stream) cpu_stream_await(e->stream, e->position);
    return MOE_OK;
}
