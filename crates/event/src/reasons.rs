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

/// A limit of the clock, and every text that names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockLimit {
    /// Its bit of the mask; 0 for a limit that only has a counter.
    pub bit: u64,
    /// Short enough for the label of a lane.
    pub name: &'static str,
    /// The name in JSON.
    pub key: &'static str,
    /// The GPU runs below its configured speed. Idling and clocks set by a user are not faults.
    pub fault: bool,
    /// The state of a GPU under the limit.
    pub participle: &'static str,
    /// A sentence without its full stop.
    pub remedy: &'static str,
    /// The name, and a sentence with the remedy, for readers who do not profile.
    pub plain: &'static str,
    pub plain_remedy: &'static str,
}

const PLAIN_POWER: &str = "Check the power supply of the machine, its cables and its cooling.";

const THERMAL_SLOWDOWN: ClockLimit = ClockLimit {
    bit: SW_THERMAL,
    name: "thermal slowdown",
    key: "thermal",
    fault: true,
    participle: "thermally throttled",
    remedy: "Improve the cooling: airflow, dust, inlet temperature, distance to the next GPU",
    plain: "its temperature",
    plain_remedy: "Improve the cooling of the GPU: airflow, dust, room temperature, distance to the next GPU.",
};

/// Every reason that NVML documents, lowest bit first.
pub const REASONS: &[ClockLimit] = &[
    ClockLimit {
        bit: GPU_IDLE,
        name: "idle",
        key: "idle",
        fault: false,
        participle: "idle",
        remedy: "Give it more work",
        plain: "a lack of work",
        plain_remedy: "Give the GPU more work.",
    },
    ClockLimit {
        bit: APPLICATION_CLOCKS,
        name: "application clocks",
        key: "application_clocks",
        fault: false,
        participle: "limited by the application clocks",
        remedy: "The clocks were set: reset them with nvidia-smi -rac, and locked ones with -rgc",
        plain: "clocks that a user set",
        plain_remedy: "Reset the clocks of the GPU.",
    },
    ClockLimit {
        bit: SW_POWER_CAP,
        name: "power cap",
        key: "power_cap",
        fault: true,
        participle: "power-capped",
        remedy: "Raise the power limit (nvidia-smi -pl; nvidia-smi -q -d POWER shows its range)",
        plain: "its power limit",
        plain_remedy: "Raise the power limit of the GPU, after a check of the power supply and the cooling.",
    },
    ClockLimit {
        bit: HW_SLOWDOWN,
        name: "hardware slowdown",
        key: "hardware_slowdown",
        fault: true,
        participle: "throttled by the hardware",
        remedy: "Check the power cables and the cooling: the hardware halves the clock to protect itself",
        plain: "its own protection against heat or a lack of power",
        plain_remedy: PLAIN_POWER,
    },
    ClockLimit {
        bit: SYNC_BOOST,
        name: "sync boost",
        key: "sync_boost",
        fault: true,
        participle: "limited by sync boost",
        remedy: "Another GPU of its sync boost group is slow: find it, or remove this GPU from the group",
        plain: "another GPU that it is coupled to",
        plain_remedy: "Remove the GPU from the group that sets its clock.",
    },
    THERMAL_SLOWDOWN,
    ClockLimit {
        bit: HW_THERMAL,
        name: "hardware thermal slowdown",
        key: "hardware_thermal",
        ..THERMAL_SLOWDOWN
    },
    ClockLimit {
        bit: HW_POWER_BRAKE,
        name: "power brake",
        key: "power_brake",
        fault: true,
        participle: "throttled by power brake",
        remedy: "Check the power supply and its cables, and the power budget of the server and its rack",
        plain: "the power supply of the machine",
        plain_remedy: PLAIN_POWER,
    },
    ClockLimit {
        bit: DISPLAY_CLOCKS,
        name: "display clocks",
        key: "display_clocks",
        fault: false,
        participle: "limited by the display clocks",
        remedy: "Connect the display to another GPU",
        plain: "the display that it drives",
        plain_remedy: "Connect the display to another GPU.",
    },
];

pub const BOARD: ClockLimit = ClockLimit {
    bit: 0,
    name: "board limit",
    key: "board",
    fault: true,
    participle: "limited by the board limit",
    remedy: "Check the power supply and the cooling: the board's regulators are at their limit",
    plain: "the electrical limits of its board",
    plain_remedy: PLAIN_POWER,
};

pub const RELIABILITY: ClockLimit = ClockLimit {
    name: "reliability limit",
    key: "reliability",
    participle: "limited by the reliability limit",
    remedy: "The voltage is at its limit: a lower clock would be as fast",
    ..BOARD
};

/// An active reason; a bit that is not in [`REASONS`] keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActiveReason {
    Known(&'static ClockLimit),
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
