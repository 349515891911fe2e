//! The recording of a session: its directory, the events, and the documents next to them.

use std::{fs::File, time::Duration};

use serde::Serialize;

use crate::plan::Plan;
use llmprof_base::{foreign::visible, process::logfile};
use llmprof_config::Composed;
use llmprof_record::{
    report::documents,
    rundir::{Environment, Loss, Recorder, RunDir},
    state::RunState,
};

pub(super) enum Recording {
    On(Box<Recorder>),
    /// The directory could not be created.
    Failed(String),
    /// `output.record` is false.
    Off,
}

impl Recording {
    pub(super) fn open(plan: &Plan, started_unix_ms: u64) -> Recording {
        let output = &plan.composed.config.output;
        if !output.record {
            return Recording::Off;
        }
        let flush_every = Duration::from_millis(u64::from(output.flush_ms));
        let recorder = RunDir::create(&plan.dir)
            .and_then(|dir| Recorder::create(&dir, started_unix_ms, flush_every))
            .and_then(|recorder| if output.trace { recorder.with_trace() } else { Ok(recorder) });
        match recorder {
            Ok(recorder) => Recording::On(Box::new(recorder)),
            Err(e) => Recording::Failed(format!("{}: {e}", plan.dir.display())),
        }
    }

    pub(super) fn recorder(&mut self) -> Option<&mut Recorder> {
        match self {
            Recording::On(recorder) => Some(recorder),
            Recording::Failed(_) | Recording::Off => None,
        }
    }

    /// The directory of the run, if it is recorded.
    pub(super) fn dir(&self) -> Option<&RunDir> {
        match self {
            Recording::On(recorder) => Some(recorder.dir()),
            Recording::Failed(_) | Recording::Off => None,
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        match self {
            Recording::On(recorder) => recorder.loss(),
            Recording::Failed(reason) => Some(Loss::NotRecorded { reason: reason.clone() }),
            Recording::Off => None,
        }
    }

    /// Writes the configuration, the overrides and Hydra's files. From here on the log is written to the directory.
    pub(super) fn write_inputs(&mut self, composed: &Composed) {
        let Some(recorder) = self.recorder() else { return };
        let dir = recorder.dir().clone();
        recorder.write(&dir.config(), composed.to_yaml());
        recorder.write(&dir.overrides(), composed.overrides_yaml());
        for (name, content) in composed.hydra_files() {
            recorder.write(&dir.hydra().join(name), content);
        }
        recorder.create_file(&dir.log()).into_iter().for_each(logfile::redirect);
    }

    /// For the output of a followed program.
    pub(super) fn create_program_log(&mut self) -> Option<File> {
        let recorder = self.recorder()?;
        let path = recorder.dir().path().join("program.log");
        recorder.create_file(&path)
    }

    pub(super) fn write_environment(&mut self, state: &RunState) {
        let Some(recorder) = self.recorder() else { return };
        let environment = Environment {
            host: state.host.info.clone(),
            gpus: state.gpus.iter().map(|gpu| gpu.info.clone()).collect(),
            gpu_absent: state.gpu_absent.as_ref().map(|absent| absent.reason.clone()),
            ..Environment::here()
        };
        recorder.write(&recorder.dir().environment(), json(&environment));
    }

    pub(super) fn write_reports(&mut self, state: &RunState) {
        let Some(recorder) = self.recorder() else { return };
        for document in documents(state) {
            recorder.write(&recorder.dir().path().join(document.name), document.content);
        }
    }

    /// The last snapshot of `state`.
    pub(super) fn write_snapshot(&mut self, state: &RunState) {
        if let (Some(recorder), Some(snapshot)) = (self.recorder(), state.snapshots.back()) {
            recorder.write(&recorder.dir().snapshot(&snapshot.name), json(snapshot));
        }
    }
}

fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    visible(&text).into_owned() + "\n"
}
