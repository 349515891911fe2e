//! Runs both sides interleaved, pair by pair: A B, B A, A B, …

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    GatedComparison,
    error::CompareError,
    samples::read_run,
    text::{json, markdown},
};
use crate::{child, headless, plan::Plan};
use llmprof_analysis::{
    compare::{Comparison, HEADLINE, Options, Sample, compare_pairs},
    interval::MIN_VALUES,
};
use llmprof_base::{
    dir::Dir,
    foreign::visible,
    process::{eprint_line, shutdown::Cause},
    units::{clock, millis, ratio_change},
};
use llmprof_config::{Element, Override};
use llmprof_event::Outcome;
use llmprof_record::rundir::{RunDir, comparisons_dir};

/// The distance between the seeds of neighbouring pairs: readable, and unlikely to equal that of two sides.
const SEED_STEP: u64 = 1000;

/// One side: its overrides, and the seed of its first run.
pub struct RepeatSide {
    pub overrides: Vec<Override>,
    pub seed: u64,
}

impl RepeatSide {
    /// The overrides of the `nth` pair, from 1. Each pair has another seed: with one seed, simulated pairs would be
    /// copies, and measured ones would use the same prompts and weights. Both sides of a pair have the same seed,
    /// unless their overrides set different ones.
    fn overrides_of_pair(&self, nth: usize) -> Vec<Override> {
        let mut overrides = self.overrides.clone();
        if nth > 1 {
            let seed = self.seed.wrapping_add(SEED_STEP * (nth as u64 - 1));
            overrides.push(Override::new("runtime.seed", Element::Int(seed.into())));
        }
        overrides
    }
}

/// Creates the plan of a run from its overrides.
pub type PlanRun<'a> = &'a dyn Fn(&[Override]) -> Result<Plan, String>;

/// The sides, the number of pairs, and the time limit.
pub struct Repeat<'a> {
    pub a: RepeatSide,
    pub b: RepeatSide,
    pub pairs: usize,
    pub limit: Option<Duration>,
    /// The directory of the runs and the result.
    pub dir: PathBuf,
    /// Runs everything in this process; otherwise each run has its own process.
    pub same_process: Option<PlanRun<'a>>,
}

/// The completed pairs, and the signal that ended the comparison early.
pub struct Repeated {
    pub pairs: Vec<(Sample, Sample)>,
    pub cause: Option<Cause>,
}

/// The overrides of both sides, from the arguments around `vs`.
pub fn split_sides(arguments: &[String]) -> Result<(Vec<String>, Vec<String>), CompareError> {
    let mut parts = arguments.split(|argument| argument == "vs");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(a), Some(b), None) if a == b => Err(CompareError::SameSides { overrides: a.join(" ") }),
        (Some(a), Some(b), None) => Ok((a.to_vec(), b.to_vec())),
        _ => Err(CompareError::MissingSides),
    }
}

/// The number of pairs for `--repeat n`, and the reason if it differs.
pub fn pairs_to_run(n: usize) -> (usize, Option<String>) {
    let note =
        || format!("--repeat {n}: an interval needs at least {MIN_VALUES} pairs, so {MIN_VALUES} are run");
    if n < MIN_VALUES { (MIN_VALUES, Some(note())) } else { (n, None) }
}

impl Repeat<'_> {
    /// Runs all pairs, unless the time is over or a signal arrives.
    pub async fn run(&self, options: &Options) -> Result<Repeated, CompareError> {
        let started = Instant::now();
        let mut pairs: Vec<(Sample, Sample)> = Vec::new();
        while pairs.len() < self.pairs {
            if self.limit.is_some_and(|limit| started.elapsed() >= limit) {
                eprint_line(format_args!("--max-time reached after {} pairs", pairs.len()));
                break;
            }
            let nth = pairs.len() + 1;
            // A B, B A, …: drift affects both sides alike.
            let b_first = !pairs.len().is_multiple_of(2);
            let order =
                if b_first { [("B", &self.b), ("A", &self.a)] } else { [("A", &self.a), ("B", &self.b)] };
            let mut done: Vec<(&str, Sample)> = Vec::new();
            for (name, side) in order {
                match self.run_side(name, side, nth).await? {
                    Ok(sample) => done.push((name, sample)),
                    Err(cause) => return Ok(Repeated { pairs, cause: Some(cause) }),
                }
            }
            done.sort_by_key(|(side, _)| *side);
            if let [(_, a), (_, b)] = &done[..] {
                pairs.push((a.clone(), b.clone()));
            }
            self.report_progress(&pairs, started.elapsed(), options);
        }
        Ok(Repeated { pairs, cause: None })
    }

    /// One run of a side, or the signal that ended it.
    async fn run_side(
        &self,
        name: &'static str,
        side: &RepeatSide,
        nth: usize,
    ) -> Result<Result<Sample, Cause>, CompareError> {
        let dir = self.dir.join(format!("{}-{nth:02}", name.to_lowercase()));
        let overrides = side.overrides_of_pair(nth);
        let io_error = |source| CompareError::Io { path: self.dir.clone(), source };
        let failed = |reason: String| CompareError::Failed { side: name, reason };
        let Some(plan) = self.same_process else {
            let ended = child::run(&overrides, &dir).await.map_err(io_error)?;
            if let Some(cause) = ended.cause {
                return Ok(Err(cause));
            }
            let success = ended.status.is_some_and(|status| status.success());
            if success && !RunDir::open(&dir).events().exists() {
                return Err(CompareError::NotRecorded { side: name });
            }
            let sample = read_run(&dir);
            // Losses of a completed run are part of its trust.
            let completed = |sample: &Sample| sample.facts.outcome == Some(Outcome::Completed);
            if !success && !sample.as_ref().is_ok_and(completed) {
                let last = ended.messages.lines().rev().find(|line| !line.trim().is_empty());
                let last = last.map(|line| line.trim_start_matches("error: ").to_owned());
                return Err(failed(last.unwrap_or_else(|| "without a message".to_owned())));
            }
            return sample.map(Ok);
        };
        let plan = Plan { dir, ..plan(&overrides).map_err(failed)? };
        let finished = headless::run(plan, true).await.map_err(io_error)?;
        if let Some(cause) = finished.cause {
            return Ok(Err(cause));
        }
        if finished.summary.finished.outcome == Outcome::Failed {
            let reason = finished.summary.finished.cause;
            return Err(failed(reason.unwrap_or_else(|| "without a reported cause".to_owned())));
        }
        let dir = finished.summary.dir.ok_or(CompareError::NotRecorded { side: name })?;
        read_run(&dir).map(Ok)
    }

    /// Prints the latest pair, the result so far and the time left.
    fn report_progress(&self, pairs: &[(Sample, Sample)], elapsed: Duration, options: &Options) {
        let Some((a, b)) = pairs.last() else { return };
        let tpot = |sample: &Sample| HEADLINE.value(sample).map_or_else(|| "–".to_owned(), millis);
        let only = Options { metrics: vec![HEADLINE], ..options.clone() };
        let ratio = compare_pairs(pairs, &only).and_then(|comparison| comparison.rows.first()?.ratio);
        let mut line = format!("pair {} of {}: TPOT A {}, B {}", pairs.len(), self.pairs, tpot(a), tpot(b));
        if let Some(ratio) = ratio {
            line += &format!(
                "; so far {} ({} to {})",
                ratio_change(ratio.estimate),
                ratio_change(ratio.low),
                ratio_change(ratio.high)
            );
        }
        let left = self.pairs.saturating_sub(pairs.len());
        if left > 0 {
            line += &format!("; about {} left", clock(elapsed.mul_f64(left as f64 / pairs.len() as f64)));
        }
        eprint_line(line);
    }

    /// Writes the result into the directory of the runs.
    pub fn save(&self, gated: &GatedComparison) -> Result<(), CompareError> {
        let write = |name: &str, text: String| {
            let written = Dir::open(&self.dir).and_then(|dir| dir.write(name, text));
            written.map_err(|source| CompareError::Io { path: self.dir.join(name), source })
        };
        let object = json(std::slice::from_ref(gated));
        let text = serde_json::to_string_pretty(&object).unwrap_or_default() + "\n";
        write("compare.json", visible(&text).into_owned())?;
        write("compare.md", markdown(gated) + "\n")
    }
}

impl Repeated {
    /// The comparison, with the overrides of both sides as their names; `None` without a pair.
    pub fn comparison(&self, options: &Options, a: &[Override], b: &[Override]) -> Option<Comparison> {
        let mut comparison = compare_pairs(&self.pairs, options)?;
        let name = |overrides: &[Override]| match overrides {
            [] => "the defaults".to_owned(),
            overrides => Override::texts(overrides).join(" "),
        };
        (comparison.a.name, comparison.b.name) = (name(a), name(b));
        Some(comparison)
    }
}

/// The directory of a repeated comparison, below `runs`.
pub fn repeat_dir(runs: &Path) -> PathBuf {
    let now = jiff::Zoned::now().strftime("%Y-%m-%d_%H-%M-%S").to_string();
    comparisons_dir(runs).join(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_different_seeds_and_the_sides_of_a_pair_the_same() {
        let side = |overrides: &[&str]| RepeatSide {
            overrides: overrides.iter().map(|text| Override::parse(text).unwrap()).collect(),
            seed: 7,
        };
        let of_pair = |side: &RepeatSide, nth: usize| Override::texts(&side.overrides_of_pair(nth));
        let (a, b) = (side(&["x=1"]), side(&["x=2"]));
        assert_eq!(of_pair(&a, 1), ["x=1"]);
        assert_eq!(of_pair(&a, 3), ["x=1", "runtime.seed=2007"]);
        assert_eq!(of_pair(&b, 3), ["x=2", "runtime.seed=2007"]);
    }

    #[test]
    fn fewer_pairs_than_an_interval_needs_are_not_run_silently() {
        assert_eq!(pairs_to_run(6), (6, None));
        let (pairs, note) = pairs_to_run(3);
        assert_eq!(pairs, 5);
        assert!(note.unwrap().starts_with("--repeat 3: an interval needs at least 5 pairs"));
    }
}
