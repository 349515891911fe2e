//! Runs both sides interleaved until the interval is narrow enough: A B, B A, A B, …

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    GatedComparison,
    error::CompareError,
    read::read_run,
    text::{json, markdown},
};
use crate::{
    analysis::{
        compare::{Comparison, HEADLINE, Options, Sample, compare_pairs},
        interval::MIN_VALUES,
    },
    base::units::{millis, ratio_change},
    event::Outcome,
    process::{eprint_line, shutdown::Cause},
    run::{headless, plan::Plan},
};

/// What to run, how often at most, and for how long.
pub struct Repeat {
    pub a: Plan,
    pub b: Plan,
    pub max_pairs: usize,
    pub limit: Option<Duration>,
    /// The directory of the runs and the result.
    pub dir: PathBuf,
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

impl Repeat {
    /// Runs until the interval of TPOT is narrower than the margin, there are enough pairs, the time is up, or a signal arrives.
    pub async fn run(&self, options: &Options) -> Result<Repeated, CompareError> {
        let started = Instant::now();
        let mut pairs: Vec<(Sample, Sample)> = Vec::new();
        while pairs.len() < self.max_pairs.max(MIN_VALUES) {
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
            for (side, plan) in order {
                match self.run_side(side, plan, nth).await? {
                    Ok(sample) => done.push((side, sample)),
                    Err(cause) => return Ok(Repeated { pairs, cause: Some(cause) }),
                }
            }
            done.sort_by_key(|(side, _)| *side);
            if let [(_, a), (_, b)] = &done[..] {
                pairs.push((a.clone(), b.clone()));
            }
            let interval_width = self.report_progress(&pairs, options);
            if pairs.len() >= MIN_VALUES && interval_width.is_some_and(|width| width < options.margin) {
                break;
            }
        }
        Ok(Repeated { pairs, cause: None })
    }

    /// One run of a side, or the signal that ended it.
    async fn run_side(
        &self,
        side: &'static str,
        plan: &Plan,
        nth: usize,
    ) -> Result<Result<Sample, Cause>, CompareError> {
        let plan = Plan { dir: self.dir.join(format!("{}-{nth:02}", side.to_lowercase())), ..plan.clone() };
        let finished = headless::run(plan, true)
            .await
            .map_err(|source| CompareError::Io { path: self.dir.clone(), source })?;
        if let Some(cause) = finished.cause {
            return Ok(Err(cause));
        }
        if finished.summary.finished.outcome == Outcome::Failed {
            let reason =
                finished.summary.finished.cause.unwrap_or_else(|| "without a reported cause".to_owned());
            return Err(CompareError::Failed { side, reason });
        }
        let dir = finished.summary.dir.ok_or(CompareError::NotRecorded { side })?;
        read_run(&dir).map(Ok)
    }

    /// Prints the latest pair and the result so far; returns the width of the interval.
    fn report_progress(&self, pairs: &[(Sample, Sample)], options: &Options) -> Option<f64> {
        let (a, b) = pairs.last()?;
        let tpot = |sample: &Sample| HEADLINE.value(sample).map_or_else(|| "–".to_owned(), millis);
        let only = Options { metrics: vec![HEADLINE], ..options.clone() };
        let ratio = compare_pairs(pairs, &only).and_then(|comparison| comparison.rows.first()?.ratio);
        let so_far = ratio.map_or_else(String::new, |ratio| {
            format!(
                "; so far {} ({} to {})",
                ratio_change(ratio.estimate),
                ratio_change(ratio.low),
                ratio_change(ratio.high)
            )
        });
        eprint_line(format_args!(
            "pair {} of {}: TPOT A {}, B {}{so_far}",
            pairs.len(),
            self.max_pairs,
            tpot(a),
            tpot(b)
        ));
        ratio.map(|ratio| ratio.high - ratio.low)
    }

    /// Writes the result into the directory of the runs.
    pub fn save(&self, gated: &GatedComparison) -> Result<(), CompareError> {
        let write = |name: &str, text: String| {
            let path = self.dir.join(name);
            fs::write(&path, text).map_err(|source| CompareError::Io { path, source })
        };
        let object = json(std::slice::from_ref(gated));
        write("compare.json", serde_json::to_string_pretty(&object).unwrap_or_default() + "\n")?;
        write("compare.md", markdown(gated) + "\n")
    }
}

impl Repeated {
    /// The comparison, with the overrides of both sides as their names; `None` without a pair.
    pub fn comparison(&self, options: &Options, a: &[String], b: &[String]) -> Option<Comparison> {
        let mut comparison = compare_pairs(&self.pairs, options)?;
        let name = |overrides: &[String]| {
            if overrides.is_empty() { "the defaults".to_owned() } else { overrides.join(" ") }
        };
        (comparison.a.name, comparison.b.name) = (name(a), name(b));
        Some(comparison)
    }
}

/// The directory of a repeated comparison, below `runs`.
pub fn repeat_dir(runs: &Path) -> PathBuf {
    let now = jiff::Zoned::now().strftime("%Y-%m-%d_%H-%M-%S").to_string();
    runs.join("compare").join(now)
}
