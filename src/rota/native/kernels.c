/* The element arithmetic of arithmetic.py in C: many runs of one memory, folded one after another.
 *
 * The numpy code is the definition, this is its fast form; both give the same bits: sources widen to float32 and
 * fold in list order, one rounding (nearest, ties to even) at the write. A product of FMA is rounded before it is
 * added, so this file is compiled with -ffp-contract=off.
 *
 * lanes.h holds the vector code and is included once for each level of instructions. It may assume that no NaN takes
 * part: a chunk in which one might is done again by `exact`, element by element, which also states every NaN rule.
 * Plain C ABI, no Python header, no state: loaded with ctypes by library.py.
 */
#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are little-endian"
#endif
#if FLT_EVAL_METHOD != 0
#error "float32 arithmetic must round to float32"
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

enum { INTERFACE = 1 }; /* library.py expects this number; another means that the library is of another source */
enum How { COPY, ADD, MAX, MIN, FMA, HOWS };
enum Dtype { BF16, FP16, FP32, E3M4, E4M3, E5M2, DTYPES };

/* Bits of the exponent and of the mantissa, and bytes. */
#define EXPONENT(dtype) ((dtype) == E3M4 ? 3 : (dtype) == E4M3 ? 4 : (dtype) == E5M2 || (dtype) == FP16 ? 5 : 8)
#define MANTISSA(dtype) \
    ((dtype) == E3M4 ? 4 : (dtype) == E4M3 ? 3 : (dtype) == E5M2 ? 2 : (dtype) == FP16 ? 10 : (dtype) == BF16 ? 7 : 23)
#define ITEM(dtype) ((1 + EXPONENT(dtype) + MANTISSA(dtype)) / 8)
#define BIAS(dtype) ((1 << (EXPONENT(dtype) - 1)) - 1)

typedef void Fold(uint8_t *target, const uint8_t *memory, const int64_t *source, int64_t count, int64_t size,
                  const float *scale);

/* --- one element, NaNs included ---------------------------------------------------------------------------------- */

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static int is_nan(uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

/* Values stay bits here, so that no load or move can quiet a NaN. */
static uint32_t widen(int dtype, const uint8_t *at) {
    const int mantissa = MANTISSA(dtype), magnitude = EXPONENT(dtype) + mantissa, bias = BIAS(dtype);
    uint32_t element = 0;
    memcpy(&element, at, (size_t)ITEM(dtype));
    if (dtype == FP32 || dtype == BF16) return dtype == FP32 ? element : element << 16;
    const uint32_t sign = element >> magnitude << 31, body = element & ((1u << magnitude) - 1);
    const uint32_t infinity = ((1u << EXPONENT(dtype)) - 1) << mantissa;
    if (body > infinity) return sign | (dtype == FP16 ? 0x7F800000 | (body & 0x3FF) << 13 : 0x7FC00000);
    if (body == infinity) return sign | 0x7F800000;
    if (body >> mantissa) return sign | ((body << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23));
    return sign | bits_of((float)body * float_of((uint32_t)(128 - bias - mantissa) << 23));
}

static void narrow(int dtype, uint32_t value, uint8_t *at) {
    const int mantissa = MANTISSA(dtype), drop = 23 - mantissa, bias = BIAS(dtype);
    const uint32_t sign = value >> 31 << (EXPONENT(dtype) + mantissa), body = value & 0x7FFFFFFF;
    const uint32_t infinity = ((1u << EXPONENT(dtype)) - 1) << mantissa, over = 128 + (uint32_t)bias;
    uint32_t element;
    if (dtype == FP32) {
        element = body;
    } else if (is_nan(value)) { /* float16 keeps its payload, the others have one NaN */
        element = infinity | (dtype == FP16 ? body >> drop & 0x3FF : 1u << (mantissa - 1));
    } else if (body >= over << 23) {
        element = infinity;
    } else if (dtype != BF16 && body >> 23 < (uint32_t)(128 - bias)) { /* subnormal: a float32 sum rounds to its unit */
        const uint32_t unit = (uint32_t)(151 - bias - mantissa) << 23;
        element = bits_of(float_of(body) + float_of(unit)) - unit;
    } else {
        const uint32_t half = (1u << (drop - 1)) - 1 + (body >> drop & 1);
        element = (body + half - ((uint32_t)(127 - bias) << 23)) >> drop;
    }
    element |= sign;
    memcpy(at, &element, (size_t)ITEM(dtype));
}

/* A NaN keeps its bits; zero times infinity, or a NaN scale, is the one NaN of this arithmetic. */
static uint32_t product(uint32_t value, float scale) {
    const uint32_t result = bits_of(float_of(value) * scale);
    return !is_nan(result) ? result : is_nan(value) ? value : 0x7FC00000;
}

static uint32_t combine(int how, uint32_t left, uint32_t right) {
    if (is_nan(left) || is_nan(right)) return is_nan(left) ? left : right;
    const float a = float_of(left), b = float_of(right);
    if (how == MAX) return a > b ? left : b > a ? right : left & right; /* equal: one value, or zeros of either sign */
    if (how == MIN) return a < b ? left : b < a ? right : left | right;
    const uint32_t sum = bits_of(a + b);
    return is_nan(sum) ? 0x7FC00000 : sum;
}

static __attribute__((noinline, cold)) void exact(int how, int dtype, uint8_t *target, const uint8_t *memory,
                                                  const int64_t *source, int64_t count, int64_t at, int64_t size,
                                                  const float *scale) {
    for (const int64_t end = at + size; at < end; at += ITEM(dtype)) {
        uint32_t total = widen(dtype, memory + source[0] + at);
        if (how == FMA) total = product(total, scale[0]);
        for (int64_t j = 1; j < count; j++) {
            uint32_t value = widen(dtype, memory + source[j] + at);
            if (how == FMA) value = product(value, scale[j]);
            total = combine(how, total, value);
        }
        narrow(dtype, total, target + at);
    }
}

/* --- levels of instructions -------------------------------------------------------------------------------------- */

#define JOIN_(name, level) name##_##level
#define JOIN(name, level) JOIN_(name, level)

#if defined(__x86_64__)
#include <immintrin.h>

#define LEVEL plain
#define TARGET
#define WIDTH 16
#define HAS_NAN(v) _mm_movemask_ps(_mm_cmpunord_ps(v, v))
#define LARGER(a, b) _mm_max_ps(a, b)
#define SMALLER(a, b) _mm_min_ps(a, b)
#include "lanes.h"

#define LEVEL v3
#define TARGET __attribute__((target("avx2,f16c")))
#define WIDTH 32
#define HAS_NAN(v) _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q))
#define LARGER(a, b) _mm256_max_ps(a, b)
#define SMALLER(a, b) _mm256_min_ps(a, b)
#define ODD_FROM(a, b) _mm256_blend_epi16((__m256i)(b), (__m256i)(a), 0xAA)
#define LESS_TO_ZERO(a, b) _mm256_subs_epu16((__m256i)(a), (__m256i)(b))
#define HALF __m128i
#define WIDEN_HALVES(h) _mm256_cvtph_ps(h)
#define NARROW_HALVES(f) _mm256_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT)
#define LOWER(v) _mm256_castsi256_si128((__m256i)(v))
#define UPPER(v) _mm256_extracti128_si256((__m256i)(v), 1)
#define PACK(a, b) _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)(a), (__m256i)(b)), 0xD8)
#include "lanes.h"

#define LEVEL v4
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#define WIDTH 64
#define HAS_NAN(v) _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q)
#define LARGER(a, b) _mm512_max_ps(a, b)
#define SMALLER(a, b) _mm512_min_ps(a, b)
#define ODD_FROM(a, b) _mm512_mask_blend_epi16(0xAAAAAAAA, (__m512i)(b), (__m512i)(a))
#define LESS_TO_ZERO(a, b) _mm512_subs_epu16((__m512i)(a), (__m512i)(b))
#define HALF __m256i
#define WIDEN_HALVES(h) _mm512_cvtph_ps(h)
#define NARROW_HALVES(f) _mm512_cvtps_ph(f, _MM_FROUND_TO_NEAREST_INT)
#define LOWER(v) _mm512_castsi512_si256((__m512i)(v))
#define UPPER(v) _mm512_extracti64x4_epi64((__m512i)(v), 1)
#define PACK(a, b)                                                                                                  \
    _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16((__m512i)(a))),                                 \
                       _mm512_cvtepi32_epi16((__m512i)(b)), 1)
#include "lanes.h"

static Fold *const (*const LEVELS[])[DTYPES] = {folds_plain, folds_v3, folds_v4};

/* Return the highest level this processor runs: 0 plain, 1 x86-64-v3, 2 x86-64-v4. */
EXPORT int32_t rota_level(void) {
    /* No processor with AVX2 lacks F16C, for which not every compiler has a name. */
    if (!__builtin_cpu_supports("avx2")) return 0;
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? 2 : 1;
}

#else

#define LEVEL plain
#define TARGET
#define WIDTH 16
#include "lanes.h"

static Fold *const (*const LEVELS[])[DTYPES] = {folds_plain};

EXPORT int32_t rota_level(void) { return 0; }

#endif

/* --- what library.py calls --------------------------------------------------------------------------------------- */

EXPORT int32_t rota_interface(void) { return INTERFACE; }

/* Return the first run that leaves the memory, has no source or a part of an element, or -1. */
EXPORT int64_t rota_bad_run(int64_t memory_size, int64_t item, int64_t entries, int64_t n, const int64_t *target,
                            const int64_t *source_ptr, const int64_t *source, const int64_t *size) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t last = memory_size - size[i], first = source_ptr[i], end = source_ptr[i + 1];
        if (size[i] < 0 || size[i] % item || target[i] < 0 || target[i] > last) return i;
        if (first < 0 || end <= first || end > entries) return i;
        for (int64_t j = first; j < end; j++)
            if (source[j] < 0 || source[j] > last) return i;
    }
    return -1;
}

/* Run i folds the size[i] bytes at memory + source[j], j from source_ptr[i] to before source_ptr[i + 1], in that order,
 * and writes memory + target[i]. A target may be one of its sources; it must not overlap one in part, unless `how` is
 * COPY. `scale` is of FMA, parallel to `source`; NULL stands for ones. `level` is at most rota_level(). */
EXPORT void rota_fold_runs_at(int32_t level, uint8_t *memory, int64_t n, const int64_t *target,
                              const int64_t *source_ptr, const int64_t *source, const int64_t *size, int32_t how,
                              int32_t dtype, const float *scale) {
    if (how == COPY) {
        for (int64_t i = 0; i < n; i++) memmove(memory + target[i], memory + source[source_ptr[i]], (size_t)size[i]);
        return;
    }
    Fold *const fold = LEVELS[level][how == FMA && !scale ? ADD : how][dtype];
    for (int64_t i = 0; i < n; i++) {
        const int64_t first = source_ptr[i], count = source_ptr[i + 1] - first;
        fold(memory + target[i], memory, source + first, count, size[i], scale ? scale + first : NULL);
    }
}

EXPORT void rota_fold_runs(uint8_t *memory, int64_t n, const int64_t *target, const int64_t *source_ptr,
                           const int64_t *source, const int64_t *size, int32_t how, int32_t dtype, const float *scale) {
    rota_fold_runs_at(rota_level(), memory, n, target, source_ptr, source, size, how, dtype, scale);
}
