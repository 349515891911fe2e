//! Operations of one SM per clock, by architecture, from which the peaks at any clock follow.

/// The types of the table, in its order.
pub(super) const TYPES: [&str; 6] = ["f32", "tf32", "f16", "bf16", "fp8", "int8"];

/// Dense operations of one SM per clock in each of [`TYPES`], with f32 sums; 0 if a type is not supported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Units {
    pub per_clock: [f64; 6],
    /// f32 cores of one SM.
    pub cores: u32,
}

const fn units(cores: u32, per_clock: [f64; 6]) -> Units {
    Units { per_clock, cores }
}

pub(super) const VOLTA: Units = units(64, [128.0, 0.0, 1024.0, 0.0, 0.0, 0.0]);
pub(super) const TURING: Units = units(64, [128.0, 0.0, 1024.0, 0.0, 0.0, 2048.0]);
const TURING_GEFORCE: Units = units(64, [128.0, 0.0, 512.0, 0.0, 0.0, 2048.0]);
pub(super) const GA100: Units = units(64, [128.0, 1024.0, 2048.0, 2048.0, 0.0, 4096.0]);
pub(super) const GA10X: Units = units(128, [256.0, 512.0, 1024.0, 1024.0, 0.0, 2048.0]);
pub(super) const GA10X_GEFORCE: Units = units(128, [256.0, 256.0, 512.0, 512.0, 0.0, 2048.0]);
pub(super) const GA10X_A10G: Units = units(128, [256.0, 256.0, 512.0, 512.0, 0.0, 1024.0]);
pub(super) const ORIN: Units = units(128, [256.0, 1024.0, 2048.0, 2048.0, 0.0, 4096.0]);
pub(super) const ADA: Units = units(128, [256.0, 512.0, 1024.0, 1024.0, 2048.0, 2048.0]);
pub(super) const ADA_GEFORCE: Units = units(128, [256.0, 256.0, 512.0, 512.0, 1024.0, 2048.0]);
pub(super) const ADA_HALF: Units = units(128, [256.0, 256.0, 512.0, 512.0, 1024.0, 1024.0]);
pub(super) const HOPPER: Units = units(128, [256.0, 2048.0, 4096.0, 4096.0, 8192.0, 8192.0]);
pub(super) const BLACKWELL: Units = units(128, [256.0, 4096.0, 8192.0, 8192.0, 16384.0, 16384.0]);
pub(super) const BLACKWELL_PRO: Units = units(128, [256.0, 512.0, 1024.0, 1024.0, 2048.0, 2048.0]);
pub(super) const BLACKWELL_GEFORCE: Units = units(128, [256.0, 256.0, 512.0, 512.0, 1024.0, 2048.0]);

impl Units {
    /// The units of a compute capability ("8.9"). GeForce GPUs accumulate in f32 at half the rate.
    pub(super) fn for_capability(compute_capability: &str, geforce: bool) -> Option<&'static Units> {
        Some(match (compute_capability, geforce) {
            ("7.0", _) => &VOLTA,
            ("7.5", false) => &TURING,
            ("7.5", true) => &TURING_GEFORCE,
            ("8.0", _) => &GA100,
            ("8.6", false) => &GA10X,
            ("8.6", true) => &GA10X_GEFORCE,
            ("8.7", _) => &ORIN,
            ("8.9", false) => &ADA,
            ("8.9", true) => &ADA_GEFORCE,
            ("9.0", _) => &HOPPER,
            ("10.0" | "10.1" | "10.3" | "11.0", _) => &BLACKWELL,
            ("12.0" | "12.1", false) => &BLACKWELL_PRO,
            ("12.0" | "12.1", true) => &BLACKWELL_GEFORCE,
            _ => return None,
        })
    }

    /// FLOP/s of `sms` SMs in the type at `index` of [`TYPES`], in four digits as in datasheets; `None` for an unsupported
    /// type.
    pub(super) fn flops(&self, index: usize, sms: u32, mhz: f64) -> Option<f64> {
        let flops = self.per_clock[index] * f64::from(sms) * mhz * 1e6;
        (flops > 0.0).then(|| {
            let digit = 10f64.powi(flops.log10().floor() as i32 - 3);
            (flops / digit).round() * digit
        })
    }
}
