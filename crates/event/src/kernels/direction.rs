//! The direction of a copy.

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    OnDevice,
    BetweenDevices,
    Unknown,
}

impl Direction {
    /// By `CUpti_ActivityMemcpyKind`.
    pub fn of_cupti(kind: u8) -> Direction {
        match kind {
            1 => Direction::HostToDevice,
            2 => Direction::DeviceToHost,
            8 => Direction::OnDevice,
            10 => Direction::BetweenDevices,
            _ => Direction::Unknown,
        }
    }

    /// As `CUpti_ActivityMemcpyKind`.
    pub fn as_cupti(self) -> u8 {
        match self {
            Direction::HostToDevice => 1,
            Direction::DeviceToHost => 2,
            Direction::OnDevice => 8,
            Direction::BetweenDevices => 10,
            Direction::Unknown => 0,
        }
    }

    /// Whether a row of a table is copies.
    pub fn is_name(name: &str) -> bool {
        use Direction::*;
        [HostToDevice, DeviceToHost, OnDevice, BetweenDevices, Unknown].iter().any(|one| one.name() == name)
    }

    /// The name of such copies in tables of kernels.
    pub fn name(self) -> &'static str {
        match self {
            Direction::HostToDevice => "copy, host to device",
            Direction::DeviceToHost => "copy, device to host",
            Direction::OnDevice => "copy on the device",
            Direction::BetweenDevices => "copy between devices",
            Direction::Unknown => "copy",
        }
    }
}
