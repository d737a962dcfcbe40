/*
 * graph/data/element.c: the types of elements in safetensors files. In memory floats become float32
 * and integers int64.
 *
 * Narrower types keep their values; float64 is rounded to nearest. Files are little-endian,
 * whatever the machine is.
 */
#include <string.h>

#include "graph/data/element.h"

static uint16_t little16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t little32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t little64(const unsigned char *p)
{
    return little32(p) | (uint64_t)little32(p + 4) << 32;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE binary16. Exponent 0 stands for multiples of 2^-24 (subnormal numbers and zero). */
static float half_of(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31,
             fraction = bits & 1023;
    if (exponent == 0)
        return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    return float_of(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

#define DECODE(name, type, bytes, value)                                                           \
    static void decode_##name(const unsigned char *from, size_t count, void *to)                   \
    {                                                                                              \
        type *out = to;                                                                            \
        for (size_t k = 0; k < count; k++) {                                                       \
            const unsigned char *p = from + (bytes)*k;                                             \
            out[k] = (value);                                                                      \
        }                                                                                          \
    }
DECODE(f32, float, 4, float_of(little32(p)))
DECODE(f64, float, 8, (float)double_of(little64(p)))
DECODE(f16, float, 2, half_of(little16(p)))
DECODE(bf16, float, 2, float_of((uint32_t)little16(p) << 16))
DECODE(i64, int64_t, 8, (int64_t)little64(p))
DECODE(i32, int64_t, 4, (int32_t)little32(p))
DECODE(i16, int64_t, 2, (int16_t)little16(p))
DECODE(i8, int64_t, 1, (int8_t)*p)
DECODE(u32, int64_t, 4, little32(p))
DECODE(u16, int64_t, 2, little16(p))
DECODE(u8, int64_t, 1, *p)
DECODE(bool, int64_t, 1, *p != 0)

static const gpp__element elements[] = {
    {"F32", 4, GPP_F32, decode_f32},   {"I64", 8, GPP_I64, decode_i64},
    {"F64", 8, GPP_F32, decode_f64},   {"F16", 2, GPP_F32, decode_f16},
    {"BF16", 2, GPP_F32, decode_bf16}, {"I32", 4, GPP_I64, decode_i32},
    {"I16", 2, GPP_I64, decode_i16},   {"I8", 1, GPP_I64, decode_i8},
    {"U32", 4, GPP_I64, decode_u32},   {"U16", 2, GPP_I64, decode_u16},
    {"U8", 1, GPP_I64, decode_u8},     {"BOOL", 1, GPP_I64, decode_bool},
};

const gpp__element *gpp__element_find(const char *name)
{
    for (size_t k = 0; k < sizeof elements / sizeof *elements; k++)
        if (!strcmp(elements[k].name, name))
            return &elements[k];
    return NULL;
}
