//! What a launch belongs to, in the 64 bits that CUPTI carries for us.

use crate::{event::Phase, model::Operator, profile::listener::Part};

/// A step of a phase, and the part of it, where the launch is of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub phase: Phase,
    /// Steps are counted over all requests; after 2³² they begin again.
    pub step: u32,
    pub part: Option<Part>,
}

/// Bits 0–31 the step, 32–47 the layer plus one, 48–55 the operator plus one, 56–63 the phase. Zero is no mark: the
/// phase of a step is never idle.
impl Mark {
    pub fn encode(self) -> u64 {
        let (operator, layer) = match self.part {
            Some(Part { operator, layer }) => {
                (operator as u64 + 1, layer.map_or(0, |layer| u64::from(layer) + 1))
            }
            None => (0, 0),
        };
        u64::from(self.step) | (layer & 0xffff) << 32 | operator << 48 | (self.phase as u64) << 56
    }

    pub fn decode(id: u64) -> Option<Mark> {
        let phase = match id >> 56 {
            2 => Phase::Prefill,
            3 => Phase::Decode,
            _ => return None,
        };
        let layer = (id >> 32) as u16;
        let part = match (id >> 48) as u8 {
            0 => None,
            operator => Some(Part {
                operator: *Operator::ALL.get(usize::from(operator) - 1)?,
                layer: layer.checked_sub(1),
            }),
        };
        Some(Mark { phase, step: id as u32, part })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            prefill: bool,
            step: u32,
            operator in proptest::option::of(0..Operator::ALL.len()),
            layer in proptest::option::of(0u16..u16::MAX),
        ) {
            let part = operator.map(|at| Part { operator: Operator::ALL[at], layer });
            let phase = if prefill { Phase::Prefill } else { Phase::Decode };
            let mark = Mark { phase, step, part };
            prop_assert_eq!(Mark::decode(mark.encode()), Some(mark));
        }

        #[test]
        fn what_others_wrote_is_no_panic(id: u64) {
            if let Some(mark) = Mark::decode(id) {
                // Bits that say nothing without an operator are not kept.
                prop_assert_eq!(Mark::decode(mark.encode()), Some(mark));
            }
        }
    }

    #[test]
    fn zero_is_no_mark() {
        assert_eq!(Mark::decode(0), None);
    }
}
