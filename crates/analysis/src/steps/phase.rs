//! The phase of a step: how many rows its kernels work on, compared with a decode step.

use super::{Class, StepPhase};
use llmprof_event::kernels::work::{DeviceActivity, WorkKind};

/// From this ratio of rows per sampled token on, a step is a prefill.
const PREFILL_RATIO: f64 = 4.0;
/// Below it, a decode step.
const DECODE_RATIO: f64 = 1.75;
/// Rows of a norm in a step that cannot be decode alone. Larger batches are rare.
const MANY_ROWS: f64 = 256.0;
/// Rows by the norms and by the other kernels, whose blocks have many elements, differ by less.
const ROWS_AGREE: f64 = 0.15;

/// Mean numbers of blocks of the row-wise kernels of a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rows {
    activation: Option<f64>,
    norm: Option<f64>,
    other: Option<f64>,
    sampling: Option<f64>,
    /// Blocks of norm kernels that have one block for each row, or several rows in a block.
    norm_rows: Option<f64>,
    /// They have one row: norms of known libraries, and generated ones with as many blocks as the sampling has sequences.
    one_row_blocks: bool,
    attention_decode: bool,
    attention_prefill: bool,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    n: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.n += 1.0;
    }

    fn value(&self) -> Option<f64> {
        (self.n > 0.0).then(|| self.sum / self.n)
    }
}

impl Rows {
    pub fn from_works(works: &[DeviceActivity], classes: &[Class]) -> Rows {
        let [mut activation, mut norm, mut other, mut sampling, mut norm_rows]: [Mean; 5] =
            Default::default();
        let mut rows = Rows::default();
        let mut sequences = Vec::new();
        for (work, class) in works.iter().zip(classes) {
            let WorkKind::Kernel { launch, .. } = work.kind else { continue };
            let blocks = launch.blocks() as f64;
            match class {
                Class::AttentionDecode => rows.attention_decode = true,
                Class::AttentionPrefill => rows.attention_prefill = true,
                class if class.is_activation() => activation.add(blocks),
                class if class.is_sampling() => {
                    sampling.add(blocks);
                    sequences.push(f64::from(launch.grid[0]));
                }
                class if class.is_norm() => {
                    norm.add(blocks);
                    // With one block a row, the rows are in the first extent alone.
                    if launch.grid[1] == 1 && launch.grid[2] == 1 {
                        norm_rows.add(blocks);
                        rows.one_row_blocks |= *class == Class::Norm;
                    }
                }
                class if class.is_row_wise() => other.add(blocks),
                _ => {}
            }
        }
        let norm_rows = norm_rows.value();
        rows.one_row_blocks |= norm_rows.is_some_and(|rows| sequences.contains(&rows));
        Rows {
            activation: activation.value(),
            norm: norm.value(),
            other: other.value(),
            sampling: sampling.value(),
            norm_rows,
            ..rows
        }
    }

    /// How many times the rows of `base` it has.
    fn ratio(&self, base: &Rows) -> Option<f64> {
        let pairs = [(self.activation, base.activation), (self.norm, base.norm), (self.other, base.other)];
        pairs.into_iter().find_map(|(own, base)| own.zip(base)).map(|(own, base)| own / base.max(1.0))
    }

    /// Sequences that a token was chosen for, where `base` is a decode step.
    pub fn sequences(&self, base: &Rows) -> Option<f64> {
        let (own, one) = self.sampling.zip(base.sampling)?;
        Some(own / one.max(1.0) * base.rows_of_decode())
    }

    /// A token was chosen in it, by kernels whose blocks are known.
    pub fn samples(&self) -> bool {
        self.sampling.is_some()
    }

    /// Rows of a decode step, where they are known.
    fn rows_of_decode(&self) -> f64 {
        self.norm_rows.filter(|rows| self.one_row_blocks && *rows <= MANY_ROWS).unwrap_or(1.0)
    }

    /// The tokens of the step, where its kernels and those of `base`, a decode step, show them: the blocks of its norms, if these grow with
    /// the other kernels; else what those of a single row become.
    pub fn tokens(&self, base: Option<&Rows>) -> Option<u32> {
        let base = base.filter(|base| base.one_row_blocks)?;
        let rows_of_decode = base.norm_rows.filter(|rows| *rows <= MANY_ROWS)?;
        let by_others = self.ratio(base)? * rows_of_decode;
        let agrees = |rows: &f64| (rows / by_others - 1.0).abs() < ROWS_AGREE;
        let single = (rows_of_decode == 1.0).then_some(by_others);
        let rows = self.norm_rows.filter(agrees).or(single)?;
        Some(rows.round().clamp(1.0, f64::from(u32::MAX)) as u32)
    }

    /// Whether steps with these rows may be decode steps, where `base` was one so far.
    pub fn may_decode(&self, base: Option<&Rows>) -> bool {
        let too_many = |rows: f64| self.one_row_blocks && rows > MANY_ROWS;
        let grown = base.and_then(|base| Some(self.ratio(base)? * base.rows_of_decode()));
        let has_grown_too_much = grown.is_some_and(|rows| rows > MANY_ROWS);
        !self.norm_rows.is_some_and(too_many) && !has_grown_too_much && !self.attention_prefill
    }

    /// Fewer rows than `other`, clearly.
    pub fn is_below(&self, other: &Rows) -> bool {
        self.ratio(other).is_some_and(|ratio| ratio < 1.0 / DECODE_RATIO)
    }

    /// The phase, and the rows in those of `base`, which is a decode step.
    pub fn phase(&self, base: Option<&Rows>) -> (StepPhase, Option<u32>) {
        let ratio = base.and_then(|base| self.ratio(base));
        let sampled = base
            .and_then(|base| self.sampling.zip(base.sampling))
            .map_or(1.0, |(own, base)| (own / base.max(1.0)).max(1.0));
        let base_rows = base.map_or(1.0, Rows::rows_of_decode);
        let tokens = ratio.map(|ratio| (ratio * base_rows).round().clamp(1.0, f64::from(u32::MAX)) as u32);
        let many = self.norm_rows.is_some_and(|rows| self.one_row_blocks && rows > MANY_ROWS);
        let phase = match (self.attention_decode, self.attention_prefill, ratio.map(|ratio| ratio / sampled))
        {
            (true, true, _) => StepPhase::Mixed,
            // Some engines decode with the kernels of a prefill, so rows decide where they are known.
            (false, true, None) => StepPhase::Prefill,
            (_, _, Some(ratio)) if ratio >= PREFILL_RATIO => StepPhase::Prefill,
            (_, _, Some(ratio)) if ratio >= DECODE_RATIO => StepPhase::Mixed,
            (true, _, _) => StepPhase::Decode,
            // All steps have many rows: no decode step was seen yet.
            (false, _, Some(_)) if many && sampled < 2.0 && base_rows == 1.0 => StepPhase::Prefill,
            (false, _, _) => StepPhase::Decode,
        };
        (phase, tokens)
    }
}

/// Tells steps with prompts alone from those in which other sequences decode too: by the number of sequences from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Sequences {
    before: Option<f64>,
    /// The most rows for each sequence: about the length of a prompt.
    prompt_rows: f64,
}

impl Sequences {
    /// The phase of the next step with `tokens` rows, of which a token of each of `sequences` was chosen.
    pub fn phase(&mut self, phase: StepPhase, tokens: Option<u32>, sequences: Option<f64>) -> StepPhase {
        let before = std::mem::replace(&mut self.before, sequences);
        let (Some(before), Some(now), Some(tokens)) = (before, sequences, tokens) else { return phase };
        if phase != StepPhase::Prefill || now < 1.0 {
            return phase;
        }
        let rows = f64::from(tokens) / now;
        // Those of the step before continue, and others begin; or one has taken the place of another.
        let joined = now >= before + 0.5;
        let replaced = (now - before).abs() < 0.5 && now >= 1.5 && rows * 2.0 <= self.prompt_rows;
        if joined || replaced {
            return StepPhase::Mixed;
        }
        self.prompt_rows = self.prompt_rows.max(rows);
        phase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(norm: f64, sampling: f64) -> Rows {
        let one_row_blocks = true;
        Rows {
            norm: Some(norm),
            norm_rows: Some(norm),
            one_row_blocks,
            sampling: Some(sampling),
            ..Rows::default()
        }
    }

    #[test]
    fn prompts_beside_sequences_that_decode_are_mixed() {
        use StepPhase::{Decode, Mixed, Prefill};
        let mut sequences = Sequences::default();
        // As a server begins with 16 requests: one, two more, the rest; then one is replaced, and all are.
        for (phase, tokens, now, wanted) in [
            (Decode, 16, 16.0, Decode),
            (Prefill, 496, 1.0, Prefill),
            (Prefill, 994, 3.0, Mixed),
            (Prefill, 6537, 16.0, Mixed),
            (Decode, 16, 16.0, Decode),
            (Prefill, 520, 16.0, Mixed),
            (Decode, 16, 16.0, Decode),
            (Prefill, 8192, 16.0, Prefill),
        ] {
            assert_eq!(
                sequences.phase(phase, Some(tokens), Some(now)),
                wanted,
                "{tokens} rows, {now} sequences"
            );
        }
        assert_eq!(Sequences::default().phase(Prefill, Some(512), Some(1.0)), Prefill);
    }

    #[test]
    fn tokens_are_known_where_a_block_is_known_to_have_one_row() {
        let decode = rows(64.0, 576.0);
        assert_eq!(rows(8192.0, 144.0).tokens(Some(&decode)), Some(8192));
        // Eight rows in a block, as far as anyone knows.
        let generated = Rows { one_row_blocks: false, ..rows(8.0, 576.0) };
        assert_eq!(rows(1024.0, 144.0).tokens(Some(&generated)), None);
        assert_eq!(rows(8192.0, 144.0).tokens(None), None);
    }

    #[test]
    fn rows_compared_with_a_decode_step() {
        let base = rows(1.0, 4.0);
        assert_eq!(rows(1.0, 4.0).phase(Some(&base)), (StepPhase::Decode, Some(1)));
        assert_eq!(rows(512.0, 4.0).phase(Some(&base)), (StepPhase::Prefill, Some(512)));
        assert_eq!(rows(32.0, 128.0).phase(Some(&base)), (StepPhase::Decode, Some(32)), "a larger batch");
        assert_eq!(rows(3.0, 4.0).phase(Some(&base)).0, StepPhase::Mixed);
        let many = rows(2048.0, 4.0);
        assert_eq!(many.phase(Some(&many)).0, StepPhase::Prefill, "no decode step was seen");
        assert_eq!(Rows::default().phase(None), (StepPhase::Decode, None));
        let both = Rows { attention_decode: true, attention_prefill: true, ..base };
        assert_eq!(both.phase(Some(&base)).0, StepPhase::Mixed);
    }
}
