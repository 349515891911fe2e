//! A run that a command asks for, and its plan.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{Failure, args::ConfigRequest, conf_consent::MayAsk};
use llmprof_app::Replan;
use llmprof_config::Override;
use llmprof_run::plan::{Plan, gives_shape};
use llmprof_sources::attach::{OutputTo, Target};

pub(super) struct RunRequest {
    pub(super) config: ConfigRequest,
    /// The program to follow; `None` for the work of the configuration.
    pub(super) program: Option<Program>,
    pub(super) shown: Shown,
    /// A remark for the Log, or for stderr without a screen.
    pub(super) remark: Option<String>,
}

/// Another program.
pub(super) struct Program {
    pub(super) target: Target,
    /// The `config.json` of its model, if one was found.
    pub(super) model: Option<PathBuf>,
}

/// How a run is shown.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shown {
    pub(super) headless: bool,
    pub(super) json: bool,
    pub(super) quiet: bool,
    /// The run ends after this time.
    pub(super) seconds: Option<f64>,
}

pub(super) struct Planned {
    pub(super) plan: Plan,
    /// Plans the run again, with other overrides.
    pub(super) replan: Replan,
}

impl RunRequest {
    pub(super) fn plan(&self) -> Result<Planned, Failure> {
        let plan = match &self.program {
            None => self.config.plan()?,
            Some(program) => program.plan(self.config.clone())?,
        };
        let conf_dir = self.config.conf_dir.clone();
        let target = self.program.as_ref().map(|program| program.target.clone());
        let replan = move |overrides: Vec<Override>| {
            let config = ConfigRequest { conf_dir: conf_dir.clone(), overrides };
            config.plan_of(target.as_ref(), MayAsk::No).map_err(|failure| failure.to_string())
        };
        Ok(Planned { plan, replan: Box::new(replan) })
    }
}

impl Program {
    /// A program that this one starts in the working directory.
    pub(super) fn started(command: Vec<OsString>, output: OutputTo) -> Program {
        let model = model_of(&command, std::env::current_dir().ok().as_deref());
        Program { target: Target::Start { command, output }, model }
    }

    /// The command of a program that this one starts.
    pub(super) fn command(&self) -> Option<&[OsString]> {
        match &self.target {
            Target::Start { command, .. } => Some(command),
            Target::Join { .. } => None,
        }
    }

    fn plan(&self, mut config: ConfigRequest) -> Result<Plan, Failure> {
        let has_model = config.overrides.iter().any(gives_shape);
        config.preset([Override::of_text("runtime", "program")]);
        if !has_model && !config.sets("model.name") {
            // The run is stored under the name of the program.
            config.overrides.push(Override::of_text("model.name", &self.target.file_name()));
        }
        let plan = |config: &ConfigRequest| config.plan_of(Some(&self.target), MayAsk::Yes);
        let Some(model) = self.model.as_ref().filter(|_| !has_model) else { return plan(&config) };
        let shape = Override::of_text("model.config_json", &model.display().to_string());
        let mut with_shape = config.clone();
        with_shape.overrides.push(shape.clone());
        plan(&with_shape).or_else(|failure| {
            // An unreadable shape does not prevent following the program.
            let mut plan = plan(&config)?;
            plan.remarks.push(format!("the model's shape is not used ({shape}): {failure}"));
            Ok(plan)
        })
    }
}

/// The `config.json` in a directory that the command names.
pub(super) fn model_of(command: &[OsString], directory: Option<&Path>) -> Option<PathBuf> {
    let candidates = command.iter().skip(1).flat_map(|word| {
        let text = word.to_string_lossy().into_owned();
        let value = text.split_once('=').map(|(_, value)| value.to_owned());
        [Some(text), value].into_iter().flatten().collect::<Vec<_>>()
    });
    candidates.filter(|word| !word.starts_with('-')).find_map(|word| {
        let path = directory.unwrap_or(Path::new(".")).join(word).join("config.json");
        path.is_file().then_some(path)
    })
}
