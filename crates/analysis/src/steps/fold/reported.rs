//! Steps by the ranges that the program itself reports.

use std::ops::Range as Indices;

use super::{
    super::{Basis, Confidence, Finding, Step, Tokens, cut::Cuts, nvtx::Reported},
    Burst, Fold,
};
use llmprof_event::kernels::work::DeviceActivity;

impl Fold {
    /// Steps by the program's ranges in a burst; `None` where no range began in it.
    pub(super) fn reported_steps(
        &mut self,
        works: &[DeviceActivity],
        cuts: Option<&Cuts>,
        ended: bool,
    ) -> Option<(Cuts, Vec<Reported>)> {
        let (first, last) = (works.first()?.start_ns, works.last()?.start_ns);
        // Work that began before the burst was not recorded completely.
        let begin = self.sequence_from.min(first);
        self.reported_while(|start_ns, end_ns| start_ns < begin || end_ns < first);
        let burst_end =
            self.bursts.iter().find(|burst| burst.from_ns == self.sequence_from).and_then(Burst::end);
        let inside: Vec<(u64, u64, Reported)> =
            self.ranges.iter().copied().filter(|(start, ..)| (begin..=last).contains(start)).collect();
        let complete = |range: &(u64, u64, Reported)| burst_end.is_none_or(|end| range.1 <= end);
        let at = |t: u64| works.partition_point(|work| work.start_ns < t);
        // A cut by kernels is more precise: the host runs ahead of the GPU.
        let starts: Vec<usize> = inside
            .iter()
            .enumerate()
            .map(|(i, (start, ..))| {
                let from = at(*start);
                let to = inside.get(i + 1).map_or(works.len(), |(next, ..)| at(*next));
                let fits = |cut: &&Indices<usize>| (from..to).contains(&cut.start);
                cuts.and_then(|cuts| cuts.steps.iter().find(fits)).map_or(from, |cut| cut.start)
            })
            .collect();
        let mut steps = Vec::new();
        let mut reports = Vec::new();
        let mut open_from = starts.first().copied().unwrap_or(works.len());
        for (i, range) in inside.iter().enumerate() {
            let end = match starts.get(i + 1) {
                Some(end) => *end,
                None if ended && complete(range) => works.len(),
                None => break,
            };
            if starts[i] < end {
                steps.push(starts[i]..end);
                reports.push(range.2);
                open_from = end;
            }
        }
        if steps.is_empty() {
            return None;
        }
        let taken = inside.len().min(reports.len());
        let until = inside[taken - 1].0;
        self.ranges.retain(|(start, ..)| *start > until);
        let layers = cuts.map_or(0, |cuts| cuts.layers);
        Some((Cuts { layers, basis: Basis::Nvtx, steps, open_from }, reports))
    }

    /// Steps by the program's ranges that ended before `t_ns` and whose kernels were not recorded.
    pub(super) fn reported_until(&mut self, t_ns: u64) {
        self.reported_while(|_, end_ns| end_ns < t_ns);
    }

    fn reported_while(&mut self, is_over: impl Fn(u64, u64) -> bool) {
        while let Some((start_ns, end_ns, reported)) = self.ranges.front().copied() {
            if !is_over(start_ns, end_ns) {
                break;
            }
            self.ranges.pop_front();
            self.emit(Step {
                start_ns,
                end_ns,
                phase: reported.phase,
                basis: Basis::Nvtx,
                confidence: Confidence::EXACT,
                layers: None,
                tokens: reported.tokens.map(Tokens::Reported),
                attention_ns: None,
                launches: None,
                is_cut: false,
            });
            if matches!(self.finding, Finding::NotFound(_)) {
                let between_bursts = Some(Basis::Nvtx);
                self.finding = Finding::Steps {
                    basis: Basis::Nvtx,
                    layers: 0,
                    confidence: Confidence::EXACT,
                    between_bursts,
                };
            }
        }
    }
}
