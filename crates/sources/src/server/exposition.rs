//! Prometheus' text format: names, labels and numbers.

use std::{borrow::Cow, collections::HashMap};

/// The server's original name. Ray adds its own prefix, and some exporters write `_` for `:`.
fn own_name(name: &str) -> Cow<'_, str> {
    let inner = name.strip_prefix("ray_").unwrap_or(name);
    for server in ["vllm", "sglang"] {
        if let Some(rest) = inner.strip_prefix(server) {
            return match rest.strip_prefix('_') {
                Some(rest) => Cow::Owned(format!("{server}:{rest}")),
                None => Cow::Borrowed(inner),
            };
        }
    }
    Cow::Borrowed(name)
}

/// Maximum lines of a page.
const MAX_SAMPLES: usize = 100_000;

/// The samples of a page, by name.
#[derive(Debug, Default)]
pub struct Exposition {
    samples: HashMap<String, Vec<Sample>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

impl Exposition {
    /// Reads a page; lines that are not samples are skipped.
    pub fn read(text: &str) -> Exposition {
        let mut page = Exposition::default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (name, sample) in lines.filter_map(read_line).take(MAX_SAMPLES) {
            page.samples.entry(own_name(name).into_owned()).or_default().push(sample);
        }
        page.name_those_of_nim();
        page
    }

    /// NVIDIA's NIM uses vLLM's names without their prefix.
    fn name_those_of_nim(&mut self) {
        let has = |name: &str| self.samples.contains_key(name);
        if has("num_requests_running")
            && (has("gpu_cache_usage_perc") || has("time_to_first_token_seconds_count"))
        {
            let samples = std::mem::take(&mut self.samples);
            self.samples =
                samples.into_iter().map(|(name, samples)| (format!("vllm:{name}"), samples)).collect();
        }
    }

    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.samples.keys().any(|name| name.starts_with(prefix))
    }

    pub fn all(&self, name: &str) -> &[Sample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum over all labels; a counter may have the suffix `_total`.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let exact = self.samples.get(name).or_else(|| self.samples.get(&format!("{name}_total")))?;
        Some(exact.iter().map(|sample| sample.value).filter(|value| value.is_finite()).sum())
    }

    /// The maximum over all labels.
    pub fn max(&self, name: &str) -> Option<f64> {
        let values = self.samples.get(name)?.iter().map(|sample| sample.value);
        values.filter(|value| value.is_finite()).reduce(f64::max)
    }

    /// Sum and count of a histogram or a summary.
    pub fn mean_parts(&self, name: &str) -> Option<(f64, f64)> {
        Some((self.sum(&format!("{name}_sum"))?, self.sum(&format!("{name}_count"))?))
    }

    /// The same for the samples with this label.
    pub fn mean_parts_of(&self, name: &str, (label, value): (&str, &str)) -> Option<(f64, f64)> {
        let sum = |name: String| {
            let samples = self.all(&name).iter().filter(|sample| sample.label(label) == Some(value));
            samples.map(|sample| sample.value).filter(|value| value.is_finite()).reduce(|a, b| a + b)
        };
        Some((sum(format!("{name}_sum"))?, sum(format!("{name}_count"))?))
    }
}

fn read_line(line: &str) -> Option<(&str, Sample)> {
    let line = line.trim();
    let end = line.find(['{', ' ', '\t'])?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.len() > 200 {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => read_labels(inside)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some((name, Sample { labels, value }))
}

/// Labels up to the closing brace, and the rest.
fn read_labels(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let mut value = String::new();
        let quoted = after.trim_start().strip_prefix('"')?;
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim().to_owned(), value));
        rest = quoted[end..].trim_start().trim_start_matches(',').trim_start();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pages_are_read() {
        let page = Exposition::read(
            "# HELP a x\n# TYPE a gauge\na{m=\"x\\\"y\",n=\"1,}\"} 2.5 1700000\na{m=\"z\"} 1\nb_total 4\nc_sum 10\nc_count 4\nd NaN\nbroken{\n",
        );
        assert_eq!((page.sum("a"), page.max("a"), page.sum("b")), (Some(3.5), Some(2.5), Some(4.0)));
        assert_eq!(page.all("a")[0].label("m"), Some("x\"y"));
        assert_eq!(page.all("a")[0].label("n"), Some("1,}"));
        assert_eq!(page.mean_parts("c"), Some((10.0, 4.0)));
        assert_eq!((page.max("d"), page.sum("e")), (None, None));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "([a-z_:]{1,4}|[{}=\",\\\\ \n#.0-9eE+-]){0,200}") {
            Exposition::read(&text);
        }
    }
}
