//! One event of a trace. Only what is used is kept; everything else is skipped while it is read.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::event::kernels::Extent;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// An operator on the host.
    Operator,
    /// A range that the program named.
    Annotation,
    /// The same on a GPU, from the first of its kernels to the last.
    GpuAnnotation,
    Kernel,
    Copy,
    /// A call of CUDA or another runtime.
    Call,
    /// Memory was allocated or freed.
    Memory,
}

/// An event in the format of Chrome's traces, with the arguments of PyTorch's profiler. What is missing is `None`.
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
    /// Of the operator that an event belongs to.
    pub external: Option<u64>,
    /// That a call and its launches share.
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
    pub device_type: Option<f64>,
    pub device_id: Option<f64>,
    pub change_bytes: Option<f64>,
    pub allocated_bytes: Option<f64>,
    pub reserved_bytes: Option<f64>,
}

impl Event {
    /// `None` for events that are not used.
    pub fn about(&self) -> Option<Category> {
        let category = self.category.to_ascii_lowercase();
        Some(match category.as_str() {
            "cpu_op" | "operator" => Category::Operator,
            "user_annotation" => Category::Annotation,
            "gpu_user_annotation" => Category::GpuAnnotation,
            "kernel" => Category::Kernel,
            "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => Category::Copy,
            "runtime" => Category::Call,
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
    /// Also for processes, threads and numbers of devices.
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

    fn extent(&self) -> Option<Extent> {
        match self {
            Scalar::Extent(extent) => Some(*extent),
            _ => None,
        }
    }

    fn whole(&self) -> Option<i64> {
        self.number().filter(|number| number.abs() < 9e15).map(|number| number as i64)
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

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Event, D::Error> {
        struct EventVisitor;
        impl<'de> Visitor<'de> for EventVisitor {
            type Value = Event;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an event")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Event, A::Error> {
                let mut event = Event::default();
                while let Some(key) = entries.next_key::<Key>()? {
                    if key.0 == "args" {
                        event.args = entries.next_value::<Args>()?;
                        continue;
                    }
                    let value: Scalar = entries.next_value()?;
                    match key.0.as_str() {
                        "ph" => event.phase = value.text().and_then(|phase| phase.bytes().next()),
                        "cat" => event.category = value.into_text(),
                        "name" => event.name = value.into_text(),
                        "pid" => event.process = value,
                        "tid" => event.thread = value,
                        "id" => event.id = value,
                        "ts" => event.start_us = value.number(),
                        "dur" => event.duration_us = value.number(),
                        _ => {}
                    }
                }
                Ok(event)
            }
        }
        from.deserialize_map(EventVisitor)
    }
}
