/* Integer element types of token files: width, name, and little-endian loads from any address. */
#ifndef CORE_DATA_ELEMENT_H
#define CORE_DATA_ELEMENT_H
#include <stdint.h>

enum { ELEMENT_U8, ELEMENT_I8, ELEMENT_I16, ELEMENT_U16, ELEMENT_I32, ELEMENT_U32, ELEMENT_I64 };

static inline uint32_t element_bytes(int type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 8};
    return bytes[type];
}

static inline const char *element_name(int type) {
    static const char *const names[] = {"uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"};
    return names[type];
}

/* n <= 8 bytes, the lowest first. */
static inline uint64_t load_le(const uint8_t *at, uint32_t n) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < n; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

static inline int64_t element_load(int type, const uint8_t *at) {
    switch (type) {
        case ELEMENT_U8:
            return at[0];
        case ELEMENT_I8:
            return (int8_t)at[0];
        case ELEMENT_I16:
            return (int16_t)load_le(at, 2);
        case ELEMENT_U16:
            return (int64_t)load_le(at, 2);
        case ELEMENT_I32:
            return (int32_t)load_le(at, 4);
        case ELEMENT_U32:
            return (int64_t)load_le(at, 4);
        default:
            return (int64_t)load_le(at, 8);
    }
}
#endif
