//! Completion with TAB: the candidates for the word at the cursor.
//!
//! The scripts that `llmprof-tui completion SHELL` prints call the program (`llmprof-tui __complete …`), which reads
//! the commands, `conf/` and the words already on the line. `clap_complete` does not fit: its bash script receives the
//! line split at `=` and `:`, its completers cannot see earlier arguments (`--conf-dir`, overrides), and it adds a
//! space after unfinished words such as `runtime.`.

mod line;
mod paths;
mod recorded;

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    panic,
    path::{Path, PathBuf},
};

use clap::{Arg, Args, Command, CommandFactory, ValueEnum, ValueHint};

use super::Cli;
use llmprof_analysis::peaks::GPUS;
use llmprof_base::{
    foreign::{self, MAX_LINE, is_hidden},
    read,
};
use llmprof_config::{Candidate, Candidates, ConfTree, built_in, find_tree};
use llmprof_sources::sim::scenario::Scenario;

/// The command that the scripts call.
pub(super) const COMMAND: &str = "__complete";

pub(super) const EXAMPLES: &str = "\
bash: eval \"$(llmprof-tui completion bash)\" in ~/.bashrc
zsh:  source <(llmprof-tui completion zsh) in ~/.zshrc, after compinit
fish: llmprof-tui completion fish | source in ~/.config/fish/config.fish";

/// The data that a script sends.
#[derive(Debug, Args)]
pub(super) struct CompleteArgs {
    shell: Shell,
    /// zsh and fish send the words after the program's name, the last being the one at the cursor; bash sends the line up
    /// to the cursor and the characters at which it breaks words
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    sent: Vec<OsString>,
}

/// The supported shells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// The script that makes this shell call the program.
    pub(super) fn script(self) -> &'static str {
        match self {
            Shell::Bash => include_str!("llmprof-tui.bash"),
            Shell::Zsh => include_str!("llmprof-tui.zsh"),
            Shell::Fish => include_str!("llmprof-tui.fish"),
        }
    }
}

/// Keys whose values are paths.
const PATH_KEYS: [&str; 4] =
    ["model.weights", "model.config_json", "dataset.prompts.file", "dataset.sampling.subset_filelist"];

/// Prints the candidates. Errors are silent: the user is in the middle of a line.
pub(super) fn complete(args: &CompleteArgs) -> u8 {
    let sent: Vec<String> = args.sent.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let cwd = env::current_dir().unwrap_or_default();
    let lines = panic::catch_unwind(|| lines(args.shell, &sent, &cwd));
    let _ = io::stdout().write_all(lines.unwrap_or_default().as_bytes());
    0
}

/// The candidates as the script of `shell` reads them, one per line.
fn lines(shell: Shell, sent: &[String], cwd: &Path) -> String {
    match shell {
        Shell::Bash => {
            let [line, breaks] = [0, 1].map(|i| sent.get(i).map_or("", String::as_str));
            let line = line::split(line, breaks);
            let found = printable(candidates(Cli::command(), &line.before, &line.current, cwd));
            found.iter().filter_map(|one| line.insertion(one)).map(|text| text + "\n").collect()
        }
        Shell::Zsh | Shell::Fish => {
            let (current, before) =
                sent.split_last().map_or(("", sent), |(last, rest)| (last.as_str(), rest));
            let found = printable(candidates(Cli::command(), before, current, cwd));
            found.iter().map(|one| format!("{}\t{}\n", one.text, one.note)).collect()
        }
    }
}

/// The candidates that fit on one line each. Names of files and options may contain anything; a candidate that would be
/// shown differently cannot be completed.
fn printable(mut found: Vec<Candidate>) -> Vec<Candidate> {
    found.retain(|one| !one.text.contains(|c: char| c.is_control() || is_hidden(c)));
    found.iter_mut().for_each(|one| one.note = foreign::line(&one.note, MAX_LINE));
    found
}

/// The candidates for the word `current`, after the words `before` it.
fn candidates(mut command: Command, before: &[String], current: &str, cwd: &Path) -> Vec<Candidate> {
    command.build();
    let cursor = Cursor::after(&command, before);
    let tree = match &cursor.conf_dir {
        Some(dir) => find_tree(Some(&cwd.join(dir)), cwd),
        None => find_tree(None, cwd),
    };
    let tree = tree.unwrap_or_else(|_| built_in());
    let values = |arg: &Arg, partial: &str| cursor.values_of(arg, partial, &tree, cwd);
    if let Some(arg) = cursor.pending {
        return values(arg, current);
    }
    if current.starts_with('-') && !cursor.only_values {
        if let Some((flag, partial)) = current.split_once('=') {
            let arg = cursor.command.get_arguments().find(|arg| is_flag(arg, flag) && takes_value(arg));
            let mut found = arg.map_or_else(Vec::new, |arg| values(arg, partial));
            found.iter_mut().for_each(|one| one.text.insert_str(0, &format!("{flag}=")));
            return found;
        }
        return flags(cursor.command, current);
    }
    let mut found = Vec::new();
    if cursor.positionals == 0 && !cursor.only_values {
        let commands = cursor.command.get_subcommands().filter(|command| !command.is_hide_set());
        let begun = commands.filter(|command| command.get_name().starts_with(current));
        found
            .extend(begun.map(|command| Candidate::complete(command.get_name(), about(command.get_about()))));
    }
    if let Some(arg) = cursor.positional() {
        found.extend(values(arg, current));
    }
    found
}

/// The state of the line at the cursor.
struct Cursor<'c> {
    command: &'c Command,
    /// A flag that expects its value.
    pending: Option<&'c Arg>,
    positionals: usize,
    /// After `--`.
    only_values: bool,
    conf_dir: Option<PathBuf>,
    overrides: Vec<String>,
}

impl<'c> Cursor<'c> {
    fn after(command: &'c Command, before: &[String]) -> Cursor<'c> {
        let mut cursor = Cursor {
            command,
            pending: None,
            positionals: 0,
            only_values: false,
            conf_dir: None,
            overrides: Vec::new(),
        };
        for word in before {
            cursor.pass(word);
        }
        cursor
    }

    fn pass(&mut self, word: &str) {
        if let Some(arg) = self.pending.take() {
            return self.keep(arg, word);
        }
        if word == "--" {
            self.only_values = true;
        } else if word.starts_with('-') && !self.only_values {
            let (flag, value) =
                word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
            let arg = self.command.get_arguments().find(|arg| is_flag(arg, flag) && takes_value(arg));
            match (arg, value) {
                (Some(arg), Some(value)) => self.keep(arg, value),
                (arg, _) => self.pending = arg,
            }
        } else if let Some(below) =
            self.command.find_subcommand(word).filter(|_| self.positionals == 0 && !self.only_values)
        {
            self.command = below;
        } else {
            if self.positional().is_some_and(|arg| arg.get_id() == "overrides") {
                self.overrides.push(word.to_owned());
            }
            self.positionals += 1;
        }
    }

    fn keep(&mut self, arg: &Arg, value: &str) {
        match arg.get_id().as_str() {
            "conf_dir" => self.conf_dir = Some(value.into()),
            "model" => self.overrides.push(format!("model={value}")),
            _ => {}
        }
    }

    /// The argument that the next positional word belongs to.
    fn positional(&self) -> Option<&'c Arg> {
        let many = |arg: &Arg| arg.get_num_args().is_some_and(|range| range.max_values() > 1);
        let mut left = self.positionals;
        self.command.get_positionals().find(|arg| {
            let here = left == 0 || many(arg) || matches!(arg.get_action(), clap::ArgAction::Append);
            left = left.saturating_sub(1);
            here
        })
    }

    fn values_of(&self, arg: &Arg, partial: &str, tree: &ConfTree, cwd: &Path) -> Vec<Candidate> {
        let known = || Candidates::new(tree, &self.overrides);
        match arg.get_id().as_str() {
            "overrides" => overrides(&known(), partial, cwd),
            "model" => known().options("model", partial),
            "package" => known().packages(partial),
            "gpu" => cards(partial),
            "host" => hosts(partial),
            "run" => recorded::runs(partial, tree, cwd),
            "a" | "b" => recorded::runs_and_baselines(partial, tree, cwd),
            _ => match arg.get_possible_values() {
                values if !values.is_empty() => values
                    .iter()
                    .filter(|value| value.get_name().starts_with(partial))
                    .map(|value| Candidate::complete(value.get_name(), about(value.get_help())))
                    .collect(),
                _ if arg.get_value_hint() == ValueHint::AnyPath => paths::beginning_with(partial, cwd),
                _ => Vec::new(),
            },
        }
    }
}

/// Candidates for overrides: from `conf/`, and values that only the program knows.
fn overrides(known: &Candidates, word: &str, cwd: &Path) -> Vec<Candidate> {
    let Some((key, partial)) = word.split_once('=') else { return known.overrides(word) };
    let plain = key.trim_start_matches(['+', '~']);
    let mut found = if PATH_KEYS.contains(&plain) {
        paths::beginning_with(partial, cwd)
    } else if plain == "telemetry.scenario" || plain == "runtime.sim.scenario" {
        let begun = Scenario::all().filter(|(name, _)| name.starts_with(partial));
        begun.map(|(name, shows)| Candidate::complete(name, shows)).collect()
    } else {
        return known.overrides(word);
    };
    if plain == "model.weights" {
        let names = [
            ("auto", "models/<name> if it exists, else synthetic"),
            ("synthetic", "random weights of the model's shape"),
        ];
        let begun = names.into_iter().filter(|(name, _)| name.starts_with(partial));
        found.extend(begun.map(|(name, note)| Candidate::complete(name, note)));
    }
    found.iter_mut().for_each(|one| one.text.insert_str(0, &format!("{key}=")));
    found
}

/// GPUs with known peaks.
fn cards(partial: &str) -> Vec<Candidate> {
    let names = GPUS.iter().map(|gpu| gpu.name).filter(|name| name.starts_with(partial));
    names.map(|name| Candidate::complete(name, "")).collect()
}

/// Aliases of ssh's configuration, without patterns.
fn hosts(partial: &str) -> Vec<Candidate> {
    let file = env::home_dir().map(|home| home.join(".ssh/config")).unwrap_or_default();
    let text = read::text(&file, read::MAX_DOCUMENT).unwrap_or_default();
    let named = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    let names = named
        .filter(|(key, _)| key.eq_ignore_ascii_case("host"))
        .flat_map(|(_, names)| names.split_whitespace());
    let plain = names.filter(|name| !name.contains(['*', '?', '!']) && name.starts_with(partial));
    plain.map(|name| Candidate::complete(name, "")).collect()
}

fn flags(command: &Command, partial: &str) -> Vec<Candidate> {
    let flags = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
    let words = flags.flat_map(|arg| {
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        [long, short].into_iter().flatten().map(|word| Candidate::complete(word, about(arg.get_help())))
    });
    words.filter(|one| one.text.starts_with(partial)).collect()
}

fn is_flag(arg: &Arg, word: &str) -> bool {
    match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word == format!("-{short}")),
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// The first line of a help text.
fn about(help: Option<&clap::builder::StyledStr>) -> String {
    help.map(|help| help.to_string().lines().next().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The candidates after a line that is split at spaces; unfinished words end in `…`.
    fn after(line: &str) -> Vec<String> {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let current = words.pop().unwrap();
        let nowhere = tempfile::tempdir().unwrap();
        let found = candidates(Cli::command(), &words, &current, nowhere.path());
        found.into_iter().map(|one| if one.complete { one.text } else { one.text + "…" }).collect()
    }

    #[test]
    fn commands_flags_and_values() {
        let table: &[(&str, &[&str])] = &[
            ("repl", &["replay"]),
            ("run --js", &["--json"]),
            ("run --model qwen3_0", &["qwen3_0_6b"]),
            ("run --model=qwen3_0", &["--model=qwen3_0_6b"]),
            ("run --cfg ", &["job", "hydra"]),
            ("run model=qwen3_0", &["model=qwen3_0_6b"]),
            ("model=qwen3_0", &["model=qwen3_0_6b"]),
            ("model=qwen3_8b runtime=s", &["runtime=sglang", "runtime=sim"]),
            ("model=qwen3_8b ru", &["runtime.…", "runtime=…"]),
            ("run runtime.sim.sc", &["runtime.sim.scenario=…"]),
            ("run runtime.sim.scenario=mi", &["runtime.sim.scenario=mixed"]),
            ("run -- --js", &[]),
            ("config --package runtime.si", &["runtime.sim", "runtime.sim.…"]),
            ("config --info ", &["defaults", "searchpath"]),
            ("fetch qwen3_0", &["qwen3_0_6b"]),
            ("fetch qwen3_0_6b qwen", &[]),
            ("completion ", &["bash", "zsh", "fish"]),
            ("dataset pre", &["prepare"]),
            ("bootstrap m", &["models"]),
            ("cost --gpu h100_n", &["h100_nvl"]),
            ("__comp", &[]),
            ("run nonsense ~~ =x run", &["runtime.…", "runtime=…"]),
        ];
        for (line, wanted) in table {
            assert_eq!(after(line), *wanted, "{line}");
        }
        let first = after("");
        for word in ["run", "config", "completion", "model=…", "runtime.…", "experiment=…"] {
            assert!(first.contains(&word.to_owned()), "{word}: {first:?}");
        }
    }

    #[test]
    fn names_of_files_are_one_line_each() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("conf/model")).unwrap();
        for (name, text) in [("x1\nrm", "name: x"), ("x2", "# A\u{1b}]0;title\u{7} note.\nname: x")] {
            std::fs::write(dir.path().join(format!("conf/model/{name}.yaml")), text).unwrap();
        }
        assert_eq!(lines(Shell::Bash, &["llmprof-tui model=x".into(), "=:".into()], dir.path()), "x2 \n");
        let fish = lines(Shell::Fish, &["model=x".into()], dir.path());
        assert!(fish.starts_with("model=x2\t") && fish.lines().count() == 1, "{fish:?}");
        assert!(!fish.contains(['\u{1b}', '\u{7}']), "{fish:?}");
    }

    #[test]
    fn the_conf_dir_on_the_line_is_used() {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [("mine/model/mine.yaml", "name: x"), ("conf/model/here.yaml", "name: x")] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let options = |before: &[&str], current: &str| -> Vec<String> {
            let before: Vec<String> = before.iter().map(|word| word.to_string()).collect();
            let found = candidates(Cli::command(), &before, current, dir.path());
            found.into_iter().map(|one| one.text).collect()
        };
        assert_eq!(
            options(&["--conf-dir", "mine"], "model=mi"),
            ["model=mine", "model=mistral_7b", "model=mixtral_8x7b"]
        );
        assert_eq!(options(&["run", "--conf-dir=mine"], "model=mine"), ["model=mine"]);
        assert_eq!(options(&["run"], "model=here"), ["model=here"]);
        assert_eq!(options(&["run", "--conf-dir", "not/there"], "model=mist"), ["model=mistral_7b"]);
        assert_eq!(options(&["run", "--conf-dir"], "mi"), ["mine/"]);
        assert_eq!(options(&["run"], "model.weights=mine/mo"), ["model.weights=mine/model/"]);
        assert_eq!(options(&["run"], "model.weights=s"), ["model.weights=synthetic"]);
    }
}
