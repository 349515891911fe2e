//! Sixteen rows in four NEON vectors. Results equal those of AVX2 and AVX-512 bit for bit: sums of integers are exact,
//! and floats are multiplied and added in the same order.

use std::arch::{aarch64::*, asm};

use super::{Format, Group, HALVES, LANES, QUAD, ROWS, Vectors, all_panels, four};

#[target_feature(enable = "neon,dotprod")]
pub(super) fn dotprod(format: Format, y: &mut [[f32; ROWS]], w: &[u8], x: &[Group], m: usize) {
    all_panels::<Neon<true>>(format, y, w, x, m);
}

#[target_feature(enable = "neon")]
pub(super) fn neon(format: Format, y: &mut [[f32; ROWS]], w: &[u8], x: &[Group], m: usize) {
    all_panels::<Neon<false>>(format, y, w, x, m);
}

/// `DOTPROD`: with the instruction that adds four products to a sum.
// SAFETY of all below: only the functions above use the type, and they are called where these instructions were
// found. What is loaded and stored is as long as its type says, at any alignment.
struct Neon<const DOTPROD: bool>;

impl<const DOTPROD: bool> Vectors for Neon<DOTPROD> {
    type Codes = [uint8x16_t; 4];
    /// The last vector, the same for all rows, is subtracted: both kinds of `sum_of_four` read codes as signed.
    type Sums = [int32x4_t; 5];
    type Floats = [float32x4_t; 4];
    const PASS: usize = 4;

    #[inline(always)]
    fn codes(bytes: &[u8; LANES]) -> [uint8x16_t; 4] {
        let bytes = bytes.as_chunks().0;
        [sixteen(&bytes[0]), sixteen(&bytes[1]), sixteen(&bytes[2]), sixteen(&bytes[3])]
    }

    #[inline(always)]
    fn bits(mut codes: [uint8x16_t; 4], shift: usize, mask: u8, place: usize) -> [uint8x16_t; 4] {
        let (left, mask) = (place as i8 - shift as i8, mask << place);
        let remain = if left < 0 { u8::MAX >> -left } else { u8::MAX << left };
        for codes in &mut codes {
            unsafe {
                if left != 0 {
                    *codes = vshlq_u8(*codes, vdupq_n_s8(left));
                }
                if mask != remain {
                    *codes = vandq_u8(*codes, vdupq_n_u8(mask));
                }
            }
        }
        codes
    }

    #[inline(always)]
    fn or(mut a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        for (a, b) in a.iter_mut().zip(b) {
            *a = unsafe { vorrq_u8(*a, b) };
        }
        a
    }

    #[inline(always)]
    fn look_up(mut codes: [uint8x16_t; 4], table: &[u8; 16]) -> [uint8x16_t; 4] {
        for codes in &mut codes {
            *codes = unsafe { vqtbl1q_u8(sixteen(table), *codes) };
        }
        codes
    }

    #[inline(always)]
    fn no_sums() -> [int32x4_t; 5] {
        [unsafe { vdupq_n_s32(0) }; 5]
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(
        mut sums: [int32x4_t; 5],
        codes: [uint8x16_t; 4],
        x: [i8; QUAD],
    ) -> [int32x4_t; 5] {
        unsafe {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(four(x)));
            for (sum, mut codes) in sums.iter_mut().zip(codes) {
                if WIDE {
                    codes = veorq_u8(codes, vdupq_n_u8(0x80));
                }
                *sum = sum_of_four::<DOTPROD>(*sum, vreinterpretq_s8_u8(codes), x);
            }
            if WIDE {
                sums[4] = sum_of_four::<DOTPROD>(sums[4], vdupq_n_s8(-0x80), x);
            }
        }
        sums
    }

    #[inline(always)]
    fn floats([a, b, c, d, off]: [int32x4_t; 5]) -> [float32x4_t; 4] {
        [float(a, off), float(b, off), float(c, off), float(d, off)]
    }

    #[inline(always)]
    fn halves(bytes: &[u8; HALVES]) -> [float32x4_t; 4] {
        let halves = bytes.as_chunks::<8>().0;
        [wider(&halves[0]), wider(&halves[1]), wider(&halves[2]), wider(&halves[3])]
    }

    #[inline(always)]
    fn unsigned(bytes: &[u8; ROWS]) -> [float32x4_t; 4] {
        unsafe {
            let bytes = sixteen(bytes);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    fn signed(bytes: &[u8; ROWS]) -> [float32x4_t; 4] {
        unsafe {
            let bytes = vreinterpretq_s8_u8(sixteen(bytes));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        }
    }

    #[inline(always)]
    fn all(x: f32) -> [float32x4_t; 4] {
        [unsafe { vdupq_n_f32(x) }; 4]
    }

    #[inline(always)]
    fn times(mut a: [float32x4_t; 4], b: [float32x4_t; 4]) -> [float32x4_t; 4] {
        for (a, b) in a.iter_mut().zip(b) {
            *a = unsafe { vmulq_f32(*a, b) };
        }
        a
    }

    #[inline(always)]
    fn fused(a: [float32x4_t; 4], b: [float32x4_t; 4], mut c: [float32x4_t; 4]) -> [float32x4_t; 4] {
        for (c, (a, b)) in c.iter_mut().zip(a.into_iter().zip(b)) {
            *c = unsafe { vfmaq_f32(*c, a, b) };
        }
        c
    }

    #[inline(always)]
    fn store(x: [float32x4_t; 4], to: &mut [f32; ROWS]) {
        for (x, to) in x.into_iter().zip(to.as_chunks_mut::<4>().0) {
            unsafe { vst1q_f32(to.as_mut_ptr(), x) }
        }
    }
}

#[inline(always)]
fn sixteen(bytes: &[u8; 16]) -> uint8x16_t {
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline(always)]
fn float(sum: int32x4_t, off: int32x4_t) -> float32x4_t {
    unsafe { vcvtq_f32_s32(vsubq_s32(sum, off)) }
}

/// Four half floats as floats. The intrinsic is not in all versions of Rust that this is compiled with.
#[inline(always)]
fn wider(halves: &[u8; 8]) -> float32x4_t {
    let wide: float32x4_t;
    unsafe {
        let halves = vld1_u8(halves.as_ptr());
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) halves, options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// `sums + Σ codes · x`, of four bytes each.
#[inline(always)]
fn sum_of_four<const DOTPROD: bool>(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    unsafe {
        if DOTPROD {
            return sdot(sums, codes, x);
        }
        // Two products fit 16 bits: codes are -128 to 127, activations -127 to 127.
        let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
        let high = vmull_high_s8(codes, x);
        vpadalq_s16(sums, vpaddq_s16(low, high))
    }
}

/// The intrinsic is not stable yet.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) codes, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}
