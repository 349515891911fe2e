//! Matrix products with quantised weights on the CPU: activations are rounded to bytes once, codes are multiplied as
//! integers.
#![allow(unsafe_code, reason = "vector instructions that this CPU was found to have")]

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, bail};
use half::f16;
use rayon::prelude::*;

use crate::{
    blocks::{Format, GROUP, HALF},
    gemv::{UNIT_BYTES, contiguous},
    panels::{HALVES, LANES, Panels, QUAD, QUADS, ROWS, Rule, Scales, mask, parts, plane},
    simd::{Stored, vectorised},
};

/// `x · wᵀ` for `x` (…, columns) in f32 and contiguous. Returns (…, rows) in f32. Runs on the current rayon pool.
pub fn quantised_linear(x: &Tensor, w: &Panels) -> Result<Tensor> {
    x.apply_op1_no_bwd(&Product(w))
}

/// The rows with the given `ids`, in f32: (ids, columns).
pub fn quantised_rows(ids: &[u32], w: &Panels) -> Result<Tensor> {
    let mut out = vec![0f32; ids.len() * w.columns];
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(w.columns)) {
        if id as usize >= w.rows {
            bail!("there is no row {id}");
        }
        w.row(id as usize, out);
    }
    Tensor::from_vec(out, (ids.len(), w.columns), &Device::Cpu)
}

struct Product<'a>(&'a Panels);

impl CustomOp1 for Product<'_> {
    fn name(&self) -> &'static str {
        "quantised-product"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let w = self.0;
        let mut dims = layout.dims().to_vec();
        if dims.pop() != Some(w.columns) {
            bail!("a GEMM of {:?} with rows of {} weights", layout.shape(), w.columns);
        }
        dims.push(w.rows);
        let x = contiguous(x.as_slice::<f32>()?, layout)?;
        Ok((CpuStorage::F32(product(x, w, Cpu::detect())), dims.into()))
    }
}

/// 32 activations as bytes, with their own scale.
#[derive(Clone, Copy, Default)]
struct Group {
    quads: [[i8; QUAD]; QUADS],
    scale: f32,
    /// Sums of both halves after rounding, which the offsets of weights are multiplied with.
    sums: [f32; 2],
}

/// The number of rows of activations from which on several threads share the preparation.
const MANY: usize = 16;

fn rounded_rows(x: &[f32], columns: usize) -> Vec<Group> {
    let groups = columns / GROUP;
    let mut all = vec![Group::default(); x.len() / GROUP];
    let row = |(x, out): (&[f32], &mut [Group])| {
        vectorised(
            #[inline(always)]
            || {
                for (x, out) in x.as_chunks::<GROUP>().0.iter().zip(out.iter_mut()) {
                    *out = rounded(x);
                }
            },
        );
    };
    match x.len() / columns {
        0..MANY => row((x, &mut all)),
        _ => x.par_chunks_exact(columns).zip(all.par_chunks_exact_mut(groups)).for_each(row),
    }
    all
}

#[inline(always)]
fn rounded(x: &[f32; GROUP]) -> Group {
    // Adding 1.5 · 2²³ rounds and leaves the integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let mut most = [0f32; 8];
    for part in x.as_chunks::<8>().0 {
        for (most, x) in most.iter_mut().zip(part) {
            *most = if x.abs() > *most { x.abs() } else { *most };
        }
    }
    let most = most.into_iter().fold(0f32, f32::max);
    let (scale, inverse) = (most / 127.0, if most > 0.0 { 127.0 / most } else { 0.0 });
    let mut codes = [0i8; GROUP];
    for (code, x) in codes.iter_mut().zip(x) {
        *code = (x * inverse + ROUND).to_bits() as i8;
    }
    let (mut first, mut second) = (0i32, 0i32);
    for i in 0..HALF {
        first += i32::from(codes[i]);
        second += i32::from(codes[i + HALF]);
    }
    let quads = std::array::from_fn(|quad| std::array::from_fn(|i| codes[quad * QUAD + i]));
    Group { quads, scale, sums: [scale * first as f32, scale * second as f32] }
}

/// Minimum work items per thread, if the matrix has that many panels.
const UNITS: usize = 4;

/// Row-major (rows of x, rows of w).
fn product(x: &[f32], w: &Panels, cpu: Cpu) -> Vec<f32> {
    let (m, n) = (x.len() / w.columns, w.rows);
    if m == 0 || n == 0 {
        return Vec::new();
    }
    let x = rounded_rows(x, w.columns);
    let panels = n.div_ceil(ROWS);
    let share = panels.div_ceil(UNITS * rayon::current_num_threads());
    let unit = (UNIT_BYTES / w.panel_bytes()).clamp(1, share);
    let work = cpu.work();
    // Work items write panels of the result, which is (panels, m, 16) until the end.
    let mut by_panel = vec![0f32; panels * ROWS * m];
    let units = by_panel.par_chunks_mut(unit * ROWS * m).zip(w.bytes.par_chunks(unit * w.panel_bytes()));
    units.with_max_len(1).for_each(|(y, bytes)| work(w.format, y.as_chunks_mut().0, bytes, &x, m));
    if m == 1 {
        by_panel.truncate(n);
        return by_panel;
    }
    let mut y = vec![0f32; n * m];
    let row = |(i, y): (usize, &mut [f32])| {
        for (panel, y) in y.chunks_mut(ROWS).enumerate() {
            y.copy_from_slice(&by_panel[(panel * m + i) * ROWS..][..y.len()]);
        }
    };
    match m {
        0..MANY => y.chunks_exact_mut(n).enumerate().for_each(row),
        _ => y.par_chunks_exact_mut(n).enumerate().for_each(row),
    }
    y
}

/// Multiplies panels of weights with `m` rows of activations; returns (panels, m) times sixteen.
type MatmulFn = fn(Format, &mut [[f32; ROWS]], &[u8], &[Group], usize);

/// The instructions with which this CPU multiplies bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cpu {
    #[cfg(target_arch = "x86_64")]
    Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Dotprod,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Any,
}

impl Cpu {
    fn detect() -> Cpu {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let vnni = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni");
            match (avx2, vnni) {
                (true, true) => return Cpu::Vnni,
                (true, false) => return Cpu::Avx2,
                _ => {}
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as found;
            match (found!("neon"), found!("dotprod")) {
                (true, true) => return Cpu::Dotprod,
                (true, false) => return Cpu::Neon,
                _ => {}
            }
        }
        Cpu::Any
    }

    fn work(self) -> MatmulFn {
        match self {
            // SAFETY of all: `found` has detected the instructions that the function is compiled for.
            #[cfg(target_arch = "x86_64")]
            Cpu::Vnni => |format, y, w, x, m| unsafe { x86::vnni(format, y, w, x, m) },
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2 => |format, y, w, x, m| unsafe { x86::avx2(format, y, w, x, m) },
            #[cfg(target_arch = "aarch64")]
            Cpu::Dotprod => |format, y, w, x, m| unsafe { neon::dotprod(format, y, w, x, m) },
            #[cfg(target_arch = "aarch64")]
            Cpu::Neon => |format, y, w, x, m| unsafe { neon::neon(format, y, w, x, m) },
            Cpu::Any => all_panels::<Any>,
        }
    }
}

/// Vectors of sixteen rows.
trait Vectors {
    /// Four codes per row.
    type Codes: Copy;
    /// One sum per row.
    type Sums: Copy;
    /// One float per row.
    type Floats: Copy;
    /// Rows of activations in one pass.
    const PASS: usize;
    fn codes(bytes: &[u8; LANES]) -> Self::Codes;
    /// `(codes >> shift) & mask << place`, byte by byte.
    fn bits(codes: Self::Codes, shift: usize, mask: u8, place: usize) -> Self::Codes;
    fn or(a: Self::Codes, b: Self::Codes) -> Self::Codes;
    /// The values of the table at the codes.
    fn look_up(codes: Self::Codes, table: &[u8; 16]) -> Self::Codes;
    fn no_sums() -> Self::Sums;
    /// `sums + Σ codes · x`. `WIDE`: codes above 127 occur.
    fn dot<const WIDE: bool>(sums: Self::Sums, codes: Self::Codes, x: [i8; QUAD]) -> Self::Sums;
    fn floats(sums: Self::Sums) -> Self::Floats;
    fn halves(bytes: &[u8; HALVES]) -> Self::Floats;
    fn unsigned(bytes: &[u8; ROWS]) -> Self::Floats;
    fn signed(bytes: &[u8; ROWS]) -> Self::Floats;
    fn all(x: f32) -> Self::Floats;
    fn times(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b + c`
    fn fused(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    fn store(x: Self::Floats, to: &mut [f32; ROWS]);
}

/// A format as a type, so that its rule is known at compile time.
trait Known {
    const RULE: Rule;
}

macro_rules! known {
    ($($name:ident),+) => {
        $(
            struct $name;
            impl Known for $name {
                const RULE: Rule = Rule::for_format(Format::$name);
            }
        )+

        #[inline(always)]
        fn all_panels<V: Vectors>(format: Format, y: &mut [[f32; ROWS]], w: &[u8], x: &[Group], m: usize) {
            match format {
                $(Format::$name => match $name::RULE.is_wide() {
                    true => panels::<V, $name, true>(y, w, x, m),
                    false => panels::<V, $name, false>(y, w, x, m),
                }),+
            }
        }
    };
}

known!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs, Mxfp4);

#[inline(always)]
fn panels<V: Vectors, K: Known, const WIDE: bool>(y: &mut [[f32; ROWS]], w: &[u8], x: &[Group], m: usize) {
    let groups = x.len() / m;
    let panel_bytes = groups / K::RULE.groups() * K::RULE.bytes();
    for (y, panel) in y.chunks_exact_mut(m).zip(w.chunks_exact(panel_bytes)) {
        let mut done = 0;
        while done < m {
            let (y, x) = (&mut y[done..], &x[done * groups..]);
            done += match m - done {
                8.. if V::PASS == 8 => pass::<V, K, WIDE, 8>(y, panel, x, groups),
                4.. => pass::<V, K, WIDE, 4>(y, panel, x, groups),
                _ => pass::<V, K, WIDE, 1>(y, panel, x, groups),
            };
        }
    }
}

/// A panel with the first `M` rows of `x`; returns their number.
#[inline(always)]
fn pass<V: Vectors, K: Known, const WIDE: bool, const M: usize>(
    y: &mut [[f32; ROWS]],
    panel: &[u8],
    x: &[Group],
    groups: usize,
) -> usize {
    let rule = K::RULE;
    let x: [&[Group]; M] = std::array::from_fn(|i| &x[i * groups..][..groups]);
    let mut totals = [V::all(0.0); M];
    for (super_group, bytes) in panel.chunks_exact(rule.bytes()).enumerate() {
        let (head, bytes) = bytes.split_at(rule.head());
        let first = V::halves(part(head, 0));
        let second = if rule.head() > HALVES { V::halves(part(head, HALVES)) } else { first };
        for (g, group) in bytes.chunks_exact(rule.small() + rule.codes()).enumerate() {
            let (small, planes) = group.split_at(rule.small());
            let mut codes = [quad_codes::<V>(rule, planes, 0); QUADS];
            for (quad, codes) in codes.iter_mut().enumerate().skip(1) {
                *codes = quad_codes::<V>(rule, planes, quad);
            }
            let [low, high] = scales::<V>(rule, small, first, second);
            let mut rows = [&x[0][super_group * rule.groups() + g]; M];
            for (row, x) in rows.iter_mut().zip(x) {
                *row = &x[super_group * rule.groups() + g];
            }
            let mut sums = [V::no_sums(); M];
            dots::<V, WIDE, M>(&mut sums, &codes, &rows, 0);
            for ((total, sums), x) in totals.iter_mut().zip(&mut sums).zip(rows) {
                if rule.has_halves() {
                    *total = V::fused(low.1, V::all(x.sums[0]), *total);
                    *total = V::fused(V::floats(*sums), V::times(low.0, V::all(x.scale)), *total);
                    *sums = V::no_sums();
                    *total = V::fused(high.1, V::all(x.sums[1]), *total);
                } else {
                    *total = V::fused(low.1, V::all(x.sums[0] + x.sums[1]), *total);
                }
            }
            dots::<V, WIDE, M>(&mut sums, &codes, &rows, QUADS / 2);
            for ((total, sums), x) in totals.iter_mut().zip(sums).zip(rows) {
                *total = V::fused(V::floats(sums), V::times(high.0, V::all(x.scale)), *total);
            }
        }
    }
    for (total, y) in totals.into_iter().zip(y) {
        V::store(total, y);
    }
    M
}

/// The products of half a group, from quad `first` on. The outer loop is over quads, the inner one over rows: codes are
/// loaded once for all rows.
#[inline(always)]
fn dots<V: Vectors, const WIDE: bool, const M: usize>(
    sums: &mut [V::Sums; M],
    codes: &[V::Codes; QUADS],
    rows: &[&Group; M],
    first: usize,
) {
    for (&codes, quad) in codes[first..].iter().zip(first..first + QUADS / 2) {
        for (sums, x) in sums.iter_mut().zip(rows) {
            *sums = V::dot::<WIDE>(*sums, codes, x.quads[quad]);
        }
    }
}

#[inline(always)]
fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("inside of a panel")
}

/// The codes of a quad, from the planes that have them.
// Without closures, here and below: one that is not inlined is compiled for the baseline CPU.
#[inline(always)]
fn quad_codes<V: Vectors>(rule: Rule, planes: &[u8], quad: usize) -> V::Codes {
    let [base, top] = parts(rule.bits);
    let mut codes = plane_codes::<V>(planes, base, 0, quad);
    if top > 0 {
        codes = V::or(codes, plane_codes::<V>(&planes[base * LANES..], top, base, quad));
    }
    match rule.table {
        Some(table) => V::look_up(codes, table),
        None => codes,
    }
}

/// `bits` bits of the codes, at their position.
#[inline(always)]
fn plane_codes<V: Vectors>(planes: &[u8], bits: usize, place: usize, quad: usize) -> V::Codes {
    let (plane, shift) = plane(bits, quad);
    V::bits(V::codes(part(planes, plane * LANES)), shift, mask(bits), place)
}

/// Scale and offset of both halves of a group.
#[inline(always)]
fn scales<V: Vectors>(
    rule: Rule,
    small: &[u8],
    first: V::Floats,
    second: V::Floats,
) -> [(V::Floats, V::Floats); 2] {
    match rule.scales {
        Scales::One => [(first, V::times(first, V::all(-rule.zero))); 2],
        Scales::Two => [(first, second); 2],
        Scales::Pairs => {
            let least = V::times(second, V::unsigned(part(small, ROWS)));
            [(V::times(first, V::unsigned(part(small, 0))), V::times(least, V::all(-1.0))); 2]
        }
        Scales::Nibbles => {
            [nibbles::<V>(part(small, 0), first, second), nibbles::<V>(part(small, ROWS), first, second)]
        }
        Scales::Signed => [signed::<V>(rule, part(small, 0), first); 2],
        Scales::SignedHalves => {
            [signed::<V>(rule, part(small, 0), first), signed::<V>(rule, part(small, ROWS), first)]
        }
    }
}

/// Scale, and the offset that follows from the code of weight zero.
#[inline(always)]
fn signed<V: Vectors>(rule: Rule, scales: &[u8; ROWS], first: V::Floats) -> (V::Floats, V::Floats) {
    let scale = V::times(first, V::signed(scales));
    (scale, V::times(scale, V::all(-rule.zero)))
}

/// Scale and offset that share one byte.
#[inline(always)]
fn nibbles<V: Vectors>(both: &[u8; ROWS], first: V::Floats, second: V::Floats) -> (V::Floats, V::Floats) {
    let (mut scale, mut least) = (*both, *both);
    for i in 0..ROWS {
        scale[i] &= 15;
        least[i] >>= 4;
    }
    let least = V::times(second, V::unsigned(&least));
    (V::times(first, V::unsigned(&scale)), V::times(least, V::all(-1.0)))
}

/// Four activations in memory order.
#[inline(always)]
fn four(x: [i8; QUAD]) -> i32 {
    i32::from_ne_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8])
}

/// Plain loops, which the compiler vectorises for the baseline CPU.
struct Any;

impl Vectors for Any {
    type Codes = [u8; LANES];
    type Sums = [i32; ROWS];
    type Floats = [f32; ROWS];
    const PASS: usize = 4;

    #[inline(always)]
    fn codes(bytes: &[u8; LANES]) -> [u8; LANES] {
        *bytes
    }

    #[inline(always)]
    fn bits(codes: [u8; LANES], shift: usize, mask: u8, place: usize) -> [u8; LANES] {
        codes.map(|code| ((code >> shift) & mask) << place)
    }

    #[inline(always)]
    fn or(a: [u8; LANES], b: [u8; LANES]) -> [u8; LANES] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn look_up(codes: [u8; LANES], table: &[u8; 16]) -> [u8; LANES] {
        codes.map(|code| table[usize::from(code & 15)])
    }

    #[inline(always)]
    fn no_sums() -> [i32; ROWS] {
        [0; ROWS]
    }

    #[inline(always)]
    fn dot<const WIDE: bool>(mut sums: [i32; ROWS], codes: [u8; LANES], x: [i8; QUAD]) -> [i32; ROWS] {
        for (row, sum) in sums.iter_mut().enumerate() {
            for (i, &x) in x.iter().enumerate() {
                *sum += i32::from(codes[row * QUAD + i]) * i32::from(x);
            }
        }
        sums
    }

    #[inline(always)]
    fn floats(sums: [i32; ROWS]) -> [f32; ROWS] {
        sums.map(|sum| sum as f32)
    }

    #[inline(always)]
    fn halves(bytes: &[u8; HALVES]) -> [f32; ROWS] {
        std::array::from_fn(|i| Stored::widen(f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
    }

    #[inline(always)]
    fn unsigned(bytes: &[u8; ROWS]) -> [f32; ROWS] {
        bytes.map(f32::from)
    }

    #[inline(always)]
    fn signed(bytes: &[u8; ROWS]) -> [f32; ROWS] {
        bytes.map(|byte| f32::from(byte as i8))
    }

    #[inline(always)]
    fn all(x: f32) -> [f32; ROWS] {
        [x; ROWS]
    }

    #[inline(always)]
    fn times(a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn fused(a: [f32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn store(x: [f32; ROWS], to: &mut [f32; ROWS]) {
        *to = x;
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{
        Device, Module,
        quantized::{GgmlDType, QMatMul, QTensor},
    };

    use super::*;

    const PAIRS: [(GgmlDType, Format); 10] = [
        (GgmlDType::Q4_0, Format::Q4_0),
        (GgmlDType::Q4_1, Format::Q4_1),
        (GgmlDType::Q5_0, Format::Q5_0),
        (GgmlDType::Q5_1, Format::Q5_1),
        (GgmlDType::Q8_0, Format::Q8_0),
        (GgmlDType::Q2K, Format::Q2K),
        (GgmlDType::Q3K, Format::Q3K),
        (GgmlDType::Q4K, Format::Q4K),
        (GgmlDType::Q5K, Format::Q5K),
        (GgmlDType::Q6K, Format::Q6K),
    ];

    fn panels(w: &QTensor, format: Format) -> Panels {
        Panels::new(format, &w.data().unwrap(), w.shape().dims2().unwrap().1).unwrap()
    }

    #[test]
    fn weights_are_those_of_ggml() {
        let w = Tensor::randn(0.1f32, 1.0, (5, 512), &Device::Cpu).unwrap();
        for (dtype, format) in PAIRS {
            assert_eq!((dtype.block_size(), dtype.type_size()), (format.weights(), format.bytes()));
            let w = QTensor::quantize(&w, dtype).unwrap();
            let rows = quantised_rows(&[0, 1, 2, 3, 4, 1], &panels(&w, format)).unwrap();
            let expected = w.dequantize(&Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
            let rows = rows.to_vec2::<f32>().unwrap();
            assert_eq!(rows[5], rows[1]);
            for (a, b) in rows.iter().flatten().zip(expected.iter().flatten()) {
                assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{format:?}: {a} instead of {b}");
            }
        }
    }

    /// Random blocks whose scales are small numbers; `halves` gives the positions of the half floats of a block.
    fn random(format: Format, rows: usize, columns: usize, halves: &[usize]) -> Vec<u8> {
        let blocks = rows * columns / format.weights();
        let mut bytes: Vec<u8> =
            (0..blocks * format.bytes()).map(|i| (crate::mix64(i as u64) >> 32) as u8).collect();
        for block in bytes.chunks_exact_mut(format.bytes()) {
            for &at in halves {
                let small = half::f16::from_f32(f32::from(block[at]) / 25_600.0);
                block[at..at + 2].copy_from_slice(&small.to_le_bytes());
            }
        }
        bytes
    }

    /// The definition of the two types that candle lacks, value by value.
    #[test]
    fn weights_of_the_types_with_a_table() {
        let bytes = random(Format::Iq4Nl, 2, 64, &[0]);
        let w = Panels::new(Format::Iq4Nl, &bytes, 64).unwrap();
        let rows = quantised_rows(&[0, 1], &w).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (i, &found) in rows.iter().enumerate() {
            let (block, at) = (&bytes[i / 32 * 18..], i % 32);
            let d = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
            let byte = block[2 + at % 16];
            let code = if at < 16 { byte & 15 } else { byte >> 4 };
            let expected = d * [
                -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
                89.0, 113.0,
            ][usize::from(code)];
            assert!((found - expected).abs() < 1e-5, "{i}: {found}, not {expected}");
        }
        let bytes = random(Format::Iq4Xs, 1, 512, &[0]);
        let w = Panels::new(Format::Iq4Xs, &bytes, 512).unwrap();
        let rows = quantised_rows(&[0], &w).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        for (i, &found) in rows.iter().enumerate() {
            let (block, at) = (&bytes[i / 256 * 136..], i % 256);
            let (sub, within) = (at / 32, at % 32);
            let d = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
            let low = u16::from(block[4 + sub / 2]) >> (4 * (sub % 2)) & 15;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * sub) & 3;
            let byte = block[8 + 16 * sub + within % 16];
            let code = if within < 16 { byte & 15 } else { byte >> 4 };
            let table: [f32; 16] = [
                -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
                89.0, 113.0,
            ];
            let expected = d * (f32::from(low | high << 4) - 32.0) * table[usize::from(code)];
            assert!((found - expected).abs() < 1e-4, "{i}: {found}, not {expected}");
        }
    }

    /// `x · wᵀ` with the rounded activations, in f64.
    fn by_definition(x: &[f32], w: &Tensor, columns: usize) -> Vec<f64> {
        let rounded: Vec<f64> = x
            .chunks_exact(GROUP)
            .flat_map(|x| {
                let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
                x.iter().map(move |x| f64::from((x / scale).round() * scale)).collect::<Vec<_>>()
            })
            .collect();
        let w: Vec<Vec<f32>> = w.to_vec2().unwrap();
        let dot = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum::<f64>();
        rounded.chunks_exact(columns).flat_map(|x| w.iter().map(|w| dot(x, w)).collect::<Vec<_>>()).collect()
    }

    /// The kinds of vectors that this machine supports, plain loops first.
    fn kinds() -> Vec<Cpu> {
        match Cpu::detect() {
            #[cfg(target_arch = "x86_64")]
            Cpu::Vnni => vec![Cpu::Any, Cpu::Avx2, Cpu::Vnni],
            #[cfg(target_arch = "aarch64")]
            Cpu::Dotprod => vec![Cpu::Any, Cpu::Neon, Cpu::Dotprod],
            Cpu::Any => vec![Cpu::Any],
            vectors => vec![Cpu::Any, vectors],
        }
    }

    #[test]
    fn products_are_those_of_the_definition_on_every_kind_of_cpu() {
        for (m, n, k) in [(1, 9, 256usize), (3, 4, 512), (4, 17, 256), (13, 33, 768), (5, 16, 96)] {
            let fits = |format: Format| k.is_multiple_of(format.weights());
            let x = Tensor::randn(0f32, 1.0, (m, k), &Device::Cpu).unwrap();
            let plain = Tensor::randn(0.05f32, 1.0, (n, k), &Device::Cpu).unwrap();
            let candles = PAIRS.into_iter().filter(|&(_, format)| fits(format)).map(|(dtype, format)| {
                let w = QTensor::quantize(&plain, dtype).unwrap();
                (panels(&w, format), w.dequantize(&Device::Cpu).unwrap())
            });
            let tables =
                [Format::Iq4Nl, Format::Iq4Xs, Format::Mxfp4].into_iter().filter(|&format| fits(format));
            let tables = tables.map(|format| {
                let w = Panels::new(format, &random(format, n, k, &[0]), k).unwrap();
                let all: Vec<u32> = (0..n as u32).collect();
                let rows = quantised_rows(&all, &w).unwrap();
                (w, rows)
            });
            let flat: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
            for (w, plain) in candles.chain(tables) {
                let expected = by_definition(&flat, &plain, k);
                let size = expected.iter().fold(0f64, |most, x| most.max(x.abs()));
                for kind in kinds() {
                    let found = product(&flat, &w, kind);
                    assert_eq!(found.len(), expected.len());
                    for (found, expected) in found.iter().zip(&expected) {
                        // A value half way between two bytes may be rounded either way.
                        assert!(
                            (f64::from(*found) - expected).abs() < 5e-3 * size,
                            "{:?}, {kind:?}, {m}×{k}·{n}: {found}, not {expected}",
                            w.format
                        );
                    }
                }
            }
        }
    }

    /// The checksum covers all bits of all results: it is the same with every kind of vectors, of x86 and of ARM.
    #[test]
    fn results_are_equal_with_every_kind_of_vectors() {
        for kind in kinds().into_iter().skip(1) {
            let mut bits = 0;
            for format in Format::ALL {
                for (m, n, k) in [(1, 9, 256), (4, 17, 512), (13, 33, 768)] {
                    let w = Panels::new(format, &crate::random_blocks(format, 7, n, k), k).unwrap();
                    let x: Vec<f32> =
                        (0..m * k).map(|i| (crate::mix64(i as u64) >> 40) as f32 - 8_388_608.0).collect();
                    bits = product(&x, &w, kind)
                        .iter()
                        .fold(bits, |bits, y| crate::mix64(bits ^ u64::from(y.to_bits())));
                }
            }
            assert_eq!(bits, 1_007_207_802_630_726_346, "{kind:?}");
        }
    }

    #[test]
    fn differs_from_candles_gemm_only_by_rounding() {
        let x = Tensor::randn(0f32, 1.0, (5, 512), &Device::Cpu).unwrap();
        let w = Tensor::randn(0f32, 1.0, (40, 512), &Device::Cpu).unwrap();
        for (dtype, format) in PAIRS {
            let w = QTensor::quantize(&w, dtype).unwrap();
            let ours = quantised_linear(&x, &panels(&w, format)).unwrap();
            let exact = x.matmul(&w.dequantize(&Device::Cpu).unwrap().t().unwrap()).unwrap();
            let theirs = QMatMul::from_qtensor(w).unwrap().forward(&x).unwrap();
            let error = |y: &Tensor| {
                let error = (y - &exact).unwrap().sqr().unwrap().mean_all().unwrap().sqrt().unwrap();
                error.to_scalar::<f32>().unwrap()
            };
            let (ours, theirs) = (error(&ours), error(&theirs));
            assert!(ours < 1.1 * theirs, "{format:?}: error {ours}, candle's is {theirs}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let x = Tensor::zeros((1, 64), candle_core::DType::F32, &Device::Cpu).unwrap();
        let w = |bytes, columns| Panels::new(Format::Q4_0, bytes, columns);
        assert!(quantised_linear(&x, &w(&[0; 36], 64).unwrap()).is_ok());
        assert!(w(&[0; 35], 64).is_err() && w(&[0; 36], 63).is_err() && w(&[0; 36], 0).is_err());
        assert!(quantised_linear(&x, &w(&[0; 36], 32).unwrap()).is_err());
        assert!(quantised_rows(&[1], &w(&[0; 36], 64).unwrap()).is_err());
        assert_eq!(quantised_linear(&x, &w(&[], 64).unwrap()).unwrap().dims(), [1, 0]);
    }
}
