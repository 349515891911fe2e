//! Maps CUDA's device numbers to NVML's: `CUDA_VISIBLE_DEVICES` hides and reorders GPUs.

use crate::event::GpuInfo;

/// The NVML index of the GPU with the CUDA number `ordinal`.
///
/// `uuid` is CUDA's own id of that GPU, where it is known, and decides alone. `visible` is the value of
/// `CUDA_VISIBLE_DEVICES`. `None` where no GPU matches.
pub fn nvml_index(gpus: &[GpuInfo], ordinal: u32, uuid: Option<&str>, visible: Option<&str>) -> Option<u32> {
    if let Some(uuid) = uuid {
        return gpus.iter().find(|gpu| same_uuid(&gpu.uuid, uuid)).map(|gpu| gpu.index);
    }
    let Some(visible) = visible else {
        return gpus.iter().find(|gpu| gpu.index == ordinal).map(|gpu| gpu.index);
    };
    // CUDA stops at the first entry that names no GPU.
    let listed = visible.split(',').map(|entry| named(gpus, entry.trim())).take_while(Option::is_some);
    listed.flatten().nth(ordinal as usize)
}

fn named(gpus: &[GpuInfo], entry: &str) -> Option<u32> {
    let gpu = match entry.parse::<u32>() {
        Ok(index) => gpus.iter().find(|gpu| gpu.index == index),
        Err(_) if entry.is_empty() => None,
        // A prefix is enough.
        Err(_) => gpus.iter().find(|gpu| gpu.uuid.starts_with(entry)),
    };
    gpu.map(|gpu| gpu.index)
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
}
