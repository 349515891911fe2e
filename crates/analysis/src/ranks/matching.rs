//! Finds the same collective on all of its ranks by time: a collective that needs data of all ranks ends nowhere before
//! all have begun it, so all ends of one precede all ends of the next.

use std::collections::{BTreeMap, HashMap};

use super::{LanePieces, Operation};
use llmprof_event::ranks::Collective;

/// A collective on the lanes that took part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    pub operation: Operation,
    pub members: Vec<Member>,
    /// Whether it is on the usual number of lanes for such collectives.
    pub is_complete: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub lane: usize,
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Instance {
    /// The member that began last.
    pub fn last(&self) -> Option<&Member> {
        self.members.iter().max_by_key(|member| (member.start_ns, member.lane))
    }

    pub fn end_ns(&self) -> u64 {
        self.members.iter().map(|member| member.end_ns).max().unwrap_or(0)
    }

    fn first_end_ns(&self) -> u64 {
        self.members.iter().map(|member| member.end_ns).min().unwrap_or(0)
    }
}

type Key = (Collective, Option<u64>);

/// The mutual collectives of all lanes in the order of their ends. Clocks of the lanes agree to `slack_ns`.
pub(super) fn instances(lanes: &[LanePieces], slack_ns: u64) -> Vec<Instance> {
    let operations = || {
        lanes.iter().enumerate().flat_map(|(lane, work)| {
            work.pieces.iter().filter_map(move |piece| Some((lane, piece, *piece.operation()?)))
        })
    };
    // If one lane does not know the communicator, communicators cannot distinguish collectives.
    let mut unknown: Vec<Collective> = Vec::new();
    for (_, _, operation) in operations() {
        if operation.communicator.is_none() && !unknown.contains(&operation.kind) {
            unknown.push(operation.kind);
        }
    }
    let key_of = |operation: &Operation| -> Key {
        let communicator = operation.communicator.filter(|_| !unknown.contains(&operation.kind));
        (operation.kind, communicator)
    };
    let mut all: Vec<(Member, Operation)> = operations()
        .filter(|(_, _, operation)| operation.kind.is_mutual())
        .map(|(lane, piece, operation)| {
            (Member { lane, start_ns: piece.start_ns, end_ns: piece.end_ns }, operation)
        })
        .collect();
    all.sort_by_key(|(member, _)| (member.end_ns, member.start_ns, member.lane));
    let mut found: Vec<Instance> = Vec::new();
    let mut open: HashMap<Key, usize> = HashMap::new();
    for (member, operation) in all {
        let key = key_of(&operation);
        let fits = |instance: &Instance| {
            instance.members.iter().all(|other| other.lane != member.lane)
                && member.start_ns < instance.first_end_ns().saturating_add(slack_ns)
        };
        match open.get(&key).filter(|at| fits(&found[**at])) {
            Some(at) => {
                let instance = &mut found[*at];
                instance.members.push(member);
                let known = &mut instance.operation;
                known.bytes = known.bytes.or(operation.bytes);
                known.ranks = known.ranks.or(operation.ranks);
            }
            None => {
                open.insert(key, found.len());
                found.push(Instance { operation, members: vec![member], is_complete: false });
            }
        }
    }
    // The usual number of lanes: the most frequent one, and of two equally frequent ones the larger.
    let mut sizes: HashMap<Key, BTreeMap<usize, u64>> = HashMap::new();
    for instance in &found {
        *sizes.entry(key_of(&instance.operation)).or_default().entry(instance.members.len()).or_default() +=
            1;
    }
    let usual: HashMap<Key, usize> = sizes
        .into_iter()
        .filter_map(|(key, counts)| Some((key, counts.into_iter().max_by_key(|(size, n)| (*n, *size))?.0)))
        .collect();
    for instance in &mut found {
        let size = instance.members.len();
        instance.is_complete = size > 1 && usual.get(&key_of(&instance.operation)) == Some(&size);
    }
    found
}
