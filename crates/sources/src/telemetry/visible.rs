//! Maps CUDA's device indexes to NVML's: `CUDA_VISIBLE_DEVICES` hides and reorders GPUs.

use llmprof_event::GpuInfo;

/// The NVML index of the GPU with the CUDA index `ordinal`.
///
/// `uuid` is CUDA's own id of that GPU, if it is known, and takes precedence. `visible` is the value of
/// `CUDA_VISIBLE_DEVICES`. Both may be the id of a MIG slice, which belongs to the GPU in MIG mode if there is only
/// one. `None` if no GPU matches.
pub fn nvml_index(gpus: &[GpuInfo], ordinal: u32, uuid: Option<&str>, visible: Option<&str>) -> Option<u32> {
    if let Some(uuid) = uuid {
        let whole = gpus.iter().find(|gpu| same_uuid(&gpu.uuid, uuid)).map(|gpu| gpu.index);
        return whole.or_else(|| sliced(gpus));
    }
    let Some(visible) = visible else {
        return gpus.iter().find(|gpu| gpu.index == ordinal).map(|gpu| gpu.index);
    };
    // CUDA stops at the first entry that matches no GPU.
    let listed = visible.split(',').map(|entry| named(gpus, entry.trim())).take_while(Option::is_some);
    listed.flatten().nth(ordinal as usize)
}

fn named(gpus: &[GpuInfo], entry: &str) -> Option<u32> {
    if let Some(slice) = entry.strip_prefix("MIG-") {
        // Drivers before 470: MIG-GPU-<id>/<instance>/<instance>.
        let whole = slice.split('/').next().and_then(|id| gpus.iter().find(|gpu| gpu.uuid == id));
        return whole.map(|gpu| gpu.index).or_else(|| sliced(gpus));
    }
    let gpu = match entry.parse::<u32>() {
        Ok(index) => gpus.iter().find(|gpu| gpu.index == index),
        Err(_) if entry.is_empty() => None,
        // A prefix is enough.
        Err(_) => gpus.iter().find(|gpu| gpu.uuid.starts_with(entry)),
    };
    gpu.map(|gpu| gpu.index)
}

/// The GPU in MIG mode, if there is exactly one.
fn sliced(gpus: &[GpuInfo]) -> Option<u32> {
    let mut sliced = gpus.iter().filter(|gpu| gpu.mig == Some(true));
    sliced.next().filter(|_| sliced.next().is_none()).map(|gpu| gpu.index)
}

fn same_uuid(a: &str, b: &str) -> bool {
    let bare = |uuid: &str| uuid.trim_start_matches("GPU-").to_lowercase();
    bare(a) == bare(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ids_and_prefixes() {
        let gpus: Vec<GpuInfo> = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]
            .iter()
            .zip(0..)
            .map(|(uuid, index)| GpuInfo { index, uuid: (*uuid).to_owned(), ..GpuInfo::default() })
            .collect();
        let cases = [
            (0, None, None, Some(0)),
            (2, None, None, Some(2)),
            (3, None, None, None),
            (0, None, Some("2,1"), Some(2)),
            (1, None, Some("2, 1"), Some(1)),
            (2, None, Some("2,1"), None),
            (0, None, Some("GPU-ab"), Some(1)),
            (1, None, Some("GPU-cc33,GPU-aa11"), Some(0)),
            (0, None, Some(""), None),
            (1, None, Some("0,-1,2"), None),
            (0, Some("AB22"), Some("0"), Some(1)),
            (0, Some("GPU-none"), None, None),
        ];
        for (ordinal, uuid, visible, expected) in cases {
            assert_eq!(nvml_index(&gpus, ordinal, uuid, visible), expected, "{ordinal} {uuid:?} {visible:?}");
        }
    }

    #[test]
    fn a_slice_belongs_to_the_gpu_in_mig_mode() {
        let gpu = |index: u32, uuid: &str, mig| GpuInfo {
            index,
            uuid: uuid.to_owned(),
            mig: Some(mig),
            ..GpuInfo::default()
        };
        let one = [gpu(0, "GPU-aa11", false), gpu(1, "GPU-ab22", true)];
        let two = [gpu(0, "GPU-aa11", true), gpu(1, "GPU-ab22", true)];
        // CUDA has one id for the slice, or that of the whole GPU.
        assert_eq!(nvml_index(&one, 0, Some("GPU-5115"), None), Some(1));
        assert_eq!(nvml_index(&one, 0, Some("GPU-ab22"), None), Some(1));
        assert_eq!(nvml_index(&one, 0, None, Some("MIG-5115")), Some(1));
        assert_eq!(nvml_index(&two, 0, Some("GPU-5115"), None), None);
        assert_eq!(nvml_index(&two, 0, None, Some("MIG-5115")), None);
        assert_eq!(nvml_index(&two, 0, None, Some("MIG-GPU-ab22/3/0")), Some(1));
    }
}
