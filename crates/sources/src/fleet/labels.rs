//! Labels: those that name a node, a GPU and its work, and the selection of series by them.

use std::{fmt, str::FromStr};

use super::answer::Series;
use llmprof_base::foreign;

/// Maximum characters of a label for display.
const MAX_SHOWN: usize = 100;
/// Maximum bytes of a label's value for queries.
pub const MAX_ASKED: usize = 400;

/// The labels with the names of nodes, the usual ones first. The last two are addresses of exporters.
const NODE_LABELS: [&str; 10] = [
    "Hostname",
    "hostname",
    "node",
    "kubernetes_node",
    "nodename",
    "host",
    "exported_node",
    "exported_host",
    "exported_instance",
    "instance",
];
const GPU_LABELS: [&str; 4] = ["gpu", "GPU", "minor_number", "index"];
const UUID_LABELS: [&str; 2] = ["UUID", "uuid"];
const MODEL_LABELS: [&str; 3] = ["modelName", "model_name", "name"];
/// The labels with the work of a GPU. Prometheus renames labels of the exporter that the scrape has too.
const WORK_LABELS: [&str; 8] = [
    "hpc_job",
    "slurm_job_id",
    "jobid",
    "exported_pod",
    "pod",
    "exported_container",
    "container",
    "exported_namespace",
];

/// The label that names a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodeLabel {
    /// The first of the usual labels that a series has.
    #[default]
    Usual,
    Named(String),
}

impl NodeLabel {
    /// The name of the node; for an address, without its port.
    pub fn find(&self, series: &Series<'_>) -> Option<(String, String)> {
        match self {
            NodeLabel::Named(name) => series.label(name).map(|value| (name.clone(), value.to_owned())),
            NodeLabel::Usual => {
                first(series, &NODE_LABELS).map(|(name, value)| (name.to_owned(), value.to_owned()))
            }
        }
    }

    pub fn shown(name: &str, value: &str) -> String {
        let host = match name {
            "instance" | "exported_instance" => value.rsplit_once(':').map_or(value, |(host, _)| host),
            _ => value,
        };
        shown(host)
    }
}

fn first<'s>(series: &'s Series<'_>, names: &[&'static str]) -> Option<(&'static str, &'s str)> {
    let bounded =
        |name: &&'static str| Some((*name, series.label(name).filter(|value| value.len() <= MAX_ASKED)?));
    names.iter().find_map(bounded)
}

/// A label for display.
pub fn shown(value: &str) -> String {
    foreign::line(value, MAX_SHOWN)
}

/// The labels of a series that identify its GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub node: (String, String),
    pub gpu: (&'static str, String),
    pub uuid: Option<(&'static str, String)>,
    /// The MIG slice.
    pub mig: Option<String>,
}

impl Identity {
    /// `None` if the series belongs to no GPU.
    pub fn from_labels(series: &Series<'_>, node_label: &NodeLabel) -> Option<Identity> {
        let owned = |(name, value): (&'static str, &str)| (name, value.to_owned());
        let uuid = first(series, &UUID_LABELS).map(owned);
        let gpu = first(series, &GPU_LABELS).map(owned);
        // A GPU without an index is identified by its UUID.
        let gpu = gpu.or_else(|| uuid.clone())?;
        Some(Identity {
            node: node_label.find(series).unwrap_or_default(),
            gpu,
            uuid,
            mig: series.label("GPU_I_ID").map(str::to_owned),
        })
    }

    /// The selector of its series.
    pub fn selector(&self) -> Vec<Matcher> {
        let mut all = match &self.uuid {
            Some((name, value)) => vec![Matcher::equal(name, value)],
            None => {
                let node = Some(&self.node).filter(|(name, _)| !name.is_empty());
                let node = node.map(|(name, value)| Matcher::equal(name, value));
                node.into_iter().chain([Matcher::equal(self.gpu.0, &self.gpu.1)]).collect()
            }
        };
        all.push(Matcher::equal("GPU_I_ID", self.mig.as_deref().unwrap_or_default()));
        all
    }
}

/// The exporter of a series: two exporters may read the same GPU, or one may be scraped twice.
pub fn exporter(series: &Series<'_>) -> String {
    let (job, instance) =
        (series.label("job").unwrap_or_default(), series.label("instance").unwrap_or_default());
    [job, instance].join(if job.is_empty() { "" } else { " " })
}

pub fn model(series: &Series<'_>) -> Option<String> {
    first(series, &MODEL_LABELS).map(|(_, value)| shown(value))
}

/// The work of the GPU, if labels report it: a job, or the pods of one set.
pub fn work(series: &Series<'_>, label: Option<&str>) -> Option<String> {
    let found = match label {
        Some(label) => series.label(label).map(|value| (label, value)),
        // Labels of the exporter's own pod say nothing about the work.
        None => first(series, &WORK_LABELS).filter(|(name, _)| {
            !matches!(*name, "pod" | "container")
                || series.label("exported_pod").is_none() && series.label("namespace").is_some()
        }),
    };
    found.map(|(name, value)| match name {
        "exported_pod" | "pod" => shown(owner(value)),
        _ => shown(value),
    })
}

/// A pod's name without the numbers and hashes that distinguish it from its peers: `train-7`, `train-6d8f9c7b4-x2x9z`.
fn owner(pod: &str) -> &str {
    let mut name = pod;
    for _ in 0..2 {
        match name.rsplit_once('-') {
            Some((before, part)) if !before.is_empty() && is_generated(part) => name = before,
            _ => break,
        }
    }
    name
}

fn is_generated(part: &str) -> bool {
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    let plain = part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    !part.is_empty() && plain && (digits == part.len() || digits > 0 && (5..=10).contains(&part.len()))
}

/// `label="value"`, and the other operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matcher {
    name: String,
    operator: &'static str,
    value: String,
}

impl Matcher {
    pub fn equal(name: &str, value: &str) -> Matcher {
        Matcher { name: name.to_owned(), operator: "=", value: value.to_owned() }
    }
}

/// Maximum values of a selection: more would make the query longer than servers accept.
const MAX_ANY: usize = 40;

impl Matcher {
    /// The selector of any of these labels, if all have one name and they are few.
    pub fn any_of(labels: &[(String, String)]) -> Option<Matcher> {
        let (name, _) = labels.first()?;
        let few = labels.len() <= MAX_ANY && labels.iter().all(|(other, _)| other == name);
        let plain = |c: char| c.is_alphanumeric() || "_-: ".contains(c);
        let literal = |text: &String| -> String {
            text.chars().flat_map(|c| (!plain(c)).then_some('\\').into_iter().chain([c])).collect()
        };
        let value = || labels.iter().map(|(_, value)| literal(value)).collect::<Vec<_>>().join("|");
        few.then(|| Matcher { name: name.clone(), operator: "=~", value: value() })
    }
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        write!(f, "{}{}\"{value}\"", self.name, self.operator)
    }
}

pub fn is_label_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

impl FromStr for Matcher {
    type Err = String;

    /// Quotes may be missing, because shells remove them.
    fn from_str(text: &str) -> Result<Matcher, String> {
        let wanted = || format!("{text:?} selects nothing: write label=\"value\", or with !=, =~ or !~");
        let at = text.find(['=', '!']).ok_or_else(wanted)?;
        let (name, rest) = text.split_at(at);
        let operator = ["=~", "!~", "!=", "="].into_iter().find(|operator| rest.starts_with(operator));
        let operator = operator.ok_or_else(wanted)?;
        let value = rest[operator.len()..].trim();
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let (name, value) = (name.trim(), quoted.unwrap_or(value));
        if !is_label_name(name) || name == "__name__" || value.len() > MAX_ASKED {
            return Err(wanted());
        }
        let value = if quoted.is_some() {
            value.replace("\\\"", "\"").replace("\\\\", "\\")
        } else {
            value.to_owned()
        };
        Ok(Matcher { name: name.to_owned(), operator, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series<'a>(labels: &[(&'a str, &'a str)]) -> Series<'a> {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Series { labels, values: Vec::new() }
    }

    #[test]
    fn nodes_are_found_under_any_label() {
        for (labels, node) in [
            (&[("Hostname", "n1"), ("instance", "10.0.0.1:9400")][..], "n1"),
            (&[("instance", "10.0.0.1:9400")], "10.0.0.1"),
            (&[("exported_instance", "a:9400"), ("instance", "b:9400")], "a"),
            (&[("node", "gpu-7"), ("instance", "x")], "gpu-7"),
        ] {
            let series = series(labels);
            let (name, value) = NodeLabel::Usual.find(&series).unwrap();
            assert_eq!(NodeLabel::shown(&name, &value), node);
        }
        let rack = series(&[("rack", "r1"), ("Hostname", "n1")]);
        let named = NodeLabel::Named("rack".into());
        assert_eq!(named.find(&rack), Some(("rack".into(), "r1".into())));
        assert_eq!(named.find(&series(&[("Hostname", "n1")])), None);
        assert_eq!(NodeLabel::Usual.find(&series(&[("a", "b"), ("Hostname", "")])), None);
    }

    #[test]
    fn a_gpu_is_selected_by_what_identifies_it() {
        let text = |labels: &[(&str, &str)]| {
            let identity = Identity::from_labels(&series(labels), &NodeLabel::Usual)?;
            Some(identity.selector().iter().map(Matcher::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(
            text(&[("gpu", "0"), ("UUID", "GPU-a"), ("Hostname", "n")]).unwrap(),
            r#"UUID="GPU-a",GPU_I_ID="""#
        );
        assert_eq!(
            text(&[("gpu", "0"), ("UUID", "GPU-a"), ("GPU_I_ID", "7")]).unwrap(),
            r#"UUID="GPU-a",GPU_I_ID="7""#
        );
        assert_eq!(
            text(&[("gpu", "0"), ("instance", "a\"}\\\n:1")]).unwrap(),
            r#"instance="a\"}\\\n:1",gpu="0",GPU_I_ID="""#
        );
        assert_eq!(text(&[("instance", "a")]), None);
    }

    #[test]
    fn pods_of_one_set_do_the_same_work() {
        for (pod, of) in [
            ("train-7", "train"),
            ("vllm-6d8f9c7b4-x2x9z", "vllm"),
            ("my-job-worker-12", "my-job-worker"),
            ("plain", "plain"),
            ("-1", "-1"),
        ] {
            assert_eq!(owner(pod), of);
        }
        assert_eq!(
            work(&series(&[("exported_pod", "a-0"), ("pod", "dcgm-exporter-x1x2x")]), None).unwrap(),
            "a"
        );
        assert_eq!(work(&series(&[("pod", "dcgm-exporter-x1x2x")]), None), None);
        assert_eq!(work(&series(&[("hpc_job", "4711"), ("pod", "x")]), None).unwrap(), "4711");
        assert_eq!(work(&series(&[("team", "b")]), Some("team")).unwrap(), "b");
    }

    #[test]
    fn a_few_nodes_are_selected_by_their_names() {
        let labels = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let two = Matcher::any_of(&labels(&[("node", "a-1"), ("node", "b.c")])).unwrap();
        assert_eq!(two.to_string(), r#"node=~"a-1|b\\.c""#);
        assert_eq!(Matcher::any_of(&[]), None);
        assert_eq!(Matcher::any_of(&labels(&[("node", "a"), ("host", "b")])), None);
    }

    #[test]
    fn matchers_are_read_as_people_write_them() {
        for (text, shown) in [
            (r#"cluster="a""#, r#"cluster="a""#),
            ("cluster=a", r#"cluster="a""#),
            ("node=~gpu-.*", r#"node=~"gpu-.*""#),
            (r#"x!="a\"b""#, r#"x!="a\"b""#),
            ("a!~b", r#"a!~"b""#),
            (r#"a="} or up{"#, r#"a="\"} or up{""#),
        ] {
            assert_eq!(text.parse::<Matcher>().unwrap().to_string(), shown);
        }
        for text in ["", "a", "=b", "1a=b", "__name__=up", "a!b", "a b=c"] {
            assert!(text.parse::<Matcher>().is_err(), "{text}");
        }
    }
}
