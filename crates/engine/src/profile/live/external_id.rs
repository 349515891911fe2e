//! CUPTI's external correlation ids: the step and operator of a launch, in 64 bits.

use llm_cost::Operator;
use llmprof_event::Phase;
use llmprof_workload::listener::OperatorInstance;

/// The step of a launch, and its operator if it belongs to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalId {
    pub phase: Phase,
    /// Counts the steps of all requests, modulo 2³².
    pub step: u32,
    pub operator: Option<OperatorInstance>,
}

/// Bits 0–31 are the step, 32–47 the layer plus one, 48–55 the operator plus one, 56–63 the phase. Zero is never used:
/// the phase of a step is never idle.
impl ExternalId {
    pub fn encode(self) -> u64 {
        let (operator, layer) = match self.operator {
            Some(OperatorInstance { operator, layer }) => {
                (operator as u64 + 1, layer.map_or(0, |layer| u64::from(layer) + 1))
            }
            None => (0, 0),
        };
        u64::from(self.step) | (layer & 0xffff) << 32 | operator << 48 | (self.phase as u64) << 56
    }

    /// `None` for an id that [`encode`](Self::encode) does not return.
    pub fn decode(id: u64) -> Option<ExternalId> {
        let phase = match id >> 56 {
            2 => Phase::Prefill,
            3 => Phase::Decode,
            _ => return None,
        };
        let layer = (id >> 32) as u16;
        let operator = match (id >> 48) as u8 {
            0 => None,
            operator => Some(OperatorInstance {
                operator: *Operator::ALL.get(usize::from(operator) - 1)?,
                layer: layer.checked_sub(1),
            }),
        };
        Some(ExternalId { phase, step: id as u32, operator })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_decode_to_what_was_encoded(
            prefill: bool,
            step: u32,
            operator in proptest::option::of(0..Operator::ALL.len()),
            layer in proptest::option::of(0u16..u16::MAX),
        ) {
            let operator = operator.map(|i| OperatorInstance { operator: Operator::ALL[i], layer });
            let phase = if prefill { Phase::Prefill } else { Phase::Decode };
            let id = ExternalId { phase, step, operator };
            prop_assert_eq!(ExternalId::decode(id.encode()), Some(id));
        }

        #[test]
        fn ids_of_other_tools_do_not_panic(id: u64) {
            if let Some(known) = ExternalId::decode(id) {
                // A layer without an operator is not kept.
                prop_assert_eq!(ExternalId::decode(known.encode()), Some(known));
            }
        }
    }

    #[test]
    fn zero_is_no_id() {
        assert_eq!(ExternalId::decode(0), None);
    }
}
