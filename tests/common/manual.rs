//! The manual page, generated from the definition of the command line: one page with every command.

use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

/// Sections that the definition of the command line does not have.
const FILES: [(&str, &str); 4] = [
    ("./conf", "Configuration files that come before the built-in ones; --conf-dir names another directory."),
    ("./runs", "Recorded runs and their reports."),
    ("./baselines", "Runs saved by the command baseline."),
    ("./models, ./datasets, ./third_party", "Weights, datasets and reference sources of this project."),
];

const VARIABLES: [(&str, &str); 5] = [
    ("CUDA_VISIBLE_DEVICES", "The GPUs that models may run on, in the order of their numbers."),
    ("CUDA_HOME, CUDA_PATH, VIRTUAL_ENV, CONDA_PREFIX", "Searched for cuBLAS and CUPTI."),
    (
        "HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE",
        "Settings of the Hugging Face hub, for fetch.",
    ),
    ("NO_COLOR", "No colours, where it is set."),
    ("BROWSER", "Opens reports."),
];

const EXIT_CODES: [(&str, &str); 5] = [
    ("0", "Success."),
    (
        "1",
        "The run failed, not all of it could be recorded, a check of doctor failed, or a gate of compare was broken.",
    ),
    ("2", "Bad usage or configuration."),
    ("3", "compare is undecided."),
    ("129, 130, 143", "Interrupted by SIGHUP, Ctrl-C, SIGTERM."),
];

pub fn page(command: clap::Command) -> String {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let version = command.get_version().unwrap_or_default().to_owned();
    let man = Man::new(command.clone()).source(format!("llmprof-tui {version}")).manual("User Commands");
    // No date: an empty argument needs its quotes.
    let mut page = written(|page| man.render_title(page)).replace(" 1  ", " 1 \"\" ");
    page += &written(|page| man.render_name_section(page));
    page += &section("SYNOPSIS");
    page += &usage(&mut command);
    page += &written(|page| man.render_options_section(page));
    page += &section("COMMANDS");
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        page += &described(command);
    }
    page += &listed("FILES", &FILES);
    page += &listed("ENVIRONMENT", &VARIABLES);
    page += &listed("EXIT STATUS", &EXIT_CODES);
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (examples, _) = examples.split_once("\n\nExit codes:").unwrap_or((&examples, ""));
    page += &section("EXAMPLES");
    page += &verbatim(examples.trim_start_matches("Examples:\n"));
    // Each part begins with the same definition of an apostrophe.
    let is_definition = |line: &&str| line.starts_with(".ie ") || line.starts_with(".el ");
    let definition = page.lines().take(2).filter(is_definition);
    let rest = page.lines().filter(|line| !is_definition(line));
    definition.chain(rest).map(|line| format!("{line}\n")).collect()
}

/// A command and its subcommands: description, usage, options and examples.
fn described(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    // `--help` is the same everywhere.
    let mut command = command.clone().mut_arg("help", |help| help.hide(true));
    let man = Man::new(command.clone());
    let mut roff = Roff::new();
    roff.control("SS", [name]);
    roff.text([roman(command.get_about().map(ToString::to_string).unwrap_or_default() + ".")]);
    roff.control("PP", []);
    let mut text = roff.render();
    text += &usage(&mut command);
    text += &without_heading(&written(|text| man.render_options_section(text)));
    if let Some(examples) = command.get_after_help() {
        text += &verbatim(&examples.to_string());
    }
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    text + &below.map(described).collect::<String>()
}

/// `llmprof-tui run [OPTIONS] [OVERRIDES]...`, one line for each form.
fn usage(command: &mut clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let usage = command.render_usage().to_string();
    let mut roff = Roff::new();
    for form in usage.trim_start_matches("Usage:").lines().map(str::trim) {
        roff.text([bold(&*name), roman(form.strip_prefix(&*name).unwrap_or(form))]);
        roff.control("br", []);
    }
    roff.render()
}

fn written(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn section(name: &str) -> String {
    let mut roff = Roff::new();
    roff.control("SH", [name]);
    roff.render()
}

fn listed(name: &str, entries: &[(&str, &str)]) -> String {
    let mut roff = Roff::new();
    roff.control("SH", [name]);
    for (term, meaning) in entries {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*meaning)]);
    }
    roff.render()
}

/// Verbatim lines.
fn verbatim(text: &str) -> String {
    let mut roff = Roff::new();
    roff.control("PP", []);
    roff.control("nf", []);
    for line in text.trim_end().lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.render()
}

fn without_heading(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with(".SH")).map(|line| format!("{line}\n")).collect()
}
