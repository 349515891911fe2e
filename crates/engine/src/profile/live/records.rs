//! The CUPTI activity records that the built-in engine uses. `llmprof_inject::layout` defines where their fields are.

use llmprof_inject::{
    layout::{self, Bytes},
    wire,
};

pub use llmprof_inject::layout::kind;

use llmprof_event::kernels::work::{DeviceActivity, Direction, KernelLaunch, WorkKind};

/// A record that is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Work, with the address of a kernel's name; 0 if CUPTI reports none.
    Work(DeviceActivity<usize>),
    /// The launch `correlation` has the external id `id`.
    ExternalId { correlation: u32, id: u64 },
}

/// The record at the beginning of `bytes`; `None` for other kinds, for external ids of other tools, and for truncated records.
pub fn read(bytes: &[u8]) -> Option<Record> {
    let fields = Bytes(bytes);
    if fields.u32(0)? == kind::EXTERNAL_CORRELATION && fields.u32(4)? == EXTERNAL_KIND {
        return Some(Record::ExternalId { correlation: fields.u32(16)?, id: fields.u64(8)? });
    }
    let wire::ActivityRecord { start_ns, end_ns, correlation, stream, device, graph, kind } =
        layout::read(bytes)?;
    let kind = match kind {
        wire::WorkKind::Kernel { name, launch } => {
            let wire::Launch { grid, block, registers, shared_bytes } = launch;
            let launch = KernelLaunch { grid, block: block.map(u32::from), registers, shared_bytes };
            WorkKind::Kernel { name, launch }
        }
        wire::WorkKind::Copy { direction, bytes } => {
            WorkKind::Copy { direction: Direction::of_cupti(direction), bytes }
        }
        wire::WorkKind::Memset { bytes } => WorkKind::Memset { bytes },
        wire::WorkKind::Graph | wire::WorkKind::Wait { .. } => return None,
    };
    let graph = (graph > 0).then_some(graph);
    Some(Record::Work(DeviceActivity { start_ns, end_ns, stream, device, correlation, graph, kind }))
}

/// `CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0`, the kind of this program's external ids.
pub const EXTERNAL_KIND: u32 = 3;

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// A kernel's record in CUPTI's layout.
    fn kernel() -> Vec<u8> {
        let mut bytes = vec![0u8; 208];
        put(&mut bytes, 0, &kind::KERNEL.to_ne_bytes());
        put(&mut bytes, 6, &96u16.to_ne_bytes());
        put(&mut bytes, 16, &1_000u64.to_ne_bytes());
        put(&mut bytes, 24, &4_500u64.to_ne_bytes());
        for (i, value) in [132u32, 1, 2, 256, 1, 1, 1024, 4096].iter().enumerate() {
            put(&mut bytes, 52 + 4 * i, &value.to_ne_bytes());
        }
        put(&mut bytes, 92, &77u32.to_ne_bytes());
        put(&mut bytes, 104, &0xabcdu64.to_ne_bytes());
        put(&mut bytes, 144, &5u64.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_kernel_is_read() {
        let launch =
            KernelLaunch { grid: [132, 1, 2], block: [256, 1, 1], registers: 96, shared_bytes: 5120 };
        let kind = WorkKind::Kernel { name: 0xabcd, launch };
        let (start_ns, end_ns) = (1_000, 4_500);
        let expected =
            DeviceActivity { start_ns, end_ns, stream: 0, device: 0, correlation: 77, graph: Some(1), kind };
        assert_eq!(read(&kernel()), Some(Record::Work(expected)));
        assert_eq!(read(&kernel()[..100]), None, "truncated");
    }

    #[test]
    fn copies_and_external_ids_are_read_and_others_are_not() {
        let mut bytes = vec![0u8; 128];
        put(&mut bytes, 0, &kind::MEMCPY.to_ne_bytes());
        bytes[4] = 1;
        put(&mut bytes, 8, &8192u64.to_ne_bytes());
        put(&mut bytes, 44, &9u32.to_ne_bytes());
        let Some(Record::Work(copy)) = read(&bytes) else { panic!("no copy") };
        assert_eq!(copy.kind, WorkKind::Copy { direction: Direction::HostToDevice, bytes: 8192 });
        assert_eq!((copy.correlation, copy.graph), (9, None));
        let mut external = vec![0u8; 24];
        put(&mut external, 0, &kind::EXTERNAL_CORRELATION.to_ne_bytes());
        put(&mut external, 4, &EXTERNAL_KIND.to_ne_bytes());
        put(&mut external, 8, &42u64.to_ne_bytes());
        put(&mut external, 16, &9u32.to_ne_bytes());
        assert_eq!(read(&external), Some(Record::ExternalId { correlation: 9, id: 42 }));
        put(&mut external, 4, &1u32.to_ne_bytes());
        assert_eq!(read(&external), None, "an external id of another tool");
        put(&mut external, 0, &kind::DRIVER.to_ne_bytes());
        assert_eq!(read(&external), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = read(&bytes);
        }
    }
}
