//! The verdict on a GPU: what limits it, the cost, and the remedy.

use std::time::Duration;

use jiff::civil::DateTime;

use super::{
    Basis, Cost, Episode, GpuActivity, Ledger, Limit, LimitTime, TimeSource,
    advice::{describe_limit, remedy},
    evidence::{Cause, Diagnosis, Evidence, MIN_COST_PCT, MIN_TIME_SHARE, Tone},
    findings::{findings, unexplained_clocks},
    slowdown::{cost, free_clock},
};
use llmprof_base::units::{clock, percent};
use llmprof_event::{GpuInfo, GpuSource, Query, Refusal, Stamp, reasons};

const DATE_TIME: &str = "%Y-%m-%d %H:%M:%S";
const TIME: &str = "%H:%M:%S";
/// The same for a second limit of a phase.
const MIN_FURTHER_TIME_SHARE: f64 = 0.1;
/// With fewer samples in a phase, a limit may have been active between them.
const MIN_SAMPLES: u64 = 10;

/// The verdict on the evidence; `None` before the first sample of the GPU.
pub fn diagnose(evidence: &Evidence<'_>) -> Option<Diagnosis> {
    let ledger = evidence.ledger;
    if evidence.lost.is_none() && ledger.span_s() <= 0.0 {
        return None;
    }
    let causes = causes(evidence);
    let mut sentences = Vec::new();
    let mut advice = Vec::new();
    let mut tone = Tone::Fine;
    if let Some(lost) = evidence.lost {
        tone = Tone::Bad;
        sentences.push(format!("{}.", capitalise(&lost.reason)));
        advice.push(capitalise(&lost.remedy));
    }
    let throttling = throttling(evidence, &causes);
    let throttled = throttling.is_some();
    let unexplained = unexplained_clocks(evidence, &causes);
    match throttling {
        Some((sentence, limits)) => {
            tone = Tone::Bad;
            sentences.push(sentence);
            sentences.extend(episodes(evidence, &causes));
            sentences.extend(limits.iter().filter_map(|limit| describe_limit(evidence, *limit)));
            advice.extend(limits.iter().filter_map(|limit| remedy(evidence, *limit)));
        }
        None if !ledger.has_reasons() => {
            tone = if tone == Tone::Fine { Tone::Unknown } else { tone };
            sentences.push(match ledger.is_too_sparse() {
                true => "Throttling unknown: too few samples, or too long between them.".to_owned(),
                false => {
                    format!("Throttling unknown: {}{}.", missing_reasons(evidence.info), mean_clock(evidence))
                }
            });
        }
        None if evidence.lost.is_some() || !unexplained.is_empty() => {}
        None => {
            sentences.push(harmless(&causes).unwrap_or_else(|| unthrottled(evidence)));
            sentences.extend(unjudged(evidence));
        }
    }
    for finding in unexplained.into_iter().chain(findings(evidence, &causes)) {
        tone = match (tone, finding.tone) {
            (Tone::Fine | Tone::Note, Tone::Bad) => Tone::Bad,
            (Tone::Fine, Tone::Note) => Tone::Note,
            (tone, _) => tone,
        };
        sentences.push(finding.sentence);
        advice.push(finding.remedy);
    }
    Some(Diagnosis { verdict: sentences.join(" "), tone, throttled, causes, advice })
}

/// Every limit of every kind of work, the most expensive first.
fn causes(evidence: &Evidence<'_>) -> Vec<Cause> {
    let Evidence { ledger, info, workload, tpot_ms, .. } = *evidence;
    let span_s = ledger.span_s();
    let mut causes = Vec::new();
    for phase in GpuActivity::ALL {
        let account = ledger.account(phase);
        for (limit, time) in &account.limits {
            let (time_share, time_source) = account.active_share(time);
            if time_share <= 0.0 {
                continue;
            }
            let active_s = time_share * account.time_ns / 1e9;
            let (cost, basis) = cost(ledger, phase, (*limit, time), info, workload);
            let cost = cost.map(|while_active| while_active.over(time_share));
            let lost = cost.map(Cost::expected);
            let clock_mhz = time.clock_mhz.value();
            let free_clock = free_clock(ledger, phase, (*limit, time), info);
            let free_range = free_clock.zip(clock_mhz).map(|(free, limited)| free.range(limited));
            causes.push(Cause {
                reason: limit.name().into_owned(),
                limit: *limit,
                phase,
                fault: limit.fault(),
                time_share,
                active_s,
                time_source,
                sampled_s: time.sampled_ns / 1e9,
                alone_s: time.alone_ns / 1e9,
                clock_mhz,
                clock_free_mhz: free_range.map(|(least, most)| (least + most) / 2.0),
                free_clock,
                cost_pct: lost.map(|lost| 100.0 * lost),
                cost_range_pct: cost.and_then(Cost::range_pct),
                cost,
                ms_per_token: lost
                    .zip(tpot_ms.filter(|_| phase == GpuActivity::Decode))
                    .map(|(lost, ms)| ms * lost),
                tokens_lost: lost
                    .filter(|_| account.tokens > 0)
                    .map(|lost| account.tokens as f64 * lost / (1.0 - lost)),
                run_share: if span_s > 0.0 { (active_s / span_s).min(1.0) } else { 0.0 },
                basis,
            });
        }
    }
    let rank = |cause: &Cause| (cause.fault == Some(true), cause.cost_pct.unwrap_or(0.0), cause.time_share);
    causes.sort_by(|a, b| rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal));
    causes
}

/// Whether a cause is a fault that is active often enough to report.
fn is_relevant_fault(cause: &Cause) -> bool {
    cause.fault == Some(true) && cause.time_share >= MIN_TIME_SHARE
}

/// The kinds of work that are judged. External load is judged only if there is no workload.
fn judged_work(ledger: &Ledger) -> Vec<GpuActivity> {
    let mut present = vec![GpuActivity::Prefill, GpuActivity::Decode];
    present.retain(|work| ledger.account(*work).time_ns > 0.0);
    if present.is_empty() { vec![GpuActivity::Busy] } else { present }
}

/// What is throttled and what is not, in one sentence, with the limits it names.
fn throttling(evidence: &Evidence<'_>, causes: &[Cause]) -> Option<(String, Vec<Limit>)> {
    let (mut throttled, mut unaffected, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let mut limits = Vec::new();
    for work in judged_work(evidence.ledger) {
        let account = evidence.ledger.account(work);
        let subject = if work == GpuActivity::Busy { "the GPU" } else { work.name() };
        let costs = |cause: &&Cause| {
            cause.phase == work
                && is_relevant_fault(cause)
                && cause.cost_pct.is_none_or(|pct| pct >= MIN_COST_PCT)
        };
        let active: Vec<&Cause> = causes.iter().filter(costs).collect();
        match active.split_first() {
            Some((first, others)) => {
                let (mut together, mut further) = (vec![*first], String::new());
                for cause in others.iter().filter(|cause| cause.time_share >= MIN_FURTHER_TIME_SHARE) {
                    match coincide(first, cause) {
                        true => together.push(cause),
                        false => further += &format!(", and {}", describe_further(cause)),
                    }
                }
                let named = active.iter().filter(|cause| cause.time_share >= MIN_FURTHER_TIME_SHARE);
                limits.extend([first].into_iter().chain(named).map(|cause| cause.limit));
                throttled.push(format!("{subject} is {}{further}", describe(&together, account.samples)));
            }
            None if account.samples >= MIN_SAMPLES => unaffected.push(subject),
            None => unknown.push(format!("{subject} ({})", account.samples)),
        }
    }
    if throttled.is_empty() {
        return None;
    }
    let mut sentence = capitalise(&throttled.join("; "));
    if !unaffected.is_empty() {
        let are = if unaffected.len() > 1 { "are" } else { "is" };
        sentence += &format!("; {} {are} not affected", unaffected.join(" and "));
    }
    if !unknown.is_empty() {
        sentence += &format!("; too few samples in {} to judge", unknown.join(" and "));
    }
    Some((sentence + ".", distinct(&limits)))
}

/// In order of their first mention.
fn distinct(limits: &[Limit]) -> Vec<Limit> {
    let mut distinct = Vec::new();
    for limit in limits {
        if !distinct.contains(limit) {
            distinct.push(*limit);
        }
    }
    distinct
}

/// Whether two limits were only active together.
fn coincide(a: &Cause, b: &Cause) -> bool {
    let never_alone = |cause: &Cause| cause.sampled_s > 0.0 && cause.alone_s <= 0.02 * cause.sampled_s;
    never_alone(a) && never_alone(b) && (a.sampled_s / b.sampled_s - 1.0).abs() <= 0.02
}

/// "power-capped: 99 % of the time, SM 1980 → 1440 MHz, about 27 % slower"
fn describe(together: &[&Cause], samples: u64) -> String {
    let Some(cause) = together.first() else { return String::new() };
    let limits: Vec<_> = together.iter().map(|cause| cause.limit.participle()).collect();
    let mut text = format!("{}: {} of the time", limits.join(" and "), percent(100.0 * cause.time_share));
    if cause.time_source == TimeSource::Samples && samples < MIN_SAMPLES {
        let s = if samples == 1 { "" } else { "s" };
        text += &format!(" ({samples} sample{s} only)");
    }
    if let (Some(free), Some(clock)) = (cause.free_clock, cause.clock_mhz) {
        text += &format!(", SM {free} → {clock:.0} MHz");
    }
    match (cause.cost, cause.basis) {
        (Some(cost), Basis::Measured { .. }) => text += &format!(", {cost} slower (measured)"),
        (Some(cost), _) if cost.range_pct().is_some() => text += &format!(", {cost} slower"),
        (Some(cost), _) => text += &format!(", about {cost} slower"),
        (None, _) => {}
    }
    text
}

/// A limit that was active in a larger share of its phase was not active "only" then.
const MOST_OF_THE_PHASE: f64 = 0.5;

/// "The limit was active only from 3:00:00 to 4:00:00 after the start (about 29 % slower).", for the most expensive limit, if it was active in a small
/// part of the run.
fn episodes(evidence: &Evidence<'_>, causes: &[Cause]) -> Option<String> {
    let Evidence { ledger, info, workload, .. } = *evidence;
    let cause = causes.iter().find(|cause| is_relevant_fault(cause) && cause.phase.is_load())?;
    // In most of the phase: its intervals are those of the work.
    if cause.time_share > MOST_OF_THE_PHASE {
        return None;
    }
    let time = ledger.account(cause.phase).limit(cause.limit)?;
    let found = time.episodes.named(ledger.span_s());
    let while_active =
        cause.cost.filter(|_| cause.time_share > 0.0).map(|cost| cost.over(1.0 / cause.time_share));
    let texts: Vec<String> = found
        .iter()
        .map(|episode| {
            // If there are several episodes, each has its own clock and therefore its own cost.
            let of_its_clock = LimitTime { clock_mhz: episode.clock_mhz, ..LimitTime::default() };
            let own = || cost(ledger, cause.phase, (cause.limit, &of_its_clock), info, workload).0;
            let cost = if found.len() == 1 { while_active } else { own() };
            let cost = cost.map_or_else(String::new, |cost| {
                format!(" (about {} slower)", cost.over(episode.active_share()))
            });
            format!("{}{cost}", interval(episode, evidence.began))
        })
        .collect();
    (!texts.is_empty()).then(|| format!("The limit was active only {}.", texts.join(", and ")))
}

/// By the date and time of a log, else by the time since the start.
fn interval(episode: &Episode, began: Option<DateTime>) -> String {
    let Episode { from, to, .. } = *episode;
    let since_start = |t: Stamp| clock(Duration::from_nanos(t.0));
    let at = |t: Stamp| began?.checked_add(Duration::from_nanos(t.0)).ok();
    match (at(from), at(to)) {
        (Some(from), Some(to)) if from.date() == to.date() => {
            format!("from {} to {}", from.strftime(DATE_TIME), to.strftime(TIME))
        }
        (Some(from), Some(to)) => format!("from {} to {}", from.strftime(DATE_TIME), to.strftime(DATE_TIME)),
        _ => format!("from {} to {} after the start", since_start(from), since_start(to)),
    }
}

/// A further limit. If another one was active at the same time, its own cost is not known.
fn describe_further(cause: &Cause) -> String {
    match cause.alone_s < 0.9 * cause.sampled_s {
        true => format!("{}: {} of the time", cause.limit.participle(), percent(100.0 * cause.time_share)),
        false => describe(&[cause], u64::MAX),
    }
}

/// The limit that was active longest without a cost.
fn harmless(causes: &[Cause]) -> Option<String> {
    let active = causes.iter().filter(|cause| cause.phase.is_load() && is_relevant_fault(cause));
    let cause = active.max_by(|a, b| a.active_s.total_cmp(&b.active_s))?;
    Some(format!(
        "Not slowed down: the {} was active in {} of the {} time, without measurable cost.",
        cause.reason,
        percent(100.0 * cause.time_share),
        cause.phase
    ))
}

/// "Not throttled", or that there was no load to throttle.
fn unthrottled(evidence: &Evidence<'_>) -> String {
    let ledger = evidence.ledger;
    let now = ledger.current_faults();
    if now != 0 {
        // Too short to be a cause, but active at the moment.
        let names: Vec<_> = reasons::active(now).map(|reason| reason.name()).collect();
        return format!("Limited by the {} now, but rarely so far.", names.join(" and the "));
    }
    match GpuActivity::ALL.iter().any(|work| work.is_load() && ledger.account(*work).time_ns > 0.0) {
        true if ledger.unread_reasons != 0 => {
            let names: Vec<_> = reasons::active(ledger.unread_reasons).map(|reason| reason.name()).collect();
            format!(
                "None of the limits in the log was active{}. It has no column for: {} (nvidia-smi: clocks_event_reasons.active has all).",
                mean_clock(evidence),
                names.join(", ")
            )
        }
        true => format!("Not throttled{}.", mean_clock(evidence)),
        false if ledger.has_phases() => "No sample of the GPU was taken during the workload.".to_owned(),
        false => "The GPU is idle.".to_owned(),
    }
}

/// The phases of a workload with too few samples to judge them. Counters that do not increase replace samples.
fn unjudged(evidence: &Evidence<'_>) -> Option<String> {
    let ledger = evidence.ledger;
    if ledger.counters_stand_still() {
        return None;
    }
    let judged = judged_work(ledger);
    let load_ns: f64 = judged.iter().map(|work| ledger.account(*work).time_ns).sum();
    let too_few = judged.iter().filter(|work| {
        let account = ledger.account(**work);
        **work != GpuActivity::Busy
            && account.samples < MIN_SAMPLES
            && account.time_ns >= MIN_TIME_SHARE * load_ns
    });
    let named: Vec<String> =
        too_few.map(|work| format!("{work} ({})", ledger.account(*work).samples)).collect();
    (!named.is_empty()).then(|| format!("Too few samples in {} to judge.", named.join(" and ")))
}

/// Why there are no clock event reasons.
fn missing_reasons(info: &GpuInfo) -> String {
    match (&info.source, info.refusal(Query::ClockEventReasons).map(|refused| &refused.reason)) {
        (GpuSource::Log, _) => {
            "the log has no clock event reasons (nvidia-smi: clocks_event_reasons.active)".to_owned()
        }
        (GpuSource::Dcgm, _) => {
            "the exporter has no clock event reasons (DCGM_FI_DEV_CLOCKS_EVENT_REASONS in its list of fields)"
                .to_owned()
        }
        (_, Some(Refusal::Unsupported)) => "this GPU does not report clock event reasons".to_owned(),
        (_, Some(refusal)) => format!("clock event reasons: {refusal}"),
        (_, None) => "no clock event reasons were read yet".to_owned(),
    }
}

/// " (SM clock 1440 of 1980 MHz)"
fn mean_clock(evidence: &Evidence<'_>) -> String {
    let loads = [GpuActivity::Decode, GpuActivity::Prefill, GpuActivity::Busy];
    let clock = loads.iter().find_map(|work| evidence.ledger.account(*work).clock_mhz.value());
    match (clock, evidence.info.sm_clock_max_mhz) {
        (Some(mhz), Some(max)) => format!(" (SM clock {mhz:.0} of {max} MHz)"),
        _ => String::new(),
    }
}

fn capitalise(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
