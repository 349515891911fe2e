//! Traces of PyTorch's profiler (Kineto) in the format of Chrome's traces.
//!
//! A trace has gigabytes. It is read event by event; memory does not grow with it, except for the links between
//! operators, calls and kernels, which have a limit.

mod device;
mod event;
mod fold;
mod host;
mod links;
mod memory;
mod nccl;
mod repair;
mod tables;

use std::{
    fmt,
    io::{BufRead, BufReader},
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use self::{
    event::{Event, Scalar},
    fold::{About, Fold},
    repair::Repaired,
};
use super::{error::KernelsError, ranks::RankTrace};
use llmprof_base::gz;
use llmprof_event::kernels::KernelTable;

/// A trace of a long run has some gigabytes.
const MAX_DECOMPRESSED: u64 = 64_000_000_000;
const REMEDY: &str = "record with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) and export_chrome_trace";
const BUFFER: usize = 1 << 16;
/// The number of bytes in which the keys of a trace are searched for.
const KEYS: usize = 1 << 12;

/// Whether a list in JSON is a list of events.
pub fn is_list_of_events(head: &[u8]) -> bool {
    let head = &head[..head.len().min(KEYS)];
    memchr::memmem::find(head, b"\"ph\"").is_some()
}

/// Reads a compressed trace.
pub fn read_compressed(
    file: &str,
    input: impl BufRead,
) -> Result<(Vec<KernelTable>, RankTrace), KernelsError> {
    read_trace_and_ranks(
        file,
        BufReader::with_capacity(BUFFER, gz::decompressed_up_to(input, MAX_DECOMPRESSED)),
    )
}

/// Reads a trace: an object with `traceEvents`, or a list of events.
///
/// A truncated or damaged file is read up to the error, with a note.
pub fn read_trace(file: &str, input: impl BufRead) -> Result<Vec<KernelTable>, KernelsError> {
    Ok(read_trace_and_ranks(file, input)?.0)
}

/// Like [`read_trace`], with the work of its GPUs over time.
pub fn read_trace_and_ranks(
    file: &str,
    input: impl BufRead,
) -> Result<(Vec<KernelTable>, RankTrace), KernelsError> {
    let input = BufReader::with_capacity(BUFFER, Repaired::new(input));
    let mut trace = Trace::default();
    let read = serde_json::Deserializer::from_reader(input).deserialize_any(&mut trace);
    let Trace { mut fold, mut about, has_events } = trace;
    let (events, used) = fold.counts();
    let file = file.to_owned();
    match read {
        Ok(()) if !has_events => {
            let seen = "it is JSON without traceEvents".to_owned();
            return Err(KernelsError::Unknown { file, seen });
        }
        Ok(()) if used == 0 => {
            let what = format!("{events} events of a trace, none of PyTorch's profiler");
            return Err(KernelsError::NoRows { file, what, remedy: REMEDY });
        }
        Ok(()) => {}
        Err(e) if used == 0 && e.is_io() => return Err(KernelsError::Read { file, source: e.into() }),
        Err(e) if used == 0 => {
            return Err(KernelsError::Unknown { file, seen: format!("it is not a trace of events ({e})") });
        }
        Err(e) => about.cut = Some(e.to_string()),
    }
    let rank = about.rank.and_then(|(rank, _)| u32::try_from(rank).ok());
    let trace = fold.take_ranks().trace(&file, rank, about.base_ns);
    let tables = fold.tables(&about);
    match tables.is_empty() {
        true => Err(KernelsError::NoRows { file, what: "events of a trace".to_owned(), remedy: REMEDY }),
        false => Ok((tables, trace)),
    }
}

#[derive(Default)]
struct Trace {
    fold: Fold,
    about: About,
    has_events: bool,
}

/// The keys of a trace.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Key {
    TraceEvents,
    #[serde(alias = "computeProperties")]
    DeviceProperties,
    DistributedInfo,
    BaseTimeNanoseconds,
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Properties {
    id: Scalar,
    name: Scalar,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Distributed {
    rank: Scalar,
    world_size: Scalar,
}

impl<'de> Visitor<'de> for &mut Trace {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a trace or a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, events: A) -> Result<(), A::Error> {
        Events(self).visit_seq(events)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<Key>()? {
            match key {
                Key::TraceEvents => entries.next_value_seed(Events(self))?,
                Key::DeviceProperties => entries.next_value_seed(Devices(&mut self.about))?,
                Key::DistributedInfo => {
                    let Distributed { rank, world_size } = entries.next_value()?;
                    self.about.rank = rank.whole().map(|rank| (rank, world_size.whole()));
                }
                Key::BaseTimeNanoseconds => {
                    let BaseTime(base_ns) = entries.next_value()?;
                    self.about.base_ns = base_ns.unwrap_or(0);
                }
                Key::Other => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Nanoseconds since 1970 exceed the precision of a float.
struct BaseTime(Option<i64>);

impl<'de> Deserialize<'de> for BaseTime {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<BaseTime, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Any {
            Whole(i64),
            Other(IgnoredAny),
        }
        Ok(BaseTime(match Any::deserialize(from)? {
            Any::Whole(ns) => Some(ns),
            Any::Other(_) => None,
        }))
    }
}

/// The events, one in memory at a time.
struct Events<'t>(&'t mut Trace);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        self.0.has_events = true;
        while let Some(event) = events.next_element::<Option<Event>>()? {
            if let Some(event) = event {
                self.0.fold.add(&event);
            }
        }
        Ok(())
    }
}

/// More than a machine has.
const MAX_GPUS: usize = 256;

struct Devices<'t>(&'t mut About);

impl<'de> DeserializeSeed<'de> for Devices<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Devices<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of devices")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut devices: A) -> Result<(), A::Error> {
        while let Some(Properties { id, name }) = devices.next_element()? {
            if let (Some(id), Some(name)) = (id.whole(), name.text())
                && !name.trim().is_empty()
                && self.0.gpus.len() < MAX_GPUS
            {
                self.0.gpus.insert(id, name.to_owned());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
