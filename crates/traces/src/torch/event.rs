//! One event of a trace. Only the fields that are used are kept; everything else is skipped while it is read.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use llmprof_event::kernels::Extent;

/// The subject of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// An operator on the host.
    Operator,
    /// A range that the program named.
    Annotation,
    /// An annotation on a GPU, from its first kernel to its last.
    GpuAnnotation,
    Kernel,
    Copy,
    /// A call of CUDA or another runtime.
    Call,
    /// Memory was allocated or freed.
    Memory,
}

/// An event in the format of Chrome's traces, with the arguments of PyTorch's profiler. Missing fields are `None`.
#[derive(Debug, Default, PartialEq)]
pub struct Event {
    /// `X` for an event with a duration, `i` for an instant, `b` and `e` for the ends of one, `s` and `f` for a flow.
    pub phase: Option<u8>,
    pub category: String,
    pub name: String,
    pub process: Scalar,
    pub thread: Scalar,
    pub id: Scalar,
    /// In µs.
    pub start_us: Option<f64>,
    pub duration_us: Option<f64>,
    pub args: Args,
}

/// Arguments of an event.
#[derive(Debug, Default, PartialEq)]
pub struct Args {
    /// The external id: that of the operator that an event belongs to.
    pub external: Option<u64>,
    /// The correlation id that a call and its launches share.
    pub correlation: Option<u64>,
    pub device: Option<i64>,
    pub stream: Option<i64>,
    pub grid: Option<Extent>,
    pub block: Option<Extent>,
    pub registers: Option<f64>,
    pub shared_bytes: Option<f64>,
    pub occupancy_pct: Option<f64>,
    pub graph_node: Option<f64>,
    pub bytes: Option<f64>,
    /// A collective operation of NCCL: elements in and out, and their type.
    pub elements_in: Option<f64>,
    pub elements_out: Option<f64>,
    pub element_type: Option<String>,
    pub collective: Option<String>,
    /// The group of ranks that it belongs to: the same number in the traces of all of them.
    pub group: Option<u64>,
    pub group_size: Option<i64>,
    pub device_type: Option<f64>,
    pub device_id: Option<f64>,
    pub change_bytes: Option<f64>,
    pub allocated_bytes: Option<f64>,
    pub reserved_bytes: Option<f64>,
}

impl Event {
    /// `None` for events that are not used.
    pub fn about(&self) -> Option<Category> {
        // Versions of 2021 capitalise some of them.
        Some(match self.category.as_str() {
            "cpu_op" | "Operator" => Category::Operator,
            "user_annotation" => Category::Annotation,
            "gpu_user_annotation" => Category::GpuAnnotation,
            // Work of Meta's accelerators has its own category.
            "kernel" | "Kernel" | "mtia_ccp_events" => Category::Kernel,
            "gpu_memcpy" | "gpu_memset" | "Memcpy" | "Memset" => Category::Copy,
            "Runtime" => Category::Call,
            "cpu_instant_event" if self.name == "[memory]" => Category::Memory,
            name if name.ends_with("_runtime") || name.ends_with("_driver") => Category::Call,
            // The profiler before Kineto.
            "" => match self.process.text()? {
                "CPU functions" => Category::Operator,
                "CUDA functions" => Category::Kernel,
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// A number, a text or three extents. Anything else is skipped.
#[derive(Debug, Default, Clone, PartialEq)]
pub enum Scalar {
    #[default]
    None,
    Number(f64),
    /// Also for processes, threads and device indexes.
    Text(String),
    Extent(Extent),
}

impl Scalar {
    pub fn number(&self) -> Option<f64> {
        match self {
            Scalar::None | Scalar::Extent(_) => None,
            Scalar::Number(number) => Some(*number),
            Scalar::Text(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Scalar::Text(text) => Some(text),
            _ => None,
        }
    }

    fn into_text(self) -> String {
        match self {
            Scalar::Text(text) => text,
            _ => String::new(),
        }
    }

    fn extent(&self) -> Option<Extent> {
        match self {
            Scalar::Extent(extent) => Some(*extent),
            _ => None,
        }
    }

    pub fn whole(&self) -> Option<i64> {
        self.number().filter(|number| number.abs() < 9e15).map(|number| number as i64)
    }

    /// A hash: different for different values.
    pub fn key(&self) -> u64 {
        match self {
            Scalar::None | Scalar::Extent(_) => 0,
            Scalar::Number(number) => number.to_bits(),
            Scalar::Text(text) => {
                let mut hasher = DefaultHasher::new();
                text.hash(&mut hasher);
                hasher.finish()
            }
        }
    }

    fn id(&self) -> Option<u64> {
        self.whole().and_then(|id| u64::try_from(id).ok())
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value as f64))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar::None)
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Scalar, A::Error> {
        let (mut all, mut count) = ([0; 3], 0);
        while let Some(value) = values.next_element::<Scalar>()? {
            let size = value.whole().and_then(|size| u32::try_from(size).ok());
            match (all.get_mut(count), size) {
                (Some(place), Some(size)) => *place = size,
                _ => count = all.len(),
            }
            count += 1;
        }
        Ok(if count == all.len() { Scalar::Extent(all) } else { Scalar::None })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Scalar, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::None)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Scalar, D::Error> {
        from.deserialize_any(ScalarVisitor)
    }
}

/// The keys of an event.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Ph,
    Cat,
    Name,
    Pid,
    Tid,
    Id,
    Ts,
    Dur,
    Args,
    #[serde(other)]
    Other,
}

/// The keys of arguments. Versions differ in the spelling of some.
#[derive(Deserialize)]
#[serde(field_identifier)]
enum ArgKey {
    #[serde(rename = "External id", alias = "external id")]
    External,
    #[serde(rename = "correlation")]
    Correlation,
    #[serde(rename = "device")]
    Device,
    #[serde(rename = "stream")]
    Stream,
    #[serde(rename = "grid")]
    Grid,
    #[serde(rename = "block")]
    Block,
    #[serde(rename = "registers per thread")]
    Registers,
    #[serde(rename = "shared memory")]
    Shared,
    #[serde(rename = "est. achieved occupancy %")]
    Occupancy,
    #[serde(rename = "graph node id")]
    GraphNode,
    #[serde(rename = "bytes")]
    Size,
    #[serde(rename = "In msg nelems")]
    ElementsIn,
    #[serde(rename = "Out msg nelems")]
    ElementsOut,
    #[serde(rename = "dtype")]
    ElementType,
    #[serde(rename = "Collective name")]
    Collective,
    #[serde(rename = "Process Group Ranks")]
    GroupRanks,
    #[serde(rename = "Group size")]
    GroupSize,
    #[serde(rename = "Device Type")]
    DeviceType,
    #[serde(rename = "Device Id")]
    DeviceId,
    #[serde(rename = "Bytes")]
    Change,
    #[serde(rename = "Total Allocated")]
    Allocated,
    #[serde(rename = "Total Reserved")]
    Reserved,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Event, D::Error> {
        from.deserialize_map(EventVisitor)
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = Event;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Event, A::Error> {
        let mut event = Event::default();
        while let Some(key) = entries.next_key::<Key>()? {
            match key {
                Key::Args => event.args = entries.next_value()?,
                Key::Other => {
                    entries.next_value::<IgnoredAny>()?;
                }
                key => {
                    let value: Scalar = entries.next_value()?;
                    match key {
                        Key::Ph => event.phase = value.text().and_then(|phase| phase.bytes().next()),
                        Key::Cat => event.category = value.into_text(),
                        Key::Name => event.name = value.into_text(),
                        Key::Pid => event.process = value,
                        Key::Tid => event.thread = value,
                        Key::Id => event.id = value,
                        Key::Ts => event.start_us = value.number(),
                        Key::Dur => event.duration_us = value.number(),
                        Key::Args | Key::Other => {}
                    }
                }
            }
        }
        Ok(event)
    }
}

impl<'de> Deserialize<'de> for Args {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Args, D::Error> {
        from.deserialize_any(ArgsVisitor)
    }
}

struct ArgsVisitor;

impl<'de> Visitor<'de> for ArgsVisitor {
    type Value = Args;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("arguments of an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Args, A::Error> {
        let mut args = Args::default();
        while let Some(key) = entries.next_key::<ArgKey>()? {
            if matches!(key, ArgKey::Other) {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: Scalar = entries.next_value()?;
            match key {
                ArgKey::External => args.external = value.id(),
                ArgKey::Correlation => args.correlation = value.id(),
                ArgKey::Device => args.device = value.whole(),
                ArgKey::Stream => args.stream = value.whole(),
                ArgKey::Grid => args.grid = value.extent(),
                ArgKey::Block => args.block = value.extent(),
                ArgKey::Registers => args.registers = value.number(),
                ArgKey::Shared => args.shared_bytes = value.number(),
                ArgKey::Occupancy => args.occupancy_pct = value.number(),
                ArgKey::GraphNode => args.graph_node = value.number(),
                ArgKey::Size => args.bytes = value.number(),
                ArgKey::ElementsIn => args.elements_in = value.number(),
                ArgKey::ElementsOut => args.elements_out = value.number(),
                ArgKey::Collective => args.collective = value.text().map(str::to_owned),
                ArgKey::GroupRanks => {
                    args.group = value.text().filter(|text| text.len() > 2).map(|_| value.key())
                }
                ArgKey::GroupSize => args.group_size = value.whole(),
                ArgKey::ElementType => args.element_type = value.text().map(str::to_owned),
                ArgKey::DeviceType => args.device_type = value.number(),
                ArgKey::DeviceId => args.device_id = value.number(),
                ArgKey::Change => args.change_bytes = value.number(),
                ArgKey::Allocated => args.allocated_bytes = value.number(),
                ArgKey::Reserved => args.reserved_bytes = value.number(),
                ArgKey::Other => {}
            }
        }
        Ok(args)
    }

    // Events of other programs may have any value here.
    fn visit_str<E>(self, _: &str) -> Result<Args, E> {
        Ok(Args::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Args, E> {
        Ok(Args::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Args, E> {
        Ok(Args::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Args, E> {
        Ok(Args::default())
    }

    fn visit_unit<E>(self) -> Result<Args, E> {
        Ok(Args::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Args, A::Error> {
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Args::default())
    }
}
