//! Sixteen rows in one vector of AVX-512 or two of AVX2.

use std::arch::x86_64::*;

use super::{Format, Group, HALVES, LANES, QUAD, ROWS, Vectors, all_panels, four};

#[target_feature(enable = "avx2,fma,f16c,avx512bw,avx512vnni")]
pub(super) fn vnni(format: Format, y: &mut [[f32; ROWS]], w: &[u8], x: &[Group], m: usize) {
    all_panels::<Vnni>(format, y, w, x, m);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn avx2(format: Format, y: &mut [[f32; ROWS]], w: &[u8], x: &[Group], m: usize) {
    all_panels::<Avx2>(format, y, w, x, m);
}

// SAFETY of all below: only the functions above use the two types, and they are called where these instructions
// were found. What is loaded and stored is as long as its type says, at any alignment.
struct Vnni;
struct Avx2;

#[inline(always)]
fn sixteen(bytes: &[u8; ROWS]) -> __m128i {
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

impl Vectors for Vnni {
    type Codes = __m512i;
    type Sums = __m512i;
    type Floats = __m512;
    const PASS: usize = 8;

    #[inline(always)]
    fn codes(bytes: &[u8; LANES]) -> __m512i {
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn bits(codes: __m512i, shift: usize, mask: u8, place: usize) -> __m512i {
        // One 16-bit shift serves both bytes; the bits from the other byte are masked.
        unsafe {
            let mask = _mm512_set1_epi8((u16::from(mask) << place) as i8);
            let right = _mm_cvtsi32_si128(shift.saturating_sub(place) as i32);
            let left = _mm_cvtsi32_si128(place.saturating_sub(shift) as i32);
            _mm512_and_si512(_mm512_sll_epi16(_mm512_srl_epi16(codes, right), left), mask)
        }
    }

    #[inline(always)]
    fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn look_up(codes: __m512i, table: &[u8; 16]) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen(table)), codes) }
    }

    #[inline(always)]
    fn no_sums() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(sums: __m512i, codes: __m512i, x: [i8; QUAD]) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four(x))) }
    }

    #[inline(always)]
    fn floats(sums: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(sums) }
    }

    #[inline(always)]
    fn halves(bytes: &[u8; HALVES]) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    fn unsigned(bytes: &[u8; ROWS]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(sixteen(bytes))) }
    }

    #[inline(always)]
    fn signed(bytes: &[u8; ROWS]) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen(bytes))) }
    }

    #[inline(always)]
    fn all(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn times(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fused(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn store(x: __m512, to: &mut [f32; ROWS]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
}

/// Sixteen rows in two vectors.
impl Vectors for Avx2 {
    type Codes = [__m256i; 2];
    type Sums = [__m256i; 2];
    type Floats = [__m256; 2];
    const PASS: usize = 4;

    #[inline(always)]
    fn codes(bytes: &[u8; LANES]) -> [__m256i; 2] {
        let [low, high] = halves::<LANES, 32>(bytes);
        unsafe { [_mm256_loadu_si256(low.as_ptr().cast()), _mm256_loadu_si256(high.as_ptr().cast())] }
    }

    #[inline(always)]
    fn bits(codes: [__m256i; 2], shift: usize, mask: u8, place: usize) -> [__m256i; 2] {
        unsafe {
            let mask = _mm256_set1_epi8((u16::from(mask) << place) as i8);
            let right = _mm_cvtsi32_si128(shift.saturating_sub(place) as i32);
            let left = _mm_cvtsi32_si128(place.saturating_sub(shift) as i32);
            let low = _mm256_sll_epi16(_mm256_srl_epi16(codes[0], right), left);
            let high = _mm256_sll_epi16(_mm256_srl_epi16(codes[1], right), left);
            [_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)]
        }
    }

    #[inline(always)]
    fn or(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn look_up(codes: [__m256i; 2], table: &[u8; 16]) -> [__m256i; 2] {
        unsafe {
            let table = _mm256_broadcastsi128_si256(sixteen(table));
            [_mm256_shuffle_epi8(table, codes[0]), _mm256_shuffle_epi8(table, codes[1])]
        }
    }

    #[inline(always)]
    fn no_sums() -> [__m256i; 2] {
        [unsafe { _mm256_setzero_si256() }; 2]
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(sums: [__m256i; 2], codes: [__m256i; 2], x: [i8; QUAD]) -> [__m256i; 2] {
        unsafe {
            let x = _mm256_set1_epi32(four(x));
            let low = if WIDE { wide(codes[0], x) } else { narrow(codes[0], x) };
            let high = if WIDE { wide(codes[1], x) } else { narrow(codes[1], x) };
            [_mm256_add_epi32(sums[0], low), _mm256_add_epi32(sums[1], high)]
        }
    }

    #[inline(always)]
    fn floats(sums: [__m256i; 2]) -> [__m256; 2] {
        unsafe { [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])] }
    }

    #[inline(always)]
    fn halves(bytes: &[u8; HALVES]) -> [__m256; 2] {
        let [low, high] = halves(bytes);
        unsafe { [_mm256_cvtph_ps(sixteen(low)), _mm256_cvtph_ps(sixteen(high))] }
    }

    #[inline(always)]
    fn unsigned(bytes: &[u8; ROWS]) -> [__m256; 2] {
        unsafe {
            let (low, high) = (sixteen(bytes), _mm_srli_si128::<8>(sixteen(bytes)));
            Avx2::floats([_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high)])
        }
    }

    #[inline(always)]
    fn signed(bytes: &[u8; ROWS]) -> [__m256; 2] {
        unsafe {
            let (low, high) = (sixteen(bytes), _mm_srli_si128::<8>(sixteen(bytes)));
            Avx2::floats([_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high)])
        }
    }

    #[inline(always)]
    fn all(x: f32) -> [__m256; 2] {
        [unsafe { _mm256_set1_ps(x) }; 2]
    }

    #[inline(always)]
    fn times(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fused(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn store(x: [__m256; 2], to: &mut [f32; ROWS]) {
        let to = to.as_chunks_mut::<8>().0;
        unsafe {
            _mm256_storeu_ps(to[0].as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to[1].as_mut_ptr(), x[1]);
        }
    }
}

/// Both halves of `bytes`.
#[inline(always)]
fn halves<const N: usize, const HALF: usize>(bytes: &[u8; N]) -> [&[u8; HALF]; 2] {
    let halves = bytes.as_chunks::<HALF>().0;
    [&halves[0], &halves[1]]
}

/// Sums of four products each. Two products fit 16 bits if codes are at most 127.
#[inline(always)]
fn narrow(codes: __m256i, x: __m256i) -> __m256i {
    unsafe { _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)) }
}

/// The same for any codes: even and odd ones in 16 bits each.
#[inline(always)]
fn wide(codes: __m256i, x: __m256i) -> __m256i {
    unsafe {
        let even = _mm256_and_si256(codes, _mm256_set1_epi16(255));
        let odd = _mm256_srli_epi16::<8>(codes);
        let even_x = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let odd_x = _mm256_srai_epi16::<8>(x);
        _mm256_add_epi32(_mm256_madd_epi16(even, even_x), _mm256_madd_epi16(odd, odd_x))
    }
}
