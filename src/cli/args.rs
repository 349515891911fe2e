//! Arguments that several commands share.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, CommandFactory, ValueEnum};

use super::{
    Cli, Failure,
    conf_consent::{self, MayAsk},
};
use llmprof_base::shell::quoted;
use llmprof_config::{
    Composed, Composition, ConfTree, ConfigError, Override, RiskySetting, compose, compose_untyped, find_tree,
};
use llmprof_record::rundir::find_run;
use llmprof_run::plan::Plan;
use llmprof_sources::attach::Target;

/// The configuration: files, and overrides on the command line.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ConfigArgs {
    /// Set the model (short for the override model=MODEL)
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Search DIR for configuration files before the built-in ones (default: ./conf, if it exists)
    #[arg(long, value_name = "DIR")]
    pub(super) conf_dir: Option<PathBuf>,
    /// Serve the metrics of the run to Prometheus at ADDRESS, e.g. 127.0.0.1:9464
    #[arg(long, value_name = "ADDRESS")]
    pub(super) metrics: Option<String>,
    /// Print the configuration and exit, like the command `config`
    #[arg(long, value_name = "WHICH")]
    pub(super) cfg: Option<WhichConfig>,
    /// Hydra-style overrides: key=value, group=option, +key=value, ~key
    #[arg(value_name = "OVERRIDES")]
    pub(super) overrides: Vec<String>,
}

/// The project that models, datasets and reference sources belong to.
#[derive(Debug, Clone, Args)]
pub(super) struct ProjectArgs {
    /// Use DIR as the project directory, which contains models/, datasets/ and third_party/
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) root: PathBuf,
}

/// The configuration to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum WhichConfig {
    /// The configuration of the run
    Job,
    /// The configuration of Hydra itself
    Hydra,
}

impl ConfigArgs {
    pub(super) fn with_overrides(overrides: &[String]) -> ConfigArgs {
        ConfigArgs { overrides: overrides.to_vec(), ..ConfigArgs::default() }
    }

    /// The parsed arguments.
    pub(super) fn request(&self) -> Result<ConfigRequest, Failure> {
        self.reject_bare_words()?;
        let mut overrides = self.options()?;
        for word in &self.overrides {
            overrides.push(Override::parse(word).map_err(Failure::usage)?);
        }
        Ok(ConfigRequest { conf_dir: self.conf_dir.clone(), overrides })
    }

    /// The parsed arguments, and the URLs among them.
    pub(super) fn request_and_urls(&self) -> Result<(ConfigRequest, Vec<String>), Failure> {
        let is_url = |word: &String| word.starts_with("http://") || word.starts_with("https://");
        let (urls, overrides) = self.overrides.iter().cloned().partition(is_url);
        Ok((ConfigArgs { overrides, ..self.clone() }.request()?, urls))
    }

    /// The options that are short for overrides.
    fn options(&self) -> Result<Vec<Override>, Failure> {
        // A model may be several, for a sweep.
        let model = self.model.iter().map(|model| Override::parse(&format!("model={model}")));
        let metrics = self.metrics.iter().map(|address| Ok(Override::of_text("output.metrics", address)));
        model.chain(metrics).collect::<Result<_, _>>().map_err(Failure::usage)
    }

    pub(super) fn compose(&self) -> Result<Composed, Failure> {
        self.request()?.compose()
    }

    /// Refuses a word that is not an override: most often it is a mistyped command.
    pub(super) fn reject_bare_words(&self) -> Result<(), Failure> {
        let Some(word) = self.overrides.iter().find(|o| !o.contains('=') && !o.starts_with('~')) else {
            return Ok(());
        };
        let cli = Cli::command();
        let commands: Vec<&str> =
            cli.get_subcommands().filter(|command| !command.is_hide_set()).map(|c| c.get_name()).collect();
        if commands.contains(&word.as_str()) {
            let options = self.options()?;
            let rest = self.overrides.iter().filter(|other| *other != word);
            let words = ["llmprof-tui", word].into_iter();
            let words =
                words.chain(options.iter().map(|given| given.text.as_str())).chain(rest.map(String::as_str));
            let line = words.map(quoted).collect::<Vec<_>>().join(" ");
            return Err(Failure::usage(format_args!(
                "{word:?} is a command and comes before the overrides: {line}"
            )));
        }
        let near: Vec<&str> =
            commands.iter().filter(|c| strsim::damerau_levenshtein(c, word) <= 2).copied().collect();
        let hint =
            if near.is_empty() { String::new() } else { format!(" Did you mean {}?", near.join(", ")) };
        let all = commands.join(", ");
        Err(Failure::usage(format_args!(
            "{word:?} is neither a command ({all}) nor an override (key=value).{hint}"
        )))
    }
}

/// A configuration that is asked for: parsed overrides, and the directory of the files.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfigRequest {
    pub(super) conf_dir: Option<PathBuf>,
    pub(super) overrides: Vec<Override>,
}

impl ConfigRequest {
    /// Adds overrides over which all others take precedence.
    pub(super) fn preset(&mut self, overrides: impl IntoIterator<Item = Override>) {
        self.overrides.splice(..0, overrides);
    }

    /// Whether an override gives `key` a value.
    pub(super) fn sets(&self, key: &str) -> bool {
        self.overrides.iter().any(|given| given.sets(key))
    }

    pub(super) fn tree(&self) -> Result<ConfTree, Failure> {
        let cwd = env::current_dir()
            .map_err(|e| Failure::usage(format_args!("cannot read the working directory: {e}")))?;
        find_tree(self.conf_dir.as_deref(), &cwd).map_err(Failure::usage)
    }

    pub(super) fn compose(&self) -> Result<Composed, Failure> {
        compose(&self.tree()?, &with_model_name(self.overrides.clone())).map_err(with_runtimes)
    }

    /// The configuration as it was written: `${…}` unresolved, values of any type.
    pub(super) fn compose_untyped(&self) -> Result<Composition, Failure> {
        compose_untyped(&self.tree()?, &with_model_name(self.overrides.clone())).map_err(Failure::usage)
    }

    /// The requested run. Settings of `./conf` that start programs or connect are asked for once.
    pub(super) fn plan(&self) -> Result<Plan, Failure> {
        self.plan_of(None, MayAsk::Yes)
    }

    /// The same for a run that follows `program`, if there is one.
    pub(super) fn plan_of(&self, program: Option<&Target>, may_ask: MayAsk) -> Result<Plan, Failure> {
        let composed = self.compose()?;
        self.confirm(&[&composed], may_ask)?;
        Ok(match program {
            None => Plan::new(composed)?,
            Some(program) => Plan::of_program(composed, program.clone())?,
        })
    }

    /// Asks for consent to what `./conf` would start in these runs; `--conf-dir` is the user's own choice.
    pub(super) fn confirm(&self, runs: &[&Composed], may_ask: MayAsk) -> Result<(), Failure> {
        if self.conf_dir.is_some() {
            return Ok(());
        }
        let settings =
            runs.iter().flat_map(|composed| RiskySetting::find_all(&composed.composition)).collect();
        conf_consent::confirm(Path::new("conf"), settings, may_ask)
    }
}

/// The duration of `--for`.
pub(super) fn time_of(seconds: f64) -> Result<Duration, Failure> {
    match (0.0..=1e9).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(Failure::usage(format_args!("--for {seconds}: expected a number of seconds"))),
    }
}

/// Adds a model name if the shape comes from a file: the default name would be wrong.
pub(super) fn with_model_name(mut overrides: Vec<Override>) -> Vec<Override> {
    let is_named = overrides.iter().any(|given| given.sets("model.name"));
    let file = overrides.iter().find(|given| given.sets("model.config_json")).and_then(Override::value_text);
    if let Some(name) = file.filter(|_| !is_named).map(|path| model_name(Path::new(path))) {
        overrides.push(Override::of_text("model.name", &name));
    }
    overrides
}

/// The model name for a shape from `path`: the file's name, or the directory's for a plain `config.json`.
fn model_name(path: &Path) -> String {
    let stem = path.file_stem().filter(|stem| *stem != "config");
    let name = stem.or_else(|| path.parent().and_then(Path::file_name)).unwrap_or(OsStr::new("custom"));
    let safe = |c: char| if c.is_alphanumeric() || "-_".contains(c) { c } else { '_' };
    name.to_string_lossy().chars().map(safe).collect()
}

/// The directory of all runs: the constant part of the run directory's pattern.
pub(super) fn runs_root(composed: &Composed) -> PathBuf {
    let dir = PathBuf::from(&composed.config.hydra.run.dir);
    dir.iter()
        .next()
        .filter(|_| dir.is_relative())
        .map_or_else(|| dir.ancestors().nth(3).unwrap_or(&dir).to_owned(), PathBuf::from)
}

/// A path unchanged, or the run that a short name means: `latest`, `latest~1`, a part of a path. A name without a run
/// is returned unchanged, for the error message.
pub(super) fn resolve_run(name: &Path) -> Result<PathBuf, Failure> {
    if name.exists() {
        return Ok(name.to_owned());
    }
    let runs = runs_root(&ConfigArgs::default().compose()?);
    let found = find_run(&runs, &name.to_string_lossy()).map_err(Failure::usage)?;
    Ok(found.unwrap_or_else(|| name.to_owned()))
}

/// Adds to errors about keys of load and server the runtimes that load-test a server.
fn with_runtimes(error: ConfigError) -> Failure {
    match &error {
        ConfigError::UnknownKey { key, .. }
            if key.starts_with("runtime.load") || key.starts_with("runtime.server") =>
        {
            Failure::usage(format_args!(
                "{error}; it is a key of the runtimes that load-test a server: runtime=openai, vllm, sglang, llamacpp or tensorrtllm"
            ))
        }
        _ => Failure::usage(error),
    }
}
