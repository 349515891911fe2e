//! The run that the keys act on: local or remote.

use std::{path::Path, time::Duration};

use llmprof_event::{Outcome, Tool, WorkKind};
use llmprof_record::{
    rundir::Loss,
    state::{RunState, Snapshot},
};
use llmprof_run::{
    remote::{Order, RemoteRun},
    session::Session,
};
use llmprof_screen::view::RemoteView;

pub enum Workload {
    Here(Box<Session>),
    There(Box<RemoteRun>),
}

impl From<Session> for Workload {
    fn from(session: Session) -> Workload {
        Workload::Here(Box::new(session))
    }
}

impl Workload {
    pub fn state(&self) -> &RunState {
        match self {
            Workload::Here(session) => &session.state,
            Workload::There(run) => &run.state,
        }
    }

    /// The local directory of the run, if it is recorded.
    pub fn dir(&self) -> Option<&Path> {
        match self {
            Workload::Here(session) => session.dir(),
            Workload::There(run) => run.dir(),
        }
    }

    pub fn loss(&self) -> Option<Loss> {
        match self {
            Workload::Here(session) => session.loss(),
            Workload::There(run) => run.loss(),
        }
    }

    pub fn is_for_tools_alone(&self) -> bool {
        match self {
            Workload::Here(session) => session.plan().is_for_tools_alone(),
            Workload::There(run) => run.is_for_tools_alone(),
        }
    }

    /// Whether the metrics of a server are monitored.
    pub fn watches_server(&self) -> bool {
        match self {
            Workload::Here(session) => session.plan().composed.config.telemetry.server.is_some(),
            Workload::There(run) => run.state.server.is_there(),
        }
    }

    pub fn kind(&self) -> &WorkKind {
        match self {
            Workload::Here(session) => session.state.kind(),
            Workload::There(run) => run.state.kind(),
        }
    }

    pub fn overrides(&self) -> &[String] {
        match self {
            Workload::Here(session) => &session.plan().composed.overrides,
            Workload::There(run) => run.overrides(),
        }
    }

    /// The tool of the re-run in progress.
    pub fn tool(&self) -> Option<Tool> {
        match self {
            Workload::Here(session) => session.tool(),
            Workload::There(run) => run.tool(),
        }
    }

    /// The workload was asked to pause and has not paused yet; for a remote run, any other unanswered command.
    pub(super) fn pending(&self) -> Option<&'static str> {
        let state = self.state();
        let paused = state.workload_paused_at.is_some() || state.finished.is_some();
        match self {
            Workload::Here(session) => (session.control.is_paused() && !paused).then_some("pausing"),
            Workload::There(run) => run.pending(),
        }
    }

    pub(super) fn toggle_pause(&mut self) {
        match self {
            Workload::Here(session) => session.toggle_pause(),
            Workload::There(run) => run.toggle_pause(),
        }
    }

    /// Returns a message for the user; that of a remote run arrives later.
    pub(super) fn toggle_kernels(&mut self) -> Option<String> {
        match self {
            Workload::Here(session) => Some(session.toggle_kernels()),
            Workload::There(run) => send(run, Order::ToggleKernels),
        }
    }

    pub(super) fn snapshot(&mut self, name: &str) -> Option<String> {
        match self {
            Workload::Here(session) => Some(session.snapshot(name)),
            Workload::There(run) => send(run, Order::Snapshot { name: name.to_owned() }),
        }
    }

    pub(super) fn rerun(&mut self, tool: Tool) -> Option<String> {
        match self {
            Workload::Here(session) => session.rerun(tool),
            Workload::There(run) => send(run, Order::Tool { name: tool.name().to_owned() }),
        }
    }

    /// Stores a message of the screen while the run is in progress.
    pub(super) fn keep_message(&mut self, text: &str) {
        match self {
            Workload::Here(session) => session.keep_message(text),
            Workload::There(run) if run.is_connected() && run.is_running() => {
                run.order(Order::KeepMessage { text: text.to_owned() });
            }
            Workload::There(_) => {}
        }
    }

    /// Adds the time of a frame to the overhead of the run, if it is local.
    pub(super) fn drew(&mut self, elapsed: Duration) {
        if let Workload::Here(session) = self {
            session.drew(elapsed);
        }
    }

    pub(super) async fn pump(&mut self) -> usize {
        match self {
            Workload::Here(session) => session.pump().await,
            Workload::There(run) => run.pump().await,
        }
    }

    /// The snapshots of earlier runs on a remote host; none for a local run.
    pub(super) fn earlier_snapshots(&self) -> &[Snapshot] {
        match self {
            Workload::Here(_) => &[],
            Workload::There(run) => run.earlier_snapshots(),
        }
    }

    /// The connection to the remote host.
    pub(super) fn remote_view(&self) -> Option<RemoteView> {
        match self {
            Workload::Here(_) => None,
            Workload::There(run) => Some(RemoteView {
                host: run.host().short().to_owned(),
                id: run.id().unwrap_or_default().to_owned(),
                link: run.link(),
                fetching: run.fetching(),
                goes_on: run.is_running(),
            }),
        }
    }

    /// Requests the end of a remote run.
    pub(super) fn cancel_there(&mut self) {
        if let Workload::There(run) = self {
            run.order(Order::End {
                outcome: Outcome::Interrupted,
                cause: Some("quit by the user".to_owned()),
            });
        }
    }
}

/// Reports if the command has to wait for the connection.
fn send(run: &mut RemoteRun, order: Order) -> Option<String> {
    run.order(order);
    (!run.is_connected()).then(|| format!("this is done once {} is connected again", run.host().short()))
}
