/* The vector code of kernels.c for one level of instructions; no include guard, since each level includes it.
 *
 * Set before: LEVEL, its name; TARGET, the attribute of its functions; WIDTH, bytes of a vector. Optional, replaced by
 * plain C:
 *   HAS_NAN(v): not 0 if a lane is NaN; LARGER(a, b), SMALLER(a, b): which of two equal values give b, as on x86;
 *   ODD_FROM(a, b): the odd 16-bit lanes of a, the even ones of b; LESS_TO_ZERO(a, b): a - b of unsigned 16-bit lanes,
 *     or 0;
 *   HALF: a vector of half the width; WIDEN_HALVES(h), NARROW_HALVES(f): conversions of float16, exact but for NaNs;
 *     LOWER(v), UPPER(v): the halves of a vector; PACK(a, b): the lower 16 bits of the 32-bit lanes of both.
 *
 * A chunk is four vectors of float32, and as many elements as they hold. Small elements are not unpacked: a 32-bit word
 * holds two or four of them, and vector j of a word takes element j by shifts and masks.
 */
#define NAME(name) JOIN(name, LEVEL)
#define Word NAME(Word)
#define Signed NAME(Signed)
#define Float NAME(Float)
#define Short NAME(Short)
#define ShortSigned NAME(ShortSigned)
#define Chunk NAME(Chunk)
#define LEVEL_INLINE INLINE TARGET

typedef uint32_t Word __attribute__((vector_size(WIDTH)));
typedef int32_t Signed __attribute__((vector_size(WIDTH)));
typedef float Float __attribute__((vector_size(WIDTH)));
typedef uint16_t Short __attribute__((vector_size(WIDTH)));
typedef int16_t ShortSigned __attribute__((vector_size(WIDTH)));
typedef struct {
    Float a, b, c, d;
} Chunk;

#define CHUNK(dtype) (ITEM(dtype) * WIDTH)
#define AHEAD 512 /* bytes; what is prefetched of every source */

LEVEL_INLINE Word NAME(choose)(Signed mask, Word yes, Word no) { return (yes & (Word)mask) | (no & ~(Word)mask); }

/* Of bits of floats that are not negative, which order as integers do. */
LEVEL_INLINE Word NAME(least_of)(Word a, Word b) {
#ifdef SMALLER
    return (Word)SMALLER((Float)a, (Float)b);
#else
    return NAME(choose)((Signed)a < (Signed)b, a, b);
#endif
}

LEVEL_INLINE Word NAME(most_of)(Word a, Word b) {
#ifdef LARGER
    return (Word)LARGER((Float)a, (Float)b);
#else
    return NAME(choose)((Signed)a > (Signed)b, a, b);
#endif
}

LEVEL_INLINE Float NAME(larger)(Float a, Float b) {
#ifdef LARGER
    return (Float)((Word)LARGER(a, b) & (Word)LARGER(b, a)); /* equal: one value, or zeros of either sign */
#else
    return (Float)(((Word)a & (Word)b) | ((Word)a & (Word)(a > b)) | ((Word)b & (Word)(b > a)));
#endif
}

LEVEL_INLINE Float NAME(smaller)(Float a, Float b) {
#ifdef SMALLER
    return (Float)((Word)SMALLER(a, b) | (Word)SMALLER(b, a));
#else
    return (Float)(((Word)a | (Word)b) & ((Word)a | ~(Word)(a < b)) & ((Word)b | ~(Word)(b < a)));
#endif
}

LEVEL_INLINE int NAME(has_nan)(Float value) {
#ifdef HAS_NAN
    return HAS_NAN(value) != 0;
#else
    const Signed mask = value != value;
    uint64_t words[WIDTH / 8], any = 0;
    memcpy(words, &mask, WIDTH);
    for (int i = 0; i < WIDTH / 8; i++) any |= words[i];
    return any != 0;
#endif
}

/* Return the sum of all parts, which is NaN if a lane of them is, and now and then (infinities) if not. */
LEVEL_INLINE Float NAME(witness)(Chunk chunk) {
    return (chunk.a + chunk.b) + (chunk.c + chunk.d);
}

/* --- formats ----------------------------------------------------------------------------------------------------- */

LEVEL_INLINE Float NAME(widen)(int dtype, Word element) {
    const int mantissa = MANTISSA(dtype), magnitude = EXPONENT(dtype) + mantissa, bias = BIAS(dtype);
    const uint32_t top = (1u << EXPONENT(dtype)) - 1;
    const Word sign = element >> magnitude << 31, body = element & ((1u << magnitude) - 1);
    const Word normal = (body << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23);
    const Float least = (Float)(normal + (1u << 23)) - float_of((uint32_t)(128 - bias) << 23);
    const Signed special = (Signed)body >= (int32_t)(top << mantissa), subnormal = (Signed)body < 1 << mantissa;
    const Word large = normal + ((Word)special & ((uint32_t)(128 + bias) - top) << 23);
    return (Float)(NAME(choose)(subnormal, (Word)least, large) | sign);
}

/* Return the elements without their signs. Adding a power of two whose last place is an element's last place rounds;
 * the sum's lowest bits then count elements from the power of two below, and each exponent has 2^mantissa of them. */
LEVEL_INLINE Word NAME(magnitude)(int dtype, Float value) {
    const int mantissa = MANTISSA(dtype), drop = 23 - mantissa, bias = BIAS(dtype);
    const uint32_t least = (uint32_t)(128 - bias) << 23, infinity = (128u + (uint32_t)bias) << 23;
    const Word body = (Word)value & 0x7FFFFFFF;
    const Word capped = NAME(least_of)(body, (Word){0} + infinity);
    const Word exponent = NAME(most_of)(capped, (Word){0} + least) & 0x7F800000;
    const Word power = exponent + ((uint32_t)drop << 23);
    return (Word)((Float)capped + (Float)power) - power + (exponent >> drop) - (least >> drop);
}

LEVEL_INLINE Word NAME(narrow)(int dtype, Float value) {
    return NAME(magnitude)(dtype, value) | (Word)value >> 31 << (EXPONENT(dtype) + MANTISSA(dtype));
}

/* Return two bfloat16 a word, `low` in its lower half. */
LEVEL_INLINE Word NAME(bfloats)(Float low, Float high) {
    const Word a = (Word)low, b = (Word)high;
#ifdef ODD_FROM /* one more if what is cut off is above a half, or is a half and the last place kept is odd */
    const Short kept = (Short)ODD_FROM(b, a >> 16), cut = (Short)ODD_FROM(b << 16, a);
    return (Word)(kept + ((Short)LESS_TO_ZERO(cut, ~kept & 1) >> 15));
#else
    return (a + 0x7FFF + (a >> 16 & 1)) >> 16 | ((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000);
#endif
}

LEVEL_INLINE Word NAME(word)(const uint8_t *at) {
    Word word;
    memcpy(&word, at, WIDTH);
    return word;
}

LEVEL_INLINE void NAME(put)(Word word, uint8_t *at) { memcpy(at, &word, WIDTH); }

#ifdef HALF
/* Return an 8-bit format in the upper bytes of 16-bit lanes as float16: the value over 2^(15 - bias), if finite. */
LEVEL_INLINE Short NAME(as_halves)(int dtype, Short upper) {
    if (dtype == E5M2) return upper;
    const int shift = 5 - EXPONENT(dtype), infinity = ((1 << EXPONENT(dtype)) - 1) << 10;
    const Short moved = (Short)((ShortSigned)upper >> shift) & (uint16_t)(0x8000 | 0x7F00 >> shift);
    const ShortSigned special = (ShortSigned)(moved & 0x7FFF) >= (int16_t)infinity;
    return moved | ((Short)special & 0x7C00);
}

LEVEL_INLINE Chunk NAME(load_bytes)(int dtype, const uint8_t *at) {
    Short pairs;
    memcpy(&pairs, at, WIDTH);
    const float scale = float_of((uint32_t)(127 + 15 - BIAS(dtype)) << 23);
    const Short even = NAME(as_halves)(dtype, pairs << 8), odd = NAME(as_halves)(dtype, pairs & 0xFF00);
    return (Chunk){(Float)WIDEN_HALVES(LOWER(even)) * scale, (Float)WIDEN_HALVES(UPPER(even)) * scale,
                   (Float)WIDEN_HALVES(LOWER(odd)) * scale, (Float)WIDEN_HALVES(UPPER(odd)) * scale};
}

/* Return the low halves of the lanes of two vectors, in order. */
LEVEL_INLINE Short NAME(packed)(Word lower, Word upper) { return (Short)PACK(lower, upper); }

LEVEL_INLINE Float NAME(widen_half)(const uint8_t *at) {
    HALF half;
    memcpy(&half, at, sizeof half);
    return (Float)WIDEN_HALVES(half);
}

LEVEL_INLINE void NAME(put_half)(Float value, uint8_t *at) {
    const HALF half = NARROW_HALVES(value);
    memcpy(at, &half, sizeof half);
}
#endif

LEVEL_INLINE Chunk NAME(load)(int dtype, const uint8_t *at, int64_t size) {
    uint8_t padded[CHUNK(FP32)];
    if (size < CHUNK(dtype)) {
        memset(padded, 0, (size_t)CHUNK(dtype));
        memcpy(padded, at, (size_t)size);
        at = padded;
    } else {
        for (int line = 0; line < CHUNK(dtype); line += 64) __builtin_prefetch(at + AHEAD + line);
    }
    const Word first = NAME(word)(at);
#ifdef HALF
    if (ITEM(dtype) == 1) return NAME(load_bytes)(dtype, at);
#endif
    if (ITEM(dtype) == 1) {
        const Float a = NAME(widen)(dtype, first & 0xFF), b = NAME(widen)(dtype, first >> 8 & 0xFF);
        const Float c = NAME(widen)(dtype, first >> 16 & 0xFF), d = NAME(widen)(dtype, first >> 24);
        return (Chunk){a, b, c, d};
    }
    const Word second = NAME(word)(at + WIDTH);
    if (dtype == BF16) {
        const Float a = (Float)(first << 16), b = (Float)(first & 0xFFFF0000);
        const Float c = (Float)(second << 16), d = (Float)(second & 0xFFFF0000);
        return (Chunk){a, b, c, d};
    }
    if (dtype == FP16) {
#ifdef HALF
        return (Chunk){NAME(widen_half)(at), NAME(widen_half)(at + WIDTH / 2), NAME(widen_half)(at + WIDTH),
                       NAME(widen_half)(at + WIDTH / 2 * 3)};
#else
        const Float a = NAME(widen)(dtype, first & 0xFFFF), b = NAME(widen)(dtype, first >> 16);
        const Float c = NAME(widen)(dtype, second & 0xFFFF), d = NAME(widen)(dtype, second >> 16);
        return (Chunk){a, b, c, d};
#endif
    }
    return (Chunk){(Float)first, (Float)second, (Float)NAME(word)(at + 2 * WIDTH), (Float)NAME(word)(at + 3 * WIDTH)};
}

LEVEL_INLINE void NAME(store)(int dtype, Chunk chunk, uint8_t *target, int64_t size) {
    uint8_t padded[CHUNK(FP32)], *const at = size < CHUNK(dtype) ? padded : target;
    if (ITEM(dtype) == 1) {
#ifdef HALF
        const Short even = NAME(packed)(NAME(narrow)(dtype, chunk.a), NAME(narrow)(dtype, chunk.b));
        const Short odd = NAME(packed)(NAME(narrow)(dtype, chunk.c), NAME(narrow)(dtype, chunk.d));
        NAME(put)((Word)(even | odd << 8), at);
#else
        const Word ab = NAME(narrow)(dtype, chunk.a) | NAME(narrow)(dtype, chunk.b) << 8;
        const Word cd = NAME(narrow)(dtype, chunk.c) | NAME(narrow)(dtype, chunk.d) << 8;
        NAME(put)(ab | cd << 16, at);
#endif
    } else if (dtype == BF16) {
        NAME(put)(NAME(bfloats)(chunk.a, chunk.b), at);
        NAME(put)(NAME(bfloats)(chunk.c, chunk.d), at + WIDTH);
    } else if (dtype == FP16) {
#ifdef HALF
        NAME(put_half)(chunk.a, at);
        NAME(put_half)(chunk.b, at + WIDTH / 2);
        NAME(put_half)(chunk.c, at + WIDTH);
        NAME(put_half)(chunk.d, at + WIDTH / 2 * 3);
#else
        NAME(put)(NAME(narrow)(dtype, chunk.a) | NAME(narrow)(dtype, chunk.b) << 16, at);
        NAME(put)(NAME(narrow)(dtype, chunk.c) | NAME(narrow)(dtype, chunk.d) << 16, at + WIDTH);
#endif
    } else {
        NAME(put)((Word)chunk.a, at);
        NAME(put)((Word)chunk.b, at + WIDTH);
        NAME(put)((Word)chunk.c, at + 2 * WIDTH);
        NAME(put)((Word)chunk.d, at + 3 * WIDTH);
    }
    if (size < CHUNK(dtype)) memcpy(target, padded, (size_t)size);
}

/* --- folding ----------------------------------------------------------------------------------------------------- */

LEVEL_INLINE Chunk NAME(scaled)(Chunk chunk, float scale) {
    return (Chunk){chunk.a * scale, chunk.b * scale, chunk.c * scale, chunk.d * scale};
}

LEVEL_INLINE Float NAME(pair)(int how, Float left, Float right) {
    return how == MAX ? NAME(larger)(left, right) : how == MIN ? NAME(smaller)(left, right) : left + right;
}

/* Fold one chunk, or the part of one that is left at the end, where absent elements are zeros. `first` and `second` are
 * where the first and, if there is one, the second source begin. */
LEVEL_INLINE void NAME(fold_chunk)(int how, int dtype, uint8_t *target, const uint8_t *memory, const int64_t *source,
                                   int64_t count, int64_t at, int64_t size, const float *scale, const uint8_t *first,
                                   const uint8_t *second) {
    Chunk total = NAME(load)(dtype, first + at, size);
    if (how == FMA) total = NAME(scaled)(total, scale[0]);
    Float doubt = NAME(witness)(total);
    for (int64_t j = 1; j < count; j++) {
        Chunk next = NAME(load)(dtype, (j == 1 ? second : memory + source[j]) + at, size);
        if (how == FMA) next = NAME(scaled)(next, scale[j]);
        if (how == MAX || how == MIN) doubt += NAME(witness)(next);
        total.a = NAME(pair)(how, total.a, next.a);
        total.b = NAME(pair)(how, total.b, next.b);
        total.c = NAME(pair)(how, total.c, next.c);
        total.d = NAME(pair)(how, total.d, next.d);
    }
    if (how == ADD || how == FMA) doubt = NAME(witness)(total); /* a sum with a NaN stays NaN */
    if (__builtin_expect(NAME(has_nan)(doubt), 0))
        exact(how, dtype, target, memory, source, count, at, size, scale);
    else
        NAME(store)(dtype, total, target + at, size);
}

LEVEL_INLINE void NAME(fold)(int how, int dtype, uint8_t *target, const uint8_t *memory, const int64_t *source,
                             int64_t count, int64_t size, const float *scale) {
    const uint8_t *const first = memory + source[0], *const second = memory + source[count > 1];
    const int64_t whole = size - size % CHUNK(dtype);
    if (count == 2) /* the case to be fast in */
        for (int64_t at = 0; at < whole; at += CHUNK(dtype))
            NAME(fold_chunk)(how, dtype, target, memory, source, 2, at, CHUNK(dtype), scale, first, second);
    else
        for (int64_t at = 0; at < whole; at += CHUNK(dtype))
            NAME(fold_chunk)(how, dtype, target, memory, source, count, at, CHUNK(dtype), scale, first, second);
    if (whole < size)
        NAME(fold_chunk)(how, dtype, target, memory, source, count, whole, size - whole, scale, first, second);
}

#define FOLD(how, dtype)                                                                                            \
    static TARGET void NAME(how##_##dtype)(uint8_t * target, const uint8_t *memory, const int64_t *source,          \
                                           int64_t count, int64_t size, const float *scale) {                       \
        NAME(fold)(how, dtype, target, memory, source, count, size, scale);                                         \
    }
#define FOLDS(how) FOLD(how, BF16) FOLD(how, FP16) FOLD(how, FP32) FOLD(how, E3M4) FOLD(how, E4M3) FOLD(how, E5M2)
#define ROW(how)                                                                                                    \
    [how] = {[BF16] = NAME(how##_BF16), [FP16] = NAME(how##_FP16), [FP32] = NAME(how##_FP32),                       \
             [E3M4] = NAME(how##_E3M4), [E4M3] = NAME(how##_E4M3), [E5M2] = NAME(how##_E5M2)}

FOLDS(ADD)
FOLDS(MAX)
FOLDS(MIN)
FOLDS(FMA)

static Fold *const NAME(folds)[HOWS][DTYPES] = {ROW(ADD), ROW(MAX), ROW(MIN), ROW(FMA)};

#undef NAME
#undef Word
#undef Signed
#undef Float
#undef Short
#undef ShortSigned
#undef Chunk
#undef LEVEL_INLINE
#undef CHUNK
#undef AHEAD
#undef FOLD
#undef FOLDS
#undef ROW
#undef LEVEL
#undef TARGET
#undef WIDTH
#undef HAS_NAN
#undef LARGER
#undef SMALLER
#undef ODD_FROM
#undef LESS_TO_ZERO
#undef HALF
#undef WIDEN_HALVES
#undef NARROW_HALVES
#undef LOWER
#undef UPPER
#undef PACK
