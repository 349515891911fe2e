//! The options that `profiling.nsys.extra` and `profiling.ncu.extra` may add to a tool's command line.
//!
//! A configuration may be untrusted. An option is accepted only if it is listed here, and none of these names a
//! program, a file or another option, so that only this program decides what a tool starts and where it writes.

use std::fmt;

/// An option of a tool, and the values that it accepts.
pub struct ToolOption {
    name: &'static str,
    value: Value,
}

enum Value {
    None,
    OneOf(&'static [&'static str]),
    /// A number, or one of these words.
    Number(&'static [&'static str]),
    /// Comma-separated numbers, or one of these words.
    Numbers(&'static [&'static str]),
    /// A name of the tool, e.g. of a section.
    Name,
}

use Value::{Name, None as Flag, Number, Numbers, OneOf};

const TRUE_FALSE: Value = OneOf(&["true", "false"]);
const ON_OFF: Value = OneOf(&["on", "off"]);

const fn option(name: &'static str, value: Value) -> ToolOption {
    ToolOption { name, value }
}

/// The options of `nsys profile` that a configuration may set.
pub const NSYS_OPTIONS: &[ToolOption] = &[
    option("cpu-core-events", Numbers(&[])),
    option("cuda-event-trace", OneOf(&["auto", "true", "false"])),
    option("cuda-flush-interval", Number(&[])),
    option("cuda-memory-usage", TRUE_FALSE),
    option("cuda-trace-all-apis", TRUE_FALSE),
    option("cuda-um-cpu-page-faults", TRUE_FALSE),
    option("cuda-um-gpu-page-faults", TRUE_FALSE),
    option("event-sample", OneOf(&["none", "system-wide"])),
    option("event-sampling-interval", Number(&[])),
    option("gpu-metrics-device", Numbers(&["none", "all", "cuda-visible"])),
    option("gpu-metrics-devices", Numbers(&["none", "all", "cuda-visible"])),
    option("gpu-metrics-frequency", Number(&[])),
    option("gpu-metrics-set", Name),
    option("gpuctxsw", TRUE_FALSE),
    option("nic-metrics", TRUE_FALSE),
    option("os-events", Numbers(&[])),
    option("osrt-threshold", Number(&[])),
    option("resolve-symbols", TRUE_FALSE),
    option("trace-fork-before-exec", TRUE_FALSE),
    option("wait", OneOf(&["primary", "all"])),
];

/// The options of `ncu` that a configuration may set.
pub const NCU_OPTIONS: &[ToolOption] = &[
    option("app-replay-buffer", OneOf(&["file", "memory"])),
    option("app-replay-match", OneOf(&["name", "grid", "all"])),
    option("app-replay-mode", OneOf(&["strict", "balanced", "relaxed"])),
    option("apply-rules", ON_OFF),
    option("cache-control", OneOf(&["all", "none"])),
    option("call-stack", Flag),
    option("devices", Numbers(&[])),
    option("disable-extra-suffixes", Flag),
    option("disable-profiler-start-stop", Flag),
    option("filter-mode", OneOf(&["global", "per-gpu", "per-launch-config"])),
    option("graph-profiling", OneOf(&["node", "graph"])),
    option("import-sass", ON_OFF),
    option("kernel-name-base", OneOf(&["function", "demangled", "mangled"])),
    option("launch-skip-before-match", Number(&[])),
    option("nvtx-push-pop-scope", OneOf(&["thread", "process"])),
    option("pipeline-boost-state", OneOf(&["stable", "dynamic"])),
    option("pm-sampling-buffer-size", Number(&[])),
    option("pm-sampling-interval", Number(&[])),
    option("pm-sampling-max-passes", Number(&[])),
    option("section", Name),
    option("verbose", Flag),
    option("warp-sampling-buffer-size", Number(&[])),
    option("warp-sampling-interval", Number(&["auto"])),
    option("warp-sampling-max-passes", Number(&[])),
];

/// The values expected in place of `word`; `None` if it is one of `options`.
pub(super) fn expected_option(options: &[ToolOption], word: &str) -> Option<String> {
    let Some(written) = word.strip_prefix("--") else {
        return Some("an option written as one word, --name=value".to_owned());
    };
    let (name, value) = match written.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (written, None),
    };
    match options.iter().find(|option| option.name == name) {
        Some(option) if option.value.accepts(value) => None,
        Some(option) => Some(option.to_string()),
        None => {
            let names: Vec<String> = options.iter().map(|option| format!("--{}", option.name)).collect();
            Some(format!("one of {}", names.join(", ")))
        }
    }
}

impl Value {
    fn accepts(&self, value: Option<&str>) -> bool {
        let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u64>().is_ok();
        match (self, value) {
            (Value::None, value) => value.is_none(),
            (_, None) => false,
            (OneOf(words), Some(value)) => words.contains(&value),
            (Number(words), Some(value)) => words.contains(&value) || is_number(value),
            (Numbers(words), Some(value)) => words.contains(&value) || value.split(',').all(is_number),
            (Name, Some(value)) => is_name(value),
        }
    }
}

/// Whether a tool reads `text` as a name: neither as an option nor as a path.
pub(super) fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(fits)
}

/// Whether ncu reads `text` as one metric, or as a pattern for metrics (`regex:…`).
pub(super) fn is_metric(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_graphic() && c != ',')
}

impl fmt::Display for ToolOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}", self.name)?;
        let (words, more): (&[&str], &str) = match self.value {
            Value::None => return Ok(()),
            OneOf(words) => (words, ""),
            Number(words) => (words, "N"),
            Numbers(words) => (words, "N,N,…"),
            Name => (&[], "NAME"),
        };
        let values: Vec<&str> = words.iter().copied().chain([more]).filter(|text| !text.is_empty()).collect();
        write!(f, "={}", values.join("|"))
    }
}

/// All options as Markdown, for the documentation.
pub fn tool_options_markdown() -> String {
    let list = |options: &[ToolOption]| {
        options
            .iter()
            .map(|option| format!("`{}`", option.to_string().replace('|', "\\|")))
            .collect::<Vec<_>>()
            .join(", ")
    };
    format!(
        "| setting | options |\n|---|---|\n| `profiling.nsys.extra` | {} |\n| `profiling.ncu.extra` | {} |\n",
        list(NSYS_OPTIONS),
        list(NCU_OPTIONS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_options_are_accepted() {
        let accepted: [(&[ToolOption], &[&str]); 2] = [
            (
                NSYS_OPTIONS,
                &[
                    "--gpu-metrics-devices=0",
                    "--gpu-metrics-devices=0,1",
                    "--gpuctxsw=true",
                    "--gpu-metrics-set=gh100",
                ],
            ),
            (
                NCU_OPTIONS,
                &[
                    "--cache-control=none",
                    "--verbose",
                    "--section=SpeedOfLight",
                    "--warp-sampling-interval=auto",
                ],
            ),
        ];
        for (options, words) in accepted {
            for word in words {
                assert_eq!(expected_option(options, word), None, "{word}");
            }
        }
    }

    #[test]
    fn other_options_are_refused() {
        for word in [
            "sh",
            "-c",
            "",
            "-",
            "--",
            "--=x",
            "-o",
            "-ox",
            "--output=/tmp/x",
            "--command-file=x",
            "--env-var=LD_PRELOAD=x.so",
            "--run-as=root",
            "--enable=plugin",
            "--export=sqlite",
            "--python-functions-trace=x.json",
            "--gpuctxsw",
            "--gpuctxsw=true sh",
            "--gpu-metrics-devices=",
            "--gpu-metrics-devices=0,",
            "--gpu-metrics-devices=0, 1",
            "--gpu-metrics-set=../x",
            "--gpu-metrics-frequency=+1",
            "--gpu-metrics-frequency=99999999999999999999999",
        ] {
            assert!(expected_option(NSYS_OPTIONS, word).is_some(), "{word:?}");
        }
        for word in [
            "--section-folder=/tmp/x",
            "--preload-library=x.so",
            "--injection-path-64=x",
            "--config-file-path=x",
            "--log-file=/tmp/x",
            "--export=x",
            "--source-folders=/",
            "--section=-o",
            "--section=a b",
            "--cache-control",
            "--verbose=x",
        ] {
            assert!(expected_option(NCU_OPTIONS, word).is_some(), "{word:?}");
        }
        assert_eq!(expected_option(NCU_OPTIONS, "--cache-control=x").unwrap(), "--cache-control=all|none");
        assert!(expected_option(NSYS_OPTIONS, "--stats=true").unwrap().contains("--gpuctxsw"));
    }

    #[test]
    fn metrics_are_no_options() {
        for metric in ["gpu__time_duration.sum", "regex:^dram__.*$", "group:memory__chart"] {
            assert!(is_metric(metric), "{metric}");
        }
        for other in ["", "-o", "--log-file=x", "a,b", "a b", "a\n"] {
            assert!(!is_metric(other), "{other:?}");
        }
    }
}
