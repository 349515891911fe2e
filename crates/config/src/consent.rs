//! Settings that start programs, connect to other machines, listen, or choose what is sent to a server. They need consent
//! if another user may have written them.

use std::fmt;

use hydra_config::{Composition, Value};

use super::{built_in, compose_untyped};

/// If a configuration that may be another user's sets one of these keys, the user is asked first.
pub const RISKY_KEYS: [&str; 14] = [
    "runtime.server.command",
    "runtime.pytorch.python",
    "runtime.pytorch.script",
    "runtime.pytorch.trust_remote_code",
    "hydra.launcher.setup",
    "hydra.launcher.additional_parameters",
    "runtime.server.url",
    "runtime.server.metrics",
    "runtime.server.ca_file",
    "telemetry.server",
    "telemetry.dcgm",
    "output.metrics",
    KEY_ENV,
    PROMPTS,
];

/// The variable with the key, and the file with the prompts: their contents are sent, also to a server that the user
/// has named.
const KEY_ENV: &str = "runtime.server.key_env";
const PROMPTS: &str = "dataset.prompts.file";

/// A setting that a file makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RiskySetting {
    pub key: String,
    pub value: String,
    /// The file and its line.
    pub origin: String,
}

impl RiskySetting {
    /// The risky settings that files of the configuration directory make; not those of the command line or of the
    /// built-in files.
    pub fn find_all(composition: &Composition) -> Vec<RiskySetting> {
        let setting = |key: &str| {
            let origin = composition.file_origin(key)?;
            let value = composition.resolved(key).ok().filter(does_something)?;
            if [KEY_ENV, PROMPTS].contains(&key) && (!has_server(composition) || is_built_in(key, &value)) {
                return None;
            }
            let value = serde_json::to_string(&value).unwrap_or_default();
            Some(RiskySetting { key: key.to_owned(), value, origin: origin.to_string() })
        };
        RISKY_KEYS.iter().filter_map(|key| setting(key)).collect()
    }
}

/// Whether requests are sent to a server. A setting that cannot be resolved counts as one.
fn has_server(composition: &Composition) -> bool {
    !composition.resolved("runtime.server").is_ok_and(|server| server.is_null())
}

/// Whether an option of the program itself gives the key this value: a copied file asks for nothing new.
fn is_built_in(key: &str, value: &Value) -> bool {
    let tree = built_in();
    let group = key.split('.').next().unwrap_or_default();
    tree.options(group).into_iter().any(|option| {
        let composed = compose_untyped(&tree, &[format!("{group}={option}")]);
        composed.is_ok_and(|composed| composed.resolved(key).is_ok_and(|own| own == *value))
    })
}

/// Whether the value has an effect; a setting that is switched off has none.
fn does_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !matches!(text.as_str(), "" | "auto" | "none"),
        Value::Sequence(items) => !items.is_empty(),
        Value::Mapping(entries) => !entries.is_empty(),
        _ => true,
    }
}

impl fmt::Display for RiskySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} ({})", self.key, self.value, self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::over_built_in;

    fn keys(files: &[(&str, &str)], overrides: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let composed = compose_untyped(&over_built_in(dir.path()).unwrap(), &overrides).unwrap();
        RiskySetting::find_all(&composed).into_iter().map(|setting| setting.key).collect()
    }

    #[test]
    fn settings_of_files_are_found_by_key() {
        let command =
            "name: vllm\nserver:\n  command: sh -c evil\n  url: http://example.com\n  metrics: auto\n";
        let files = [("runtime/mine.yaml", command)];
        assert_eq!(keys(&files, &["runtime=mine"]), ["runtime.server.command", "runtime.server.url"]);
        assert_eq!(keys(&files, &[]), [""; 0], "the option is not chosen");
        // Settings of the command line are the user's own, and take precedence.
        assert_eq!(keys(&files, &["runtime=mine", "runtime.server.command=true"]), ["runtime.server.url"]);
        assert_eq!(
            keys(&files, &["runtime=mine", "runtime.server.command=true", "runtime.server.url=null"]),
            [""; 0]
        );
        let parent = "server: {command: sh}\n";
        assert_eq!(keys(&[("runtime/vllm.yaml", parent)], &["runtime=vllm"]), ["runtime.server.command"]);
        // Set by another key of the same file, or by one entry of a map.
        let indirect = "name: vllm\nx: sh -c evil\nserver:\n  command: ${runtime.x}\n";
        assert_eq!(keys(&[("runtime/mine.yaml", indirect)], &["runtime=mine"]), ["runtime.server.command"]);
        let entry =
            "# @package _global_\nhydra:\n  launcher:\n    additional_parameters:\n      wrap: evil\n";
        assert_eq!(
            keys(&[("experiment/x.yaml", entry)], &["hydra/launcher=slurm", "+experiment=x"]),
            ["hydra.launcher.additional_parameters"]
        );
    }

    #[test]
    fn every_risky_setting_is_found_in_a_file() {
        // The options that have the setting, and a value that a file may give it.
        let of_key = |key: &str| match key {
            "runtime.pytorch.trust_remote_code" => ("runtime=pytorch", "true"),
            "hydra.launcher.setup" => ("hydra/launcher=slurm", "[evil]"),
            "hydra.launcher.additional_parameters" => ("hydra/launcher=slurm", "{wrap: evil}"),
            _ if key.starts_with("runtime.pytorch.") => ("runtime=pytorch", "evil"),
            _ if key.starts_with("runtime.server.") => ("runtime=vllm", "evil"),
            "telemetry.server" | "telemetry.dcgm" => ("telemetry=nvml", "http://evil"),
            "output.metrics" => ("output=default", "0.0.0.0:9464"),
            "dataset.prompts.file" => ("runtime=vllm", "/home/user/.ssh/id_ed25519"),
            _ => panic!("{key} has no case"),
        };
        for key in RISKY_KEYS {
            let (option, value) = of_key(key);
            let nested = key.split('.').collect::<Vec<_>>();
            let mut text = "# @package _global_\n".to_owned();
            for (depth, part) in nested.iter().enumerate() {
                text += &format!("{}{part}:", "  ".repeat(depth));
                text += &if depth + 1 == nested.len() { format!(" {value}\n") } else { "\n".to_owned() };
            }
            assert_eq!(keys(&[("experiment/x.yaml", &text)], &[option, "+experiment=x"]), [key], "{text}");
        }
    }

    /// The user names the server; a file names what it gets.
    #[test]
    fn what_is_sent_to_a_server_of_the_user_needs_consent() {
        let url = "runtime.server.url=http://127.0.0.1:8000";
        let of_key = |key: &str| {
            [("runtime/mine.yaml", format!("defaults: [openai, _self_]\nserver:\n  key_env: {key}\n"))]
        };
        let of_file = |file: &str| {
            [("dataset/mine.yaml", format!("defaults: [prompts, _self_]\nprompts:\n  file: {file}\n"))]
        };
        let found = |files: &[(&str, String)], overrides: &[&str]| {
            let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
            keys(&files, overrides)
        };
        let secret = of_key("AWS_SECRET_ACCESS_KEY");
        assert_eq!(found(&secret, &["runtime=mine", url]), [KEY_ENV]);
        assert_eq!(found(&secret, &["runtime=mine", url, "runtime.server.key_env=MINE"]), [""; 0]);
        assert_eq!(found(&of_key("OPENAI_API_KEY"), &["runtime=mine", url]), [""; 0], "as in the program");
        assert_eq!(found(&of_key("null"), &["runtime=mine", url]), [""; 0], "no key is sent");
        let prompts = of_file("/home/user/.ssh/id_ed25519");
        assert_eq!(found(&prompts, &["runtime=openai", "dataset=mine", url]), [PROMPTS]);
        assert_eq!(found(&prompts, &["runtime=candle", "dataset=mine"]), [""; 0], "it stays on this machine");
        let own = of_file("datasets/prompts/prompts.jsonl");
        assert_eq!(found(&own, &["runtime=openai", "dataset=mine", url]), [""; 0], "as in the program");
    }

    #[test]
    fn the_program_asks_for_nothing_of_its_own() {
        let tree = built_in();
        for group in ["runtime", "telemetry", "output", "profiling"] {
            for option in tree.options(group) {
                let composed = compose_untyped(&tree, &[format!("{group}={option}")]).unwrap();
                assert_eq!(RiskySetting::find_all(&composed), [], "{group}={option}");
            }
        }
    }
}
