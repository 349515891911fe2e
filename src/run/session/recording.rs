//! The recording of a session: its directory, the events, and the documents next to them.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use crate::{
    config::Composed,
    event::Envelope,
    process::logfile,
    report::documents,
    run::plan::Plan,
    rundir::{Environment, Loss, Recorder, RunDir},
    state::RunState,
};

pub(super) struct Recording {
    target: Target,
    /// A document that could not be written.
    unwritten: Option<String>,
}

enum Target {
    Dir(RunDir, Box<Recorder>),
    /// The directory could not be created.
    Failed(String),
    /// `output.record` is false.
    Off,
}

impl Recording {
    pub(super) fn open(plan: &Plan, started_unix_ms: u64) -> Recording {
        let output = &plan.composed.config.output;
        let open = || {
            let dir = RunDir::create(&plan.dir)?;
            let flush_every = Duration::from_millis(u64::from(output.flush_ms));
            let mut recorder = Recorder::create(&dir, started_unix_ms, flush_every)?;
            if output.trace {
                recorder = recorder.with_trace()?;
            }
            Ok(Target::Dir(dir, Box::new(recorder)))
        };
        let target = match output.record {
            true => open()
                .unwrap_or_else(|e: std::io::Error| Target::Failed(format!("{}: {e}", plan.dir.display()))),
            false => Target::Off,
        };
        Recording { target, unwritten: None }
    }

    pub(super) fn is_off(&self) -> bool {
        matches!(self.target, Target::Off)
    }

    /// The directory of the run, where it is recorded.
    pub(super) fn dir(&self) -> Option<&Path> {
        match &self.target {
            Target::Dir(dir, _) => Some(dir.path()),
            _ => None,
        }
    }

    fn recorder(&mut self) -> Option<&mut Recorder> {
        match &mut self.target {
            Target::Dir(_, recorder) => Some(recorder),
            _ => None,
        }
    }

    pub(super) fn record(&mut self, envelope: &Envelope) {
        if let Some(recorder) = self.recorder() {
            recorder.record(envelope);
        }
    }

    /// Flushes when it is time to.
    pub(super) fn tick(&mut self) {
        if let Some(recorder) = self.recorder() {
            recorder.tick();
        }
    }

    pub(super) fn flush(&mut self) {
        if let Some(recorder) = self.recorder() {
            recorder.flush();
        }
    }

    pub(super) fn lost_lines(&self) -> u64 {
        match self.loss() {
            Some(Loss::Lines { lost, .. }) => lost,
            _ => 0,
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        let not_recorded = match &self.target {
            Target::Failed(reason) => Some(Loss::NotRecorded { reason: reason.clone() }),
            Target::Dir(_, recorder) => recorder.loss(),
            Target::Off => None,
        };
        not_recorded.or_else(|| self.unwritten.clone().map(|reason| Loss::File { reason }))
    }

    /// The configuration, the overrides and Hydra's files. From here on the log is written to the directory too.
    pub(super) fn write_inputs(&mut self, composed: &Composed) {
        self.write(RunDir::config, || composed.to_yaml().into_bytes());
        self.write(RunDir::overrides, || composed.overrides_yaml().into_bytes());
        for (name, content) in composed.hydra_files() {
            self.write(|dir| dir.hydra().join(name), || content.into_bytes());
        }
        if let Target::Dir(dir, _) = &self.target
            && let Err(e) = logfile::redirect(&dir.log())
        {
            self.unwritten = Some(format!("{}: {e}", dir.log().display()));
        }
    }

    pub(super) fn write_environment(&mut self, state: &RunState) {
        self.write(RunDir::environment, || {
            json(&Environment {
                host: state.host.info.clone(),
                gpus: state.gpus.iter().map(|gpu| gpu.info.clone()).collect(),
                gpu_absent: state.gpu_absent.as_ref().map(|absent| absent.reason.clone()),
                ..Environment::here()
            })
        });
    }

    pub(super) fn write_reports(&mut self, state: &RunState) {
        if self.dir().is_some() {
            for document in documents(state) {
                self.write(|dir| dir.path().join(document.name), || document.content.into_bytes());
            }
        }
    }

    /// The last snapshot of `state`.
    pub(super) fn write_snapshot(&mut self, state: &RunState) {
        if let Some(snapshot) = state.snapshots.back() {
            self.write(|dir| dir.snapshot(&snapshot.name), || json(snapshot));
        }
    }

    /// Writes a file into the directory, where there is one.
    fn write(&mut self, path: impl FnOnce(&RunDir) -> PathBuf, content: impl FnOnce() -> Vec<u8>) {
        let Target::Dir(dir, _) = &self.target else { return };
        let path = path(dir);
        if let Some(parent) = path.parent().filter(|parent| *parent != dir.path()) {
            // Where this fails, so does the write.
            let _ = fs::create_dir(parent);
        }
        if let Err(e) = fs::write(&path, content()) {
            tracing::error!("{}: {e}", path.display());
            self.unwritten = Some(format!("{}: {e}", path.display()));
        }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}
