//! The consent that resuming a sweep needs: for files of another user, and for programs that its configuration starts.

use std::{
    fmt,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::rerun::{command_line, configured_tools};
use llmprof_base::{
    foreign::{MAX_LINE, line},
    shell::quoted,
};
use llmprof_config::{Override, RunConfig};

/// Maximum number of jobs in the question.
const MAX_JOBS: usize = 20;

/// The actions of a sweep that the user must agree to.
#[derive(Debug, Default)]
pub struct Consent {
    dir: PathBuf,
    /// The owner of the sweep, if it is another user.
    owner: Option<u32>,
    conf_dir: Option<PathBuf>,
    jobs: Vec<String>,
    /// The command lines of the tools, each once.
    commands: Vec<String>,
    /// Servers that receive prompts.
    servers: Vec<String>,
}

impl Consent {
    /// For the sweep in `dir`, whose jobs are in the open file `plan`.
    pub(super) fn new(dir: &Path, plan: &File, conf_dir: Option<&Path>) -> io::Result<Consent> {
        let mut owners = vec![dir.metadata()?.uid(), plan.metadata()?.uid()];
        // A missing directory has its own error.
        owners.extend(conf_dir.and_then(|dir| dir.metadata().ok()).map(|folder| folder.uid()));
        let owner = other_owner(&owners, rustix::process::geteuid().as_raw());
        let conf_dir = conf_dir.map(Path::to_owned);
        Ok(Consent { dir: dir.to_owned(), owner, conf_dir, ..Consent::default() })
    }

    /// Adds a job that would run.
    pub(super) fn add(&mut self, label: &str, overrides: &[Override], config: &RunConfig) {
        let words: Vec<String> = overrides.iter().map(|given| quoted(&given.text)).collect();
        self.jobs.push(line(&format!("{label}: {}", words.join(" ")), MAX_LINE));
        let tools = configured_tools(config).into_iter().map(|tool| command_line(tool, config));
        for command in tools.chain(own_programs(config)) {
            let command = line(&command, MAX_LINE);
            if !self.commands.contains(&command) {
                self.commands.push(command);
            }
        }
        let runtime = &config.runtime;
        if let Some(url) =
            runtime.server().and_then(|server| server.url.as_ref()).map(|url| line(url, MAX_LINE))
            && !self.servers.contains(&url)
        {
            self.servers.push(url);
        }
    }

    /// Adds lines of shell that run before each job.
    pub(super) fn add_setup(&mut self, lines: &[String]) {
        self.commands.extend(lines.iter().map(|command| line(command, MAX_LINE)));
    }

    /// Whether the user must agree before the sweep is resumed.
    pub(super) fn is_needed(&self) -> bool {
        !self.jobs.is_empty()
            && (self.owner.is_some() || !self.commands.is_empty() || !self.servers.is_empty())
    }
}

/// Programs and code that the configuration itself names.
fn own_programs(config: &RunConfig) -> Vec<String> {
    let runtime = &config.runtime;
    let command = runtime.server().and_then(|server| server.command.clone());
    let mut programs: Vec<String> = command.into_iter().collect();
    if let Some(settings) = runtime.pytorch() {
        let python = settings.python.as_deref().unwrap_or("python3");
        programs
            .extend(settings.script.as_ref().map(|script| format!("{} {}", quoted(python), quoted(script))));
        if settings.script.is_none() && (settings.python.is_some() || settings.trust_remote_code) {
            programs.push(quoted(python));
        }
    }
    programs
}

/// The first owner that is not this user.
fn other_owner(owners: &[u32], user: u32) -> Option<u32> {
    owners.iter().copied().find(|owner| *owner != user)
}

impl fmt::Display for Consent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "To resume the sweep in {}:", line(&self.dir.display().to_string(), MAX_LINE))?;
        if let Some(owner) = self.owner {
            write!(f, "\n  It belongs to another user (uid {owner}).")?;
        }
        if let Some(dir) = &self.conf_dir {
            write!(f, "\n  Its configuration is in {}.", line(&dir.display().to_string(), MAX_LINE))?;
        }
        if !self.commands.is_empty() {
            f.write_str("\n  It starts programs:")?;
        }
        for command in &self.commands {
            write!(f, "\n    {command}")?;
        }
        for server in &self.servers {
            write!(f, "\n  It sends requests to {server}")?;
        }
        f.write_str("\n  It runs:")?;
        for job in self.jobs.iter().take(MAX_JOBS) {
            write!(f, "\n    {job}")?;
        }
        match self.jobs.len().saturating_sub(MAX_JOBS) {
            0 => Ok(()),
            more => write!(f, "\n    … and {more} more jobs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::{built_in, compose};

    #[test]
    fn files_of_another_user_need_consent() {
        assert_eq!(other_owner(&[7, 7], 7), None);
        assert_eq!(other_owner(&[7, 8, 7], 7), Some(8));
        assert_eq!(other_owner(&[7, 7], 0), Some(7), "a superuser is asked too");
    }

    #[test]
    fn tools_need_consent_and_are_shown() {
        let asked = |overrides: &[&str]| {
            let overrides: Vec<Override> =
                overrides.iter().map(|text| Override::parse(text).unwrap()).collect();
            let config = compose(&built_in(), &overrides).unwrap().config;
            let mut consent = Consent { dir: "runs/x".into(), ..Consent::default() };
            consent.add("job 1/2", &overrides, &config);
            consent.add("job 2/2", &overrides, &config);
            consent
        };
        assert!(!asked(&["runtime=candle"]).is_needed());
        assert!(!asked(&["runtime=sim", "profiling=nsys"]).is_needed(), "a simulated run starts nothing");
        let consent = asked(&["profiling=nsys", "profiling.nsys.extra=['--gpuctxsw=true']"]);
        assert!(consent.is_needed());
        let text = consent.to_string();
        assert_eq!(text.matches("nsys profile --gpuctxsw=true -t cuda,nvtx").count(), 1, "{text}");
        assert!(text.contains("job 2/2: profiling=nsys ") && !text.contains("uid"), "{text}");
        for (overrides, command) in [
            (&["runtime=pytorch", "runtime.pytorch.script=my code.py"][..], "python3 'my code.py'"),
            (&["runtime=pytorch", "runtime.pytorch.python=/tmp/python"], "/tmp/python"),
            (&["runtime=vllm", "runtime.server.command='vllm serve x'"], "vllm serve x"),
        ] {
            let consent = asked(overrides);
            assert!(consent.is_needed() && consent.to_string().contains(command), "{consent}");
        }
        assert!(!asked(&["runtime=pytorch"]).is_needed(), "the Python of the user");
        let foreign = Consent { owner: Some(8), ..asked(&["runtime=candle"]) };
        assert!(foreign.is_needed() && foreign.to_string().contains("another user (uid 8)"));
        assert!(!Consent { owner: Some(8), ..Consent::default() }.is_needed(), "no job is left");
        let mut setup = Consent { dir: "runs/x".into(), ..Consent::default() };
        setup.add_setup(&["rm -r /".into()]);
        assert!(!setup.is_needed(), "no job is left");
        setup.jobs.push("job 1/1".into());
        assert!(setup.is_needed() && setup.to_string().contains("rm -r /"), "{setup}");
        let mut spoof = Consent { dir: "runs/x\nall is well".into(), ..foreign };
        spoof.add(
            "job 3/3",
            &[Override::of_text("a", "\nall is well")],
            &compose(&built_in(), Override::NONE).unwrap().config,
        );
        assert!(!spoof.to_string().lines().any(|line| line.starts_with("all is well")), "{spoof}");
    }
}
