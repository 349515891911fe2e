//! NVML's clock event reasons: the meaning of each bit, and whether it slows the GPU down.

use std::borrow::Cow;

pub const GPU_IDLE: u64 = 0x1;
pub const APPLICATION_CLOCKS: u64 = 0x2;
pub const SW_POWER_CAP: u64 = 0x4;
pub const HW_SLOWDOWN: u64 = 0x8;
pub const SYNC_BOOST: u64 = 0x10;
pub const SW_THERMAL: u64 = 0x20;
pub const HW_THERMAL: u64 = 0x40;
pub const HW_POWER_BRAKE: u64 = 0x80;
pub const DISPLAY_CLOCKS: u64 = 0x100;

/// The thermal reasons.
pub const THERMAL: u64 = SW_THERMAL | HW_THERMAL;

/// One bit of the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    pub bit: u64,
    /// Short enough for the label of a lane.
    pub name: &'static str,
    /// The GPU runs below its configured speed. Idling and clocks set by a user are not faults.
    pub fault: bool,
}

/// Every reason NVML documents, lowest bit first.
pub const REASONS: &[Reason] = &[
    Reason { bit: GPU_IDLE, name: "idle", fault: false },
    Reason { bit: APPLICATION_CLOCKS, name: "application clocks", fault: false },
    Reason { bit: SW_POWER_CAP, name: "power cap", fault: true },
    Reason { bit: HW_SLOWDOWN, name: "hardware slowdown", fault: true },
    Reason { bit: SYNC_BOOST, name: "sync boost", fault: true },
    Reason { bit: SW_THERMAL, name: "thermal slowdown", fault: true },
    Reason { bit: HW_THERMAL, name: "hardware thermal slowdown", fault: true },
    Reason { bit: HW_POWER_BRAKE, name: "power brake", fault: true },
    Reason { bit: DISPLAY_CLOCKS, name: "display clocks", fault: false },
];

/// An active reason; a bit that is not in [`REASONS`] keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActiveReason {
    Known(&'static Reason),
    Unknown { bit: u64 },
}

impl ActiveReason {
    pub fn bit(self) -> u64 {
        match self {
            ActiveReason::Known(reason) => reason.bit,
            ActiveReason::Unknown { bit } => bit,
        }
    }

    pub fn name(self) -> Cow<'static, str> {
        match self {
            ActiveReason::Known(reason) => Cow::Borrowed(reason.name),
            ActiveReason::Unknown { bit } => Cow::Owned(format!("reason {bit:#x}")),
        }
    }

    /// Whether it is known to slow the GPU down; unknown bits are not.
    pub fn fault(self) -> bool {
        matches!(self, ActiveReason::Known(reason) if reason.fault)
    }
}

/// The reason of a single bit.
pub fn named(bit: u64) -> ActiveReason {
    match REASONS.iter().find(|reason| reason.bit == bit) {
        Some(reason) => ActiveReason::Known(reason),
        None => ActiveReason::Unknown { bit },
    }
}

/// The reasons in `mask`, lowest bit first.
pub fn active(mask: u64) -> impl Iterator<Item = ActiveReason> {
    (0..u64::BITS).map(|shift| 1u64 << shift).filter(move |bit| mask & bit != 0).map(named)
}

/// The independent reasons of `mask` that slow the GPU down.
pub fn faults(mask: u64) -> u64 {
    let faults = REASONS.iter().filter(|reason| reason.fault).fold(0, |bits, reason| bits | reason.bit);
    distinct(mask) & faults
}

/// The bits of `mask` that are not in [`REASONS`].
pub fn unknown(mask: u64) -> u64 {
    REASONS.iter().fold(mask, |bits, reason| bits & !reason.bit)
}

/// The independent reasons of `mask`: a hardware slowdown is left out if the mask has its cause.
pub fn distinct(mask: u64) -> u64 {
    if mask & (HW_THERMAL | HW_POWER_BRAKE) == 0 { mask } else { mask & !HW_SLOWDOWN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_named() {
        let cases: &[(u64, &[&str], u64)] = &[
            (0x0, &[], 0x0),
            (0x1, &["idle"], 0x0),
            (0x4, &["power cap"], 0x4),
            (0x22, &["application clocks", "thermal slowdown"], 0x20),
            (0x88, &["hardware slowdown", "power brake"], 0x80),
            (0x404, &["power cap", "reason 0x400"], 0x4),
            (1 << 63, &["reason 0x8000000000000000"], 0x0),
        ];
        for &(mask, names, fault_bits) in cases {
            assert_eq!(active(mask).map(ActiveReason::name).collect::<Vec<_>>(), names, "{mask:#x}");
            assert_eq!(faults(mask), fault_bits, "{mask:#x}");
            assert_eq!(unknown(mask), mask & !0x1ff, "{mask:#x}");
            assert_eq!(active(mask).fold(0, |bits, one| bits | one.bit()), mask, "no bit is lost");
        }
    }

    #[test]
    fn a_reason_and_its_consequence_are_one() {
        for (mask, independent) in [(0x8, 0x8), (0x88, 0x80), (0x48, 0x40), (0xc8, 0xc0), (0x24, 0x24)] {
            assert_eq!(distinct(mask), independent, "{mask:#x}");
        }
    }
}
