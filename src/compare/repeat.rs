//! Both sides run in turn until the answer is sharp enough: A B, B A, A B, …

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    Judged,
    error::CompareError,
    read::read_run,
    words::{json, markdown},
};
use crate::{
    analysis::compare::{Comparison, HEADLINE, Options, Sample, compare_pairs},
    base::units::{millis, ratio_change},
    event::Outcome,
    process::shutdown::Cause,
    run::{
        headless::{self, say},
        plan::Plan,
    },
};

/// Fewer pairs have no interval.
const LEAST_PAIRS: usize = 5;

/// What to run, how often at the most, and for how long.
pub struct Repeat {
    pub a: Plan,
    pub b: Plan,
    pub most_pairs: usize,
    pub limit: Option<Duration>,
    /// Where the runs and the result are kept.
    pub dir: PathBuf,
}

/// The pairs that were completed, and the signal that ended it early, if one did.
pub struct Repeated {
    pub pairs: Vec<(Sample, Sample)>,
    pub cause: Option<Cause>,
}

/// The overrides of both sides, from the words around `vs`.
pub fn sides(words: &[String]) -> Result<(Vec<String>, Vec<String>), CompareError> {
    let mut parts = words.split(|word| word == "vs");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(a), Some(b), None) if a == b => Err(CompareError::SameSides { overrides: a.join(" ") }),
        (Some(a), Some(b), None) => Ok((a.to_vec(), b.to_vec())),
        _ => Err(CompareError::Sides),
    }
}

impl Repeat {
    /// Runs until TPOT's interval is narrower than the margin, there are enough pairs, time is up, or a signal comes.
    pub async fn run(&self, options: &Options) -> Result<Repeated, CompareError> {
        let begun = Instant::now();
        let mut pairs: Vec<(Sample, Sample)> = Vec::new();
        while pairs.len() < self.most_pairs.max(LEAST_PAIRS) {
            if self.limit.is_some_and(|limit| begun.elapsed() >= limit) {
                say(format_args!("--max-time is over after {} pairs", pairs.len()));
                break;
            }
            let nth = pairs.len() + 1;
            // A B, B A, …: whatever drifts is in neither's favour.
            let b_first = !pairs.len().is_multiple_of(2);
            let order =
                if b_first { [("B", &self.b), ("A", &self.a)] } else { [("A", &self.a), ("B", &self.b)] };
            let mut done: Vec<(&str, Sample)> = Vec::new();
            for (side, plan) in order {
                match self.one(side, plan, nth).await? {
                    Ok(sample) => done.push((side, sample)),
                    Err(cause) => return Ok(Repeated { pairs, cause: Some(cause) }),
                }
            }
            done.sort_by_key(|(side, _)| *side);
            if let [(_, a), (_, b)] = &done[..] {
                pairs.push((a.clone(), b.clone()));
            }
            let narrow = self.told(&pairs, options);
            if narrow && pairs.len() >= LEAST_PAIRS {
                break;
            }
        }
        Ok(Repeated { pairs, cause: None })
    }

    /// One run of a side; the signal that ended it, if one did.
    async fn one(
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
        if finished.ended.finished.outcome == Outcome::Failed {
            let reason = finished.ended.finished.cause.unwrap_or_else(|| "it says not why".to_owned());
            return Err(CompareError::Failed { side, reason });
        }
        let dir = finished.ended.dir.ok_or(CompareError::NotRecorded { side })?;
        read_run(&dir).map(Ok)
    }

    /// Says how far it is; whether the interval is narrower than the margin.
    fn told(&self, pairs: &[(Sample, Sample)], options: &Options) -> bool {
        let Some((a, b)) = pairs.last() else { return false };
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
        say(format_args!(
            "pair {} of {}: TPOT A {}, B {}{so_far}",
            pairs.len(),
            self.most_pairs,
            tpot(a),
            tpot(b)
        ));
        ratio.is_some_and(|ratio| ratio.high - ratio.low < options.margin)
    }

    /// Keeps the result beside the runs.
    pub fn keep(&self, judged: &Judged) -> Result<(), CompareError> {
        let write = |name: &str, text: String| {
            let path = self.dir.join(name);
            fs::write(&path, text).map_err(|source| CompareError::Io { path, source })
        };
        let object = json(std::slice::from_ref(judged));
        write("compare.json", serde_json::to_string_pretty(&object).unwrap_or_default() + "\n")?;
        write("compare.md", markdown(judged) + "\n")
    }
}

impl Repeated {
    /// Of what was run, with the overrides of both sides as their names; `None` without a pair.
    pub fn comparison(&self, options: &Options, a: &[String], b: &[String]) -> Option<Comparison> {
        let mut comparison = compare_pairs(&self.pairs, options)?;
        let name = |overrides: &[String]| {
            if overrides.is_empty() { "the defaults".to_owned() } else { overrides.join(" ") }
        };
        (comparison.a.name, comparison.b.name) = (name(a), name(b));
        Some(comparison)
    }
}

/// Where the runs of a repeated comparison go, below `runs`.
pub fn kept_in(runs: &Path) -> PathBuf {
    let now = jiff::Zoned::now().strftime("%Y-%m-%d_%H-%M-%S").to_string();
    runs.join("compare").join(now)
}
