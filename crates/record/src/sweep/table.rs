//! A sweep's results as a table, as CSV and as JSON. Missing values are empty or null, never 0.

use serde_json::{Value, json};

use super::jobs::{Job, JobResult, JobState, Sweep};
use llmprof_analysis::{distribution::Summary, metrics::MetricsSummary};
use llmprof_base::{
    csv::csv_text,
    table::aligned,
    units::{millis, three_digits},
};

/// Version of the output of `run --multirun --json`.
const SCHEMA: u32 = 1;

/// A measured column: its heading, its name in the CSV, its value and the format.
pub struct Column {
    pub heading: &'static str,
    csv: &'static str,
    value: fn(&MetricsSummary) -> Option<f64>,
    format: fn(f64) -> String,
}

impl Column {
    pub const ALL: [Column; 3] = [
        Column { heading: "TTFT p50", csv: "ttft_p50_ms", value: |m| m.ttft_ms.p50, format: millis },
        Column { heading: "TPOT p50", csv: "tpot_p50_ms", value: |m| m.tpot_ms.p50, format: millis },
        Column { heading: "tok/s", csv: "decode_tok_s", value: |m| m.decode_tok_s, format: three_digits },
    ];

    /// The cell of `job`; `None` if too little was measured.
    pub fn cell(&self, job: &Job) -> Option<String> {
        self.value(job).map(self.format)
    }

    /// The cell of a running job, with its measurements so far.
    pub fn cell_of(&self, metrics: &MetricsSummary) -> Option<String> {
        (self.value)(metrics).filter(|value| value.is_finite()).map(self.format)
    }

    fn value(&self, job: &Job) -> Option<f64> {
        let metrics = job.result.as_ref().and_then(|result| result.metrics.as_ref());
        metrics.and_then(self.value).filter(|value| value.is_finite())
    }
}

impl Job {
    /// `running`, `pending`, the outcome, or `not run`.
    pub fn status(&self) -> String {
        match (&self.result, self.state) {
            (_, JobState::Running) => "running".into(),
            (Some(result), _) => result.outcome.to_string(),
            (None, JobState::Waiting) if self.placement.is_some() => "pending".into(),
            (None, _) => "not run".into(),
        }
    }

    /// The reason of its end, or of its waiting, on one line.
    pub fn reason(&self) -> Option<String> {
        let note = || self.placement.as_ref().and_then(|placement| placement.note.as_deref());
        let reason = match &self.result {
            Some(result) => result.reason.as_deref(),
            None => note(),
        };
        Some(reason?.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The launcher's id of the job, and the node or GPU; empty if unknown.
    pub fn placement_cells(&self) -> [String; 2] {
        let placement = self.placement.clone().unwrap_or_default();
        [placement.id, placement.on.unwrap_or_default()]
    }
}

/// Headings of [`Job::placement_cells`].
pub const PLACEMENT_HEADINGS: [&str; 2] = ["id", "on"];

fn keys<'a>(sweep: &'a Sweep, indexes: &'a [usize]) -> impl Iterator<Item = &'a str> {
    indexes.iter().map(|index| sweep.jobs[0].key_and_value(*index).0)
}

/// One row per job: swept values, measurements, outcome.
pub fn table_text(sweep: &Sweep) -> String {
    let indexes = sweep.swept();
    let has_placements = sweep.has_placements();
    let mut heading = vec!["job".to_owned()];
    heading.extend(PLACEMENT_HEADINGS.map(str::to_owned).into_iter().filter(|_| has_placements));
    heading.extend(keys(sweep, &indexes).map(str::to_owned));
    let swept = heading.len();
    heading.extend(Column::ALL.map(|column| column.heading.to_owned()));
    heading.push("outcome".into());
    let mut rows = vec![heading];
    for (number, job) in (1..).zip(&sweep.jobs) {
        let mut row = vec![number.to_string()];
        let placement = job.placement_cells().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell });
        row.extend(placement.into_iter().filter(|_| has_placements));
        row.extend(indexes.iter().map(|index| job.key_and_value(*index).1.to_owned()));
        row.extend(Column::ALL.map(|column| column.cell(job).unwrap_or_else(|| "-".into())));
        row.push(match job.reason() {
            Some(reason) => format!("{}: {reason}", job.status()),
            None => job.status(),
        });
        rows.push(row);
    }
    let last = rows[0].len() - 1;
    aligned(&rows, |column| column == 0 || (swept..last).contains(&column))
}

/// `sweep.csv`.
pub fn sweep_csv(sweep: &Sweep) -> String {
    csv_text(csv_rows(sweep))
}

/// Column names, then a row for each job that has ended.
pub fn csv_rows(sweep: &Sweep) -> Vec<Vec<String>> {
    let indexes = sweep.swept();
    let mut heading = vec!["job"];
    heading.extend(keys(sweep, &indexes));
    heading.extend(Column::ALL.iter().map(|column| column.csv));
    heading.extend(["outcome", "reason", "run_dir"]);
    let has_placements = sweep.has_placements();
    heading.extend(PLACEMENT_HEADINGS.into_iter().filter(|_| has_placements));
    let mut rows = vec![heading.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for (number, job) in (1..).zip(&sweep.jobs) {
        let Some(JobResult { outcome, dir, .. }) = &job.result else { continue };
        let mut row = vec![number.to_string()];
        row.extend(indexes.iter().map(|index| job.key_and_value(*index).1.to_owned()));
        // More digits than any measurement has, but few enough that the number reads back unchanged.
        let number = |value: Option<f64>| {
            value.map_or_else(String::new, |value| ((value * 1e6).round() / 1e6).to_string())
        };
        row.extend(Column::ALL.iter().map(|column| number(column.value(job))));
        let dir = dir.as_ref().map_or_else(String::new, |dir| dir.display().to_string());
        row.extend([outcome.to_string(), job.reason().unwrap_or_default(), dir]);
        row.extend(job.placement_cells().into_iter().filter(|_| has_placements));
        rows.push(row);
    }
    rows
}

/// The sweep as JSON.
pub fn sweep_json(sweep: &Sweep) -> Value {
    let indexes = sweep.swept();
    let latency = |s: Summary| json!({"n": s.n, "mean": s.mean, "p50": s.p50, "p90": s.p90, "p99": s.p99});
    let job = |(index, job): (usize, &Job)| {
        let result = job.result.as_ref();
        let metrics = result.and_then(|result| result.metrics.as_ref());
        let pair = |(key, value): (&str, &str)| (key.to_owned(), json!(value));
        let swept: serde_json::Map<String, Value> =
            indexes.iter().map(|index| pair(job.key_and_value(*index))).collect();
        json!({
            "job": index + 1,
            "num": index,
            "overrides": job.overrides,
            "swept": swept,
            "outcome": result.map(|result| result.outcome.to_string()),
            "reason": job.reason(),
            "run_dir": result.and_then(|result| result.dir.as_ref()),
            "id": job.placement.as_ref().map(|placement| &placement.id),
            "on": job.placement.as_ref().and_then(|placement| placement.on.as_ref()),
            "requests": metrics.map(|m| m.requests),
            "ttft_ms": metrics.map(|m| latency(m.ttft_ms)),
            "tpot_ms": metrics.map(|m| latency(m.tpot_ms)),
            "itl_ms": metrics.map(|m| latency(m.itl_ms)),
            "e2e_ms": metrics.and_then(|m| m.e2e_ms).map(latency),
            "prefill_tok_s": metrics.and_then(|m| m.prefill_tok_s),
            "decode_tok_s": metrics.and_then(|m| m.decode_tok_s),
            "output_tok_s": metrics.and_then(|m| m.output_tok_s),
        })
    };
    json!({
        "schema": SCHEMA,
        "sweep_dir": sweep.dir,
        "complete": sweep.is_complete(),
        "jobs": sweep.jobs.iter().enumerate().map(job).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_analysis::metrics::Metrics;
    use llmprof_config::Override;
    use llmprof_event::Outcome;

    fn sweep() -> Sweep {
        let job = |a: &str, b: &str| {
            let overrides = [format!("model={a}"), format!("b={b}")];
            Job::new(overrides.map(|text| Override::parse(&text).unwrap()).into(), b.into())
        };
        let mut sweep =
            Sweep { dir: "runs/s".into(), jobs: vec![job("x", "1"), job("long", "2"), job("x", "3")] };
        let mut metrics = Metrics::default();
        for _ in 0..3 {
            metrics.first_token(40_000_000, 10, 1);
            metrics.next_token(4_000_000, 1);
        }
        let done = JobResult {
            outcome: Outcome::Completed,
            reason: None,
            metrics: Some(metrics.summary()),
            dir: Some("runs/s/1".into()),
            lossy: false,
        };
        sweep.end(0, done);
        sweep.end(1, JobResult::failed("it has \"quotes\",\ncommas".into()));
        sweep
    }

    #[test]
    fn a_table_is_aligned_and_has_no_zero_for_missing_values() {
        let wanted = "\
job  model  b  TTFT p50  TPOT p50  tok/s  outcome
  1  x      1   40.0 ms         -    250  completed
  2  long   2         -         -      -  failed: it has \"quotes\", commas
  3  x      3         -         -      -  not run";
        assert_eq!(table_text(&sweep()), wanted);
    }

    #[test]
    fn the_csv_reads_back() {
        let text = sweep_csv(&sweep());
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let heading: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(
            heading,
            [
                "job",
                "model",
                "b",
                "ttft_p50_ms",
                "tpot_p50_ms",
                "decode_tok_s",
                "outcome",
                "reason",
                "run_dir"
            ]
        );
        let rows: Vec<Vec<String>> =
            reader.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
        assert_eq!(rows.len(), 2, "only what has ended");
        assert_eq!(rows[1], ["2", "long", "2", "", "", "", "failed", "it has \"quotes\", commas", ""]);
        assert_eq!(rows[0][4], "");
    }

    #[test]
    fn json_has_null_for_missing_values() {
        let value = sweep_json(&sweep());
        assert_eq!(value["jobs"][1]["ttft_ms"], Value::Null);
        assert_eq!(value["jobs"][2]["outcome"], Value::Null);
        assert_eq!(value["jobs"][1]["swept"], json!({"model": "long", "b": "2"}));
        assert_eq!(value["jobs"][0]["tpot_ms"]["p50"], Value::Null);
    }
}
