//! A run that a command asks for, and its plan.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{Failure, args::ConfigRequest};
use llmprof_app::Replan;
use llmprof_config::Override;
use llmprof_run::plan::{Plan, gives_shape};
use llmprof_sources::attach::{OutputTo, Target};

pub(super) struct RunRequest {
    pub(super) config: ConfigRequest,
    pub(super) subject: Subject,
    pub(super) shown: Shown,
    /// A remark for the Log, or for stderr without a screen.
    pub(super) remark: Option<String>,
}

/// What runs.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    /// The workload of the configuration.
    Workload,
    /// Another program. `model` is the `config.json` of its model, if one was found.
    Program { target: Target, model: Option<PathBuf> },
    /// Nothing: GPUs and servers are monitored.
    Watch,
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

impl Subject {
    /// A program that this one starts in the working directory.
    pub(super) fn started(command: Vec<OsString>, output: OutputTo) -> Subject {
        let model = model_of(&command, std::env::current_dir().ok().as_deref());
        Subject::Program { target: Target::Start { command, output }, model }
    }

    /// The command of a program that this one starts.
    pub(super) fn command(&self) -> Option<&[OsString]> {
        match self {
            Subject::Program { target: Target::Start { command, .. }, .. } => Some(command),
            Subject::Program { target: Target::Join { .. }, .. } | Subject::Workload | Subject::Watch => None,
        }
    }
}

impl RunRequest {
    pub(super) fn plan(&self) -> Result<Planned, Failure> {
        let (config, followed) = match &self.subject {
            Subject::Workload | Subject::Watch => (self.config.clone(), None),
            Subject::Program { target, model } => {
                let (config, plan, has_model) = self.plan_program(target, model.as_deref())?;
                (config, Some((plan, target.clone(), has_model)))
            }
        };
        match followed {
            None => {
                let plan = config.plan()?;
                Ok(Planned { plan, replan: Box::new(move |overrides| plan_again(&config, overrides)) })
            }
            Some((plan, target, has_model)) => Ok(Planned {
                plan: plan.following(target.clone(), has_model),
                replan: Box::new(move |overrides| {
                    Ok(plan_again(&config, overrides)?.following(target.clone(), has_model))
                }),
            }),
        }
    }

    /// The configuration and the plan for another program, and whether the shape of its model is known.
    fn plan_program(
        &self,
        target: &Target,
        model: Option<&Path>,
    ) -> Result<(ConfigRequest, Plan, bool), Failure> {
        let mut config = self.config.clone();
        let has_model = config.overrides.iter().any(gives_shape);
        config.preset(&["runtime=program"])?;
        if !has_model && !config.sets("model.name") {
            // The run is stored under the name of the program.
            config.overrides.push(Override::of_text("model.name", &target.file_name()));
        }
        let Some(model) = model.filter(|_| !has_model) else {
            let plan = config.plan()?;
            return Ok((config, plan, has_model));
        };
        let shape = Override::of_text("model.config_json", &model.display().to_string());
        let mut with_shape = config.clone();
        with_shape.overrides.push(shape.clone());
        match with_shape.plan() {
            Ok(plan) => Ok((with_shape, plan, true)),
            // An unreadable shape does not prevent following the program.
            Err(failure) => {
                let mut plan = config.plan()?;
                plan.remarks.push(format!("the model's shape is not used ({shape}): {failure}"));
                Ok((config, plan, false))
            }
        }
    }
}

fn plan_again(config: &ConfigRequest, overrides: &[String]) -> Result<Plan, String> {
    let plan = config.with_texts(overrides).and_then(|config| config.plan_again());
    plan.map_err(|failure| failure.to_string())
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
