//! Requests to a server, which overlap: each takes the first free lane.

use super::{
    lines::{Arg, Lines, TrackId},
    track::Track,
};
use llmprof_event::{RequestFinished, RequestStarted, Stamp};

const SERVER: u64 = 4;
/// Further concurrent requests are not drawn.
const MAX_LANES: usize = 256;

#[derive(Default)]
pub struct ServedLanes {
    lanes: Vec<(Track, Option<Open>)>,
}

struct Open {
    started: RequestStarted,
    at: Stamp,
    first: Option<Stamp>,
}

impl ServedLanes {
    pub fn started(&mut self, t: Stamp, started: &RequestStarted, lines: &mut Lines) {
        let open = Open { started: started.clone(), at: t, first: None };
        if let Some((_, free)) = self.lanes.iter_mut().find(|(_, open)| open.is_none()) {
            *free = Some(open);
        } else if self.lanes.len() < MAX_LANES {
            if self.lanes.is_empty() {
                lines.name_process(SERVER, "requests to the server");
            }
            let id = TrackId { process: SERVER, thread: self.lanes.len() as u64 + 1 };
            self.lanes.push((Track::new(id), Some(open)));
        }
    }

    pub fn token(&mut self, t: Stamp, request: u32) {
        if let Some((_, open)) = self.get_mut(request) {
            open.first.get_or_insert(t);
        }
    }

    pub fn finished(&mut self, t: Stamp, finished: &RequestFinished, lines: &mut Lines) {
        let Some((track, open)) = self.get_mut(finished.request) else { return };
        let kind = match (open.started.warmup, open.started.cooldown) {
            (true, _) => "warm-up",
            (_, true) => "cool-down",
            _ => "request",
        };
        let failure =
            finished.served.as_ref().and_then(|served| served.failure).map(|failure| failure.to_string());
        let tokens = finished.served.as_ref().and_then(|served| served.output_tokens).unwrap_or(0);
        let mut args = vec![("output_tokens", Arg::Number(u64::from(tokens)))];
        args.extend(failure.as_deref().map(|failure| ("failure", Arg::Text(failure))));
        let (name, at, first) = (format!("{kind} {}", open.started.request), open.at, open.first);
        if let Some(whole) = track.slice(lines, (at, t), &name, &args) {
            let mut within = track.within(whole);
            let first = first.unwrap_or(t);
            within.slice(lines, (at, first), "to the first token", &[]);
            within.slice(lines, (first, t), "tokens", &[]);
        }
        for (_, open) in &mut self.lanes {
            open.take_if(|open| open.started.request == finished.request);
        }
    }

    fn get_mut(&mut self, request: u32) -> Option<(&mut Track, &mut Open)> {
        self.lanes.iter_mut().find_map(|(track, open)| {
            let open = open.as_mut().filter(|open| open.started.request == request)?;
            Some((track, open))
        })
    }
}
