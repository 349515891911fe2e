//! Checks of the GPUs: what NVML tells of them, and whether something holds them back.

use super::{Finding, Look, Status, cards::Card, cards::Cards, parse};
use crate::{
    analysis::throttle,
    base::units::bytes,
    event::{GpuProcess, Query, Refusal, readings::Reading, reasons::APPLICATION_CLOCKS},
    telemetry::absent::Absence,
};

/// Degrees below slowdown at which a GPU that may be idle is worth a word.
const WARM: f64 = 10.0;

const ACTIVITY: [Reading; 4] = [Reading::SmActive, Reading::Occupancy, Reading::Tensor, Reading::Dram];

pub(super) fn nvml(look: &Look) -> Finding {
    match &*look.cards {
        Cards::Found { cards, .. } if cards.len() == 1 => Finding::pass("answers for 1 GPU"),
        Cards::Found { cards, .. } => Finding::pass(format!("answers for {} GPUs", cards.len())),
        Cards::Absent { absence, sign: Some(sign) } => {
            Finding::fail(format!("{absence}, but {sign}")).remedy(absence.remedy())
        }
        // Whatever else is wrong, there is a driver that says so.
        Cards::Absent {
            absence:
                absence @ (Absence::LibraryMissing { .. } | Absence::DriverNotLoaded | Absence::NoDevices),
            sign: None,
        } => Finding::skip(format!("no NVIDIA GPU here: {absence}"))
            .remedy(format!("nothing, unless there is one: {}", absence.remedy())),
        Cards::Absent { absence, sign: None } => Finding::fail(absence.to_string()).remedy(absence.remedy()),
        Cards::Unanswered(why) => Finding::fail(format!("NVML {why}"))
            .remedy("see whether `nvidia-smi` answers; a driver that hangs needs a reboot (look for `Xid` in `sudo dmesg`)"),
    }
}

pub(super) fn driver(look: &Look) -> Finding {
    let module =
        look.machine.read("/proc/driver/nvidia/version").and_then(|text| parse::kernel_driver(&text));
    let kind = |open: bool| if open { "open kernel module" } else { "closed kernel module" };
    match (&*look.cards, module) {
        (Cards::Found { cards, .. }, module) => {
            let version = cards.first().map_or("unknown", |card| card.info.driver.as_str());
            let module = module.map_or_else(String::new, |module| format!(", {}", kind(module.open)));
            Finding::pass(format!("{version}{module}"))
        }
        (_, Some(module)) => Finding::pass(format!("{}, {}", module.version, kind(module.open))),
        (Cards::Absent { sign: None, .. }, None) => Finding::skip("no GPU here"),
        (Cards::Unanswered(_), None) => Finding::skip("NVML does not tell it (see nvml)"),
        (_, None) => {
            Finding::fail("the kernel module does not run").remedy(Absence::DriverNotLoaded.remedy())
        }
    }
}

pub(super) fn gpu(look: &Look) -> Finding {
    look.cards.each(|card| {
        let info = &card.info;
        let mut words = vec![info.name.clone()];
        words.extend(info.compute_capability.as_ref().map(|cap| format!("compute capability {cap}")));
        words.extend(info.mem_total_bytes.map(bytes));
        words.extend(info.virtualization.clone());
        let words = words.join(", ");
        match &card.trouble {
            Some(trouble) => Finding::fail(format!("{words}: {trouble}"))
                .remedy(Absence::Lost { detail: String::new() }.remedy()),
            None if info.mig == Some(true) => Finding::warn(format!(
                "{words}, split (MIG): some readings are of the whole card, or refused"
            ))
            .remedy(format!("sudo nvidia-smi -i {} -mig 0, where the whole card is wanted", info.index)),
            None => Finding::pass(words),
        }
    })
}

pub(super) fn gpm(look: &Look) -> Finding {
    look.cards.each(|card| {
        if let Some(refused) = card.refused(Query::Gpm) {
            // An older card is not at fault; a setting is.
            let settled = card.info.mig != Some(true) && card.info.virtualization.is_none();
            let older = settled && refused.reason == Refusal::NoGpm;
            let status = if older || refused.remedy.is_none() { Status::Skip } else { Status::Warn };
            return Finding {
                remedy: refused.remedy.clone(),
                ..Finding::new(status, refused.reason.to_string())
            };
        }
        let told: Vec<&str> =
            ACTIVITY.into_iter().filter(|reading| card.get(*reading).is_some()).map(Reading::label).collect();
        match told.is_empty() {
            true => Finding::warn("no activity counter was read").remedy("update the driver"),
            false => Finding::pass(format!("{}{}", told.join(", "), refusals(card, &ACTIVITY))),
        }
    })
}

/// What of `readings` is refused, in brackets.
fn refusals(card: &Card, readings: &[Reading]) -> String {
    let refused: Vec<&str> = readings
        .iter()
        .filter(|reading| card.refused(**reading).is_some())
        .map(|reading| reading.label())
        .collect();
    if refused.is_empty() { String::new() } else { format!(" (not told: {})", refused.join(", ")) }
}

pub(super) fn throttle_counters(look: &Look) -> Finding {
    look.cards.each(|card| {
        if card.sample.reasons.is_none() {
            return card.untold("why the clock is held down", Query::ClockEventReasons);
        }
        let counters = throttle::COUNTERS.map(|(_, reading)| reading);
        let told = counters.iter().filter(|reading| card.get(**reading).is_some()).count();
        match told {
            0 => {
                let untold = card.untold("reasons of the moment, but no counters", counters[0].label());
                Finding { status: Status::Warn, ..untold }
            }
            _ => Finding::pass(format!(
                "reasons of the moment, {told} of {} counters{}",
                counters.len(),
                refusals(card, &counters)
            )),
        }
    })
}

pub(super) fn power_limit(look: &Look) -> Finding {
    look.cards.each(|card| {
        let info = &card.info;
        let Some(limit) = info.power_limit_w else { return card.untold("power limit", "power limit") };
        let most =
            info.power_limit_max_w.map_or_else(String::new, |most| format!(", {most:.0} W at the most"));
        match info.power_limit_default_w {
            Some(default) if limit < default - 0.5 => Finding::warn(format!(
                "{limit:.0} W, where the card comes with {default:.0} W{most}: it will be slower"
            ))
            .remedy(format!("sudo nvidia-smi -i {} -pl {default:.0}", info.index)),
            Some(default) => Finding::pass(format!("{limit:.0} W (default {default:.0} W{most})")),
            None => Finding::pass(format!("{limit:.0} W{most}")),
        }
    })
}

pub(super) fn clocks(look: &Look) -> Finding {
    look.cards.each(|card| {
        let info = &card.info;
        let Some(most) = info.sm_clock_max_mhz else { return card.untold("SM clock", "max SM clock") };
        let now = card.get(Reading::SmClock).map_or_else(String::new, |now| format!(", {now:.0} MHz now"));
        let words = format!("SM up to {most} MHz{now}");
        let holds_back = card.sample.reasons.is_some_and(|bits| bits & APPLICATION_CLOCKS != 0);
        match info.sm_clock_application_mhz {
            Some(given) if given < most && holds_back => {
                Finding::warn(format!("{words}; applications are held at {given} MHz"))
                    .remedy(format!("sudo nvidia-smi -i {} -rac", info.index))
            }
            Some(given) if given < most => Finding::pass(format!(
                "{words}; the application clock is {given} MHz, which does not hold it back now"
            )),
            _ => Finding::pass(words),
        }
    })
}

pub(super) fn pcie(look: &Look) -> Finding {
    look.cards.each(|card| {
        let now = (card.get(Reading::PcieGen), card.get(Reading::PcieWidth));
        let (Some(generation), Some(width)) = now else {
            return card.untold("PCIe link", Reading::PcieWidth.label());
        };
        let most = (card.info.pcie_gen_max.map(f64::from), card.info.pcie_width_max.map(f64::from));
        let words = format!("generation {generation}, {width} lanes");
        match most {
            (_, Some(lanes)) if width < lanes => Finding::warn(format!("{words} of {lanes}: the link is narrower than it could be"))
                .remedy("see that the card sits in a slot with all lanes, and is seated well; loading models is slower, decoding hardly"),
            (Some(most), _) if generation < most => {
                Finding::pass(format!("{words}; an idle link slows down, it can do generation {most}"))
            }
            _ => Finding::pass(words),
        }
    })
}

pub(super) fn persistence(look: &Look) -> Finding {
    look.cards.each(|card| match card.info.persistence {
        Some(true) => Finding::pass("on"),
        Some(false) => Finding::warn("off: the driver starts the card anew for every first program")
            .remedy("sudo nvidia-smi -pm 1, or let nvidia-persistenced run"),
        None => card.untold("persistence mode", "persistence mode"),
    })
}

pub(super) fn temperature(look: &Look) -> Finding {
    look.cards.each(|card| {
        let Some(now) = card.get(Reading::Temp) else { return card.untold("temperature", Reading::Temp.label()) };
        let Some(slowdown) = card.info.slowdown_temp_c.map(f64::from) else {
            return Finding::pass(format!("{now:.0} °C; where it slows down is not told"));
        };
        let words = format!("{now:.0} °C, slows down at {slowdown:.0} °C");
        if now > slowdown - WARM {
            return Finding::warn(format!("{words}: runs will be held back by heat"))
                .remedy("let it cool down, see to its fans and the air around it; hardware.cooldown_until_c waits between jobs");
        }
        Finding::pass(words)
    })
}

pub(super) fn ecc(look: &Look) -> Finding {
    look.cards.each(|card| match (card.get(Reading::EccUncorrected), card.get(Reading::EccCorrected)) {
        (Some(lost), _) if lost > 0.0 => Finding::warn(format!(
            "{lost} uncorrected memory errors since the driver was loaded"
        ))
        .remedy(format!(
            "reset the card (sudo nvidia-smi -i {} --gpu-reset) and watch it: what it computed may be wrong",
            card.info.index
        )),
        (Some(_), Some(mended)) if mended > 0.0 => {
            Finding::pass(format!("{mended} memory errors since the driver was loaded, all corrected"))
        }
        (Some(_), _) => Finding::pass("no memory errors since the driver was loaded"),
        (None, _) => match card.untold("memory errors", Reading::EccUncorrected.label()) {
            // Many cards have no ECC, which is no fault of theirs.
            untold if untold.remedy.is_none() => Finding::skip("no ECC, or it is off"),
            untold => untold,
        },
    })
}

pub(super) fn other_processes(look: &Look) -> Finding {
    look.cards.each(|card| match &card.others {
        None => Finding::skip("they cannot be listed here"),
        Some(others) if others.is_empty() => Finding::pass("none"),
        Some(others) => {
            let names: Vec<String> = others.iter().map(GpuProcess::to_string).collect();
            Finding::warn(format!("{}: a run would share the GPU with them", names.join(", ")))
                .remedy("end them, or take another GPU with hardware.device_index")
        }
    })
}
