//! The ledger in words: what held the card back, what that cost, what to do.

use serde::Serialize;

use super::{
    Account, Held, Ledger, Limit, Work,
    cost::{Cost, Workload, cost, free_clock, is_explained},
};
use crate::base::units::percent;
use crate::event::{
    GpuInfo, GpuLost, GpuProcess,
    reasons::{
        self, APPLICATION_CLOCKS, HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, SW_POWER_CAP, SW_THERMAL,
        SYNC_BOOST,
    },
};

/// Everything that is known of a card and its work.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub info: &'a GpuInfo,
    pub ledger: &'a Ledger,
    pub workload: Option<Workload>,
    /// Mean time of a decode step.
    pub tpot_ms: Option<f64>,
    /// The part of the decode time in which the GPU worked, by its own clock.
    pub device_share: Option<f64>,
    pub temp_c: Option<f64>,
    pub fan_pct: Option<f64>,
    pub pcie_width: Option<f64>,
    /// Everyone else who was seen on the card.
    pub others: &'a [GpuProcess],
    pub lost: Option<&'a GpuLost>,
    /// Why the card does not tell what holds its clock.
    pub reasons_refused: Option<&'a str>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tone {
    Fine,
    /// Worth knowing, nothing is wrong.
    Note,
    Bad,
    Unknown,
}

/// A limit, the work it held, and what that cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    pub reason: String,
    #[serde(skip)]
    pub limit: Limit,
    pub phase: &'static str,
    #[serde(skip)]
    pub work: Work,
    /// It takes away what the card was set up to have; null where a bit is too new to know.
    pub fault: Option<bool>,
    /// The part of the phase's time in which it held, from 0 to 1.
    pub time_share: f64,
    pub active_s: f64,
    /// "counter" where the card counted the time itself, "samples" where looks found it.
    pub time_source: &'static str,
    /// By looks alone, beside the counter.
    pub sampled_s: f64,
    pub clock_mhz: Option<f64>,
    pub clock_free_mhz: Option<f64>,
    /// Speed lost over the whole phase.
    pub cost_pct: Option<f64>,
    pub ms_per_token: Option<f64>,
    pub tokens_lost: Option<f64>,
    /// The part of the whole run in which it held during this phase.
    pub run_share: f64,
    pub basis: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    pub verdict: String,
    pub tone: Tone,
    /// A limit costs some of the speed.
    pub throttled: bool,
    pub causes: Vec<Cause>,
    pub advice: Vec<String>,
}

/// Less than this of a phase's speed is not worth a word.
const WORTH_A_WORD_PCT: f64 = 0.5;
/// Less than this of a phase's time neither.
const WORTH_A_WORD_SHARE: f64 = 0.02;
/// A counter that says less than this part of what looks say counts something else.
const DEAD_COUNTER: f64 = 0.1;
/// A GPU that works less than this of the decode time waits for the CPU.
const BUSY_ENOUGH: f64 = 0.85;

/// What the evidence says. `None` while nothing was seen of the card at all.
pub fn diagnose(evidence: &Evidence<'_>) -> Option<Diagnosis> {
    if evidence.lost.is_none() && evidence.ledger.span_s() <= 0.0 {
        return None;
    }
    let causes = causes(evidence);
    let mut words = Vec::new();
    let mut advice = Vec::new();
    let mut tone = Tone::Fine;
    if let Some(lost) = evidence.lost {
        tone = Tone::Bad;
        words.push(format!("{}.", capital(&lost.reason)));
        advice.push(capital(&lost.remedy));
    }
    let throttled = throttling(evidence, &causes);
    match &throttled {
        Some((sentence, limits)) => {
            tone = Tone::Bad;
            words.push(sentence.clone());
            words.extend(limits.iter().filter_map(|limit| why(evidence, *limit)));
            advice.extend(limits.iter().flat_map(|limit| remedy(evidence, *limit)));
        }
        None if !evidence.ledger.told_reasons() => {
            tone = if tone == Tone::Fine { Tone::Unknown } else { tone };
            words.push(match evidence.ledger.looked_in_vain() {
                true => {
                    "Can't tell whether it is throttled: too few looks at it, or too far apart.".to_owned()
                }
                false => format!(
                    "Can't tell whether it is throttled: there are no clock event reasons, {}{}.",
                    evidence.reasons_refused.unwrap_or("none was read yet"),
                    clock_words(evidence)
                ),
            });
        }
        None if evidence.lost.is_some() => {}
        None => words.push(harmless(evidence, &causes).unwrap_or_else(|| idle_or_free(evidence))),
    }
    for (sentence, what_to_do, bad) in findings(evidence, &causes) {
        tone = match (tone, bad) {
            (Tone::Fine | Tone::Note, true) => Tone::Bad,
            (Tone::Fine, false) => Tone::Note,
            (tone, _) => tone,
        };
        words.push(sentence);
        advice.push(what_to_do);
    }
    Some(Diagnosis { verdict: words.join(" "), tone, throttled: throttled.is_some(), causes, advice })
}

/// Every limit of every kind of work, the costliest first.
fn causes(evidence: &Evidence<'_>) -> Vec<Cause> {
    let ledger = evidence.ledger;
    let span_s = ledger.span_s();
    let mut causes = Vec::new();
    for work in Work::ALL {
        let account = ledger.of(work);
        for (limit, held) in &account.limits {
            let (share, source) = share_of(account, held);
            if share <= 0.0 {
                continue;
            }
            let active_s = share * account.time_ns / 1e9;
            let cost = || cost(ledger, work, (*limit, held), evidence.info, evidence.workload);
            let of = work.is_load().then(cost).flatten();
            let lost = of.as_ref().map(|cost| share * cost.while_held);
            causes.push(Cause {
                reason: limit.name(),
                limit: *limit,
                phase: work.name(),
                work,
                fault: limit.fault(),
                time_share: share,
                active_s,
                time_source: source,
                sampled_s: held.sampled_ns / 1e9,
                clock_mhz: held.clock_mhz.value(),
                clock_free_mhz: free_clock(ledger, work, *limit, held, evidence.info).map(|(mhz, _)| mhz),
                cost_pct: lost.map(|lost| 100.0 * lost),
                ms_per_token: lost.and_then(|lost| {
                    (work == Work::Decode).then(|| evidence.tpot_ms.map(|tpot| tpot * lost)).flatten()
                }),
                tokens_lost: lost.and_then(|lost| {
                    (account.tokens > 0).then(|| account.tokens as f64 * lost / (1.0 - lost))
                }),
                run_share: if span_s > 0.0 { (active_s / span_s).min(1.0) } else { 0.0 },
                basis: match of {
                    Some(Cost { basis, .. }) => basis,
                    None if work.is_load() => {
                        "what it costs is not known: no clock without it was seen".to_owned()
                    }
                    None => "nothing to be slowed down".to_owned(),
                },
            });
        }
    }
    let rank = |cause: &Cause| (cause.fault == Some(true), cause.cost_pct.unwrap_or(0.0), cause.time_share);
    causes.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal));
    causes
}

/// The part of the time in which a limit held, and who says so. A counter that does not count while every look finds
/// the limit is not believed.
fn share_of(account: &Account, held: &Held) -> (f64, &'static str) {
    let looked = if account.seen_ns > 0.0 { held.sampled_ns / account.seen_ns } else { 0.0 };
    let counted = held.counted_ns.filter(|_| held.covered_ns > 0.0).map(|ns| (ns / held.covered_ns).min(1.0));
    match counted {
        Some(counted) if counted >= DEAD_COUNTER * looked => (counted, "counter"),
        _ => (looked, "samples"),
    }
}

/// The fault that costs `work` most, if any is worth a word.
fn worst<'a>(evidence: &Evidence<'_>, causes: &'a [Cause], work: Work) -> Option<&'a Cause> {
    causes.iter().find(|cause| {
        cause.work == work
            && cause.fault == Some(true)
            && !is_explained(evidence.ledger.of(work), cause.limit)
            && cause.time_share >= WORTH_A_WORD_SHARE
            && cause.cost_pct.is_none_or(|pct| pct >= WORTH_A_WORD_PCT)
    })
}

/// What is slowed down and what is not, in one sentence, and the limits it speaks of.
fn throttling(evidence: &Evidence<'_>, causes: &[Cause]) -> Option<(String, Vec<Limit>)> {
    let there = |work: &Work| evidence.ledger.of(*work).time_ns > 0.0;
    let ours: Vec<Work> = [Work::Prefill, Work::Decode].into_iter().filter(there).collect();
    // What others did before our work began is not asked for.
    let present = if ours.is_empty() { vec![Work::Busy] } else { ours };
    let (mut hit, mut spared, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let mut unseen = Vec::new();
    for work in present {
        match worst(evidence, causes, work) {
            Some(cause) => {
                hit.push(format!("{} is {}", work.name(), told(cause)));
                if !limits.contains(&cause.limit) {
                    limits.push(cause.limit);
                }
            }
            None if evidence.ledger.of(work).seen_ns > 0.0 => spared.push(work.name()),
            None => unseen.push(work.name()),
        }
    }
    if hit.is_empty() {
        return None;
    }
    let mut sentence = capital(&hit.join("; "));
    if !spared.is_empty() {
        let are = if spared.len() > 1 { "are" } else { "is" };
        sentence += &format!("; {} {are} not affected", spared.join(" and "));
    }
    if !unseen.is_empty() {
        sentence += &format!("; {} was too short to be seen", unseen.join(" and "));
    }
    Some((sentence + ".", limits))
}

/// "power-capped: 99 % of the time, SM 1980 → 1440 MHz, about 27 % slower"
fn told(cause: &Cause) -> String {
    let mut words = format!("{}: {} of the time", state_of(cause.limit), percent(100.0 * cause.time_share));
    if let (Some(free), Some(clock)) = (cause.clock_free_mhz, cause.clock_mhz) {
        words += &format!(", SM {free:.0} → {clock:.0} MHz");
    }
    match cause.cost_pct {
        Some(pct) if cause.basis.starts_with("measured") => {
            words += &format!(", {} slower (measured)", percent(pct))
        }
        Some(pct) => words += &format!(", about {} slower", percent(pct)),
        None => {}
    }
    words
}

fn state_of(limit: Limit) -> String {
    match limit {
        Limit::Bit(SW_POWER_CAP) => "power-capped".to_owned(),
        Limit::Bit(SW_THERMAL | HW_THERMAL) => "slowed down by heat".to_owned(),
        Limit::Bit(HW_POWER_BRAKE) => "braked by the power supply".to_owned(),
        Limit::Bit(HW_SLOWDOWN) => "slowed down by the hardware".to_owned(),
        Limit::Bit(SYNC_BOOST) => "held by sync boost".to_owned(),
        other => format!("held by the {}", other.name()),
    }
}

/// The limit itself, in a sentence.
fn why(evidence: &Evidence<'_>, limit: Limit) -> Option<String> {
    let info = evidence.info;
    match limit {
        Limit::Bit(SW_POWER_CAP) => {
            let (now, most) = (info.power_limit_w?, info.power_limit_max_w);
            Some(match (most, info.power_limit_default_w) {
                (Some(most), _) if now >= most - 0.5 => {
                    format!("The {now:.0} W limit is the card's maximum.")
                }
                (_, Some(default)) if now < default - 0.5 => {
                    format!("The limit is {now:.0} W; the card comes with {default:.0} W.")
                }
                (Some(most), _) => format!("The limit is {now:.0} W of {most:.0} W that it may be set to."),
                _ => format!("The limit is {now:.0} W."),
            })
        }
        Limit::Bit(SW_THERMAL | HW_THERMAL | HW_SLOWDOWN) => {
            let (temp, slowdown) = (evidence.temp_c?, info.slowdown_temp_c?);
            let margin = f64::from(slowdown) - temp;
            Some(match margin > 0.0 {
                true => format!(
                    "It is at {temp:.0} °C now, {margin:.0} below the {slowdown} °C at which it slows down."
                ),
                false => format!("It is at {temp:.0} °C; it slows down at {slowdown} °C."),
            })
        }
        _ => None,
    }
}

fn remedy(evidence: &Evidence<'_>, limit: Limit) -> Vec<String> {
    let info = evidence.info;
    let index = info.index;
    match limit {
        Limit::Bit(SW_POWER_CAP) => match (info.power_limit_w, info.power_limit_max_w) {
            (Some(now), Some(most)) if now < most - 0.5 => vec![format!(
                "`sudo nvidia-smi -i {index} -pl {most:.0}` raises the power limit from {now:.0} W to the card's maximum; \
                 mind the power supply and the cooling"
            )],
            (Some(_), Some(_)) => vec![
                "The limit cannot be raised. The same work in a smaller type (fp8, int8, int4) draws less power per \
                 token; a lower clock would not be slower than the cap makes it"
                    .to_owned(),
            ],
            _ => vec![format!("`nvidia-smi -i {index} -q -d POWER` shows what the limit may be set to")],
        },
        Limit::Bit(SW_THERMAL | HW_THERMAL) => {
            let fan = match evidence.fan_pct {
                Some(pct) if pct < 90.0 => format!(" The fan is at {}: a steeper fan curve has room.", percent(pct)),
                Some(pct) => format!(" The fan is at {} already.", percent(pct)),
                None => " No fan of its own was read: the machine's airflow may be what cools it.".to_owned(),

            };
            vec![format!(
                "Cool it: airflow, dust, the temperature of the room, the distance to the next card.{fan} A lower power \
                 limit (`nvidia-smi -pl`) holds a steadier clock than heat does"
            )]
        }
        Limit::Bit(HW_POWER_BRAKE) => vec![
            "The machine asks the card to brake: look at the power supply, its cables and the server's power policy"
                .to_owned(),
        ],
        Limit::Bit(HW_SLOWDOWN) => {
            vec!["Look at the power cables and the temperature: the hardware halves the clock to protect itself".to_owned()]
        }
        Limit::Bit(SYNC_BOOST) => {
            vec!["Another GPU of its sync boost group sets the clock: take this one out of the group".to_owned()]
        }
        Limit::Board => vec!["The board's regulators are at their limit: look at the supply and the cooling".to_owned()],
        Limit::Reliability => vec!["The voltage is at its limit: a lower clock would run as fast".to_owned()],
        Limit::Bit(_) => Vec::new(),
    }
}

/// What else is worth knowing: a sentence, what to do, and whether it is bad.
fn findings(evidence: &Evidence<'_>, causes: &[Cause]) -> Vec<(String, String, bool)> {
    let info = evidence.info;
    let mut found = Vec::new();
    if !evidence.others.is_empty() {
        let names = evidence.others.iter().map(GpuProcess::to_string).collect::<Vec<_>>().join(", ");
        found.push((
            format!("The card is shared with {names}: these figures are not the workload's alone."),
            "End the other process, or run on another card (hardware.device_index)".to_owned(),
            true,
        ));
    }
    if let (Some(width), Some(most)) = (evidence.pcie_width, info.pcie_width_max)
        && width > 0.0
        && width < f64::from(most)
    {
        found.push((
            format!("The PCIe link has {width:.0} of {most} lanes."),
            "Reseat the card, try another slot, or look at the slot's lanes in the BIOS: loading weights and copies to \
             and from the host suffer, a decode on the card hardly"
                .to_owned(),
            true,
        ));
    }
    if let (Some(seen), Some(most)) = (evidence.ledger.pcie_gen_under_load(), info.pcie_gen_max)
        && seen < f64::from(most)
    {
        found.push((
            format!("The PCIe link runs at generation {seen:.0} of {most} under load."),
            "Look at the slot, the riser and the BIOS setting of its speed: loading weights and copies to and from the host \
             suffer"
                .to_owned(),
            true,
        ));
    }
    if let Some(cause) = set_clocks(causes) {
        let clock = cause.clock_mhz.unwrap_or_default();
        let free = info.sm_clock_max_mhz.map_or_else(String::new, |mhz| format!(" of {mhz}"));
        let cost = cause.cost_pct.filter(|pct| *pct >= WORTH_A_WORD_PCT);
        let cost =
            cost.map_or_else(String::new, |pct| format!(": {} about {} slower", cause.phase, percent(pct)));
        found.push((
            format!("Someone has set the SM clock to {clock:.0}{free} MHz{cost}."),
            format!(
                "`sudo nvidia-smi -i {0} -rgc` and `sudo nvidia-smi -i {0} -rac` give the clock free, if that was not meant",
                info.index
            ),
            false,
        ));
    }
    let new = |cause: &&Cause| cause.fault.is_none() && cause.time_share >= WORTH_A_WORD_SHARE;
    let mut told: Vec<Limit> = Vec::new();
    for cause in causes.iter().filter(new) {
        if !told.contains(&cause.limit) {
            told.push(cause.limit);
            found.push((
                format!(
                    "The card tells a reason that is new to this program ({}), {} of the time in {}.",
                    cause.reason,
                    percent(100.0 * cause.time_share),
                    cause.phase
                ),
                "`nvidia-smi -q -d PERFORMANCE` of the same driver may have a name for it".to_owned(),
                false,
            ));
        }
    }
    if let Some(share) = evidence.device_share.filter(|share| *share < BUSY_ENOUGH) {
        found.push((
            format!("The GPU waits for the CPU {} of the decode time.", percent(100.0 * (1.0 - share))),
            "Launches are the limit, not the card: fewer kernels, CUDA graphs, a faster or less busy core"
                .to_owned(),
            true,
        ));
    }
    found
}

fn set_clocks(causes: &[Cause]) -> Option<&Cause> {
    let set = |cause: &&Cause| cause.limit == Limit::Bit(APPLICATION_CLOCKS) && cause.work.is_load();
    let slower = |cause: &&Cause| {
        cause.clock_mhz.zip(cause.clock_free_mhz).is_some_and(|(clock, free)| clock < 0.98 * free)
    };
    causes.iter().filter(set).find(slower)
}

/// The limit that held longest and took nothing.
fn harmless(evidence: &Evidence<'_>, causes: &[Cause]) -> Option<String> {
    let held = causes.iter().filter(|cause| {
        cause.work.is_load()
            && cause.fault == Some(true)
            && !is_explained(evidence.ledger.of(cause.work), cause.limit)
            && cause.time_share >= WORTH_A_WORD_SHARE
    });
    let cause = held.max_by(|a, b| a.active_s.total_cmp(&b.active_s))?;
    Some(format!(
        "Not slowed down: the {} held {} of {}'s time at no cost that can be seen.",
        cause.reason,
        percent(100.0 * cause.time_share),
        cause.phase
    ))
}

/// "Not throttled", or that there was nothing to throttle.
fn idle_or_free(evidence: &Evidence<'_>) -> String {
    let load: f64 =
        Work::ALL.iter().filter(|work| work.is_load()).map(|work| evidence.ledger.of(*work).time_ns).sum();
    let now = evidence.ledger.faults_now();
    if now != 0 {
        // Too little of the whole to be worth a word, but it is there as this is said.
        let names: Vec<_> = reasons::found(now).map(|found| found.name()).collect();
        return format!("Held by the {} at this moment, little of the time so far.", names.join(" and the "));
    }
    if load <= 0.0 {
        "The card is idle.".to_owned()
    } else {
        format!("Not throttled{}.", clock_words(evidence))
    }
}

fn clock_words(evidence: &Evidence<'_>) -> String {
    let works = [Work::Decode, Work::Prefill, Work::Busy];
    let clock = works.iter().find_map(|work| evidence.ledger.of(*work).clock_mhz.value());
    match (clock, evidence.info.sm_clock_max_mhz) {
        (Some(mhz), Some(most)) => format!(" (SM clock {mhz:.0} of {most} MHz)"),
        _ => String::new(),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
