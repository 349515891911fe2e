//! What a kernel usually is. Where a burst begins or ends within a step, the place of a GEMM may be mistaken;
//! the other steps know.

use std::collections::HashMap;

use super::super::Class;
use llm_cost::{Operator, OperatorInstance};
use llmprof_event::kernels::{
    Extent,
    work::{DeviceActivity, NameId, WorkKind},
};

/// Kernels that are remembered.
const MAX_KERNELS: usize = 4_096;
/// From so many launches on, and with so large a share, an operator is the usual one.
const MIN_LAUNCHES: u32 = 8;
const MIN_SHARE: f64 = 0.9;

/// Operators of GEMMs by kernel and grid.
#[derive(Debug, Default)]
pub(super) struct Usual(HashMap<(NameId, Extent), Vec<(Operator, u32)>>);

impl Usual {
    /// Learns the operators of a step's GEMMs, and corrects those that are unusual.
    pub fn correct(
        &mut self,
        works: &[DeviceActivity],
        classes: &[Class],
        instances: &mut [Option<OperatorInstance>],
    ) {
        for ((work, class), instance) in works.iter().zip(classes).zip(instances) {
            let WorkKind::Kernel { name, launch } = work.kind else { continue };
            let Some(instance) = instance.as_mut().filter(|_| class.is_product()) else { continue };
            let key = (name, launch.grid);
            if self.0.len() >= MAX_KERNELS && !self.0.contains_key(&key) {
                continue;
            }
            let counts = self.0.entry(key).or_default();
            match counts.iter_mut().find(|(operator, _)| *operator == instance.operator) {
                Some((_, n)) => *n = n.saturating_add(1),
                None => counts.push((instance.operator, 1)),
            }
            let all: u32 = counts.iter().map(|(_, n)| n).sum();
            let usual = counts.iter().max_by_key(|(_, n)| *n).copied();
            if let Some((operator, n)) = usual
                && all >= MIN_LAUNCHES
                && f64::from(n) >= MIN_SHARE * f64::from(all)
                && operator != instance.operator
            {
                let layer = instance.layer.filter(|_| operator != Operator::LmHead);
                *instance = OperatorInstance { operator, layer };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::work::KernelLaunch;

    #[test]
    fn the_usual_operator_wins() {
        let launch = KernelLaunch { grid: [2, 66, 1], block: [1; 3], registers: 0, shared_bytes: 0 };
        let kind = WorkKind::Kernel { name: NameId(1), launch };
        let work = DeviceActivity {
            start_ns: 1,
            end_ns: 2,
            stream: 1,
            device: 0,
            correlation: 1,
            graph: None,
            kind,
        };
        let mut usual = Usual::default();
        let mut assigned = |operator: Operator, layer: Option<u16>| {
            let mut instances = [Some(OperatorInstance { operator, layer })];
            usual.correct(&[work], &[Class::Product], &mut instances);
            instances[0].unwrap()
        };
        assert_eq!(assigned(Operator::Down, Some(27)).operator, Operator::Down, "nothing is known yet");
        (0..40).for_each(|_| assert_eq!(assigned(Operator::LmHead, None).operator, Operator::LmHead));
        let corrected = assigned(Operator::Down, Some(27));
        assert_eq!((corrected.operator, corrected.layer), (Operator::LmHead, None));
        // A kernel that is two operators stays both.
        for _ in 0..40 {
            assigned(Operator::Down, Some(1));
        }
        assert_eq!(assigned(Operator::Down, Some(27)).operator, Operator::Down);
        assert_eq!(assigned(Operator::LmHead, None).operator, Operator::LmHead);
    }
}
