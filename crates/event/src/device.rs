//! The device that a workload runs on, as recordings name it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The device of a workload. A name that this version does not know is preserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Device {
    Cpu,
    /// A GPU by its CUDA index.
    Cuda(u32),
    /// A simulated run has a simulated device.
    Sim,
    /// There is no workload.
    None,
    Other(String),
}

impl Device {
    pub fn is_cpu(&self) -> bool {
        *self == Device::Cpu
    }

    pub fn is_cuda(&self) -> bool {
        matches!(self, Device::Cuda(_))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
            Device::Sim => f.write_str("sim"),
            Device::None => f.write_str("none"),
            Device::Other(name) => f.write_str(name),
        }
    }
}

impl From<&str> for Device {
    fn from(name: &str) -> Device {
        let known = match name {
            "cpu" => Device::Cpu,
            "sim" => Device::Sim,
            "none" => Device::None,
            _ => match name.strip_prefix("cuda:").and_then(|index| index.parse().ok()) {
                Some(index) => Device::Cuda(index),
                None => Device::Other(name.to_owned()),
            },
        };
        // "cuda:+1" parses, but would be written as "cuda:1".
        if known.to_string() == name { known } else { Device::Other(name.to_owned()) }
    }
}

impl From<String> for Device {
    fn from(name: String) -> Device {
        name.as_str().into()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_were_written() {
        for name in
            ["cpu", "cuda:0", "cuda:7", "sim", "none", "cuda", "cuda:x", "cuda:+1", "cuda:01", "tpu", ""]
        {
            let device: Device = serde_json::from_value(name.into()).unwrap();
            assert_eq!(serde_json::to_value(&device).unwrap(), name);
            assert_eq!(
                matches!(device, Device::Other(_)),
                !["cpu", "cuda:0", "cuda:7", "sim", "none"].contains(&name)
            );
        }
        assert_eq!(Device::from("cuda:7"), Device::Cuda(7));
    }
}
