//! A sweep's results as a table, as CSV and as JSON. Missing values are empty or null, never 0.

use serde_json::{Value, json};

use super::jobs::{Job, JobState, Sweep};
use llmprof_analysis::{distribution::Summary, metrics::MetricsSummary};
use llmprof_base::{
    cells,
    table::{Cell, Column, Table, Tone},
    units::Unit,
};

/// Version of the output of `run --multirun --json`.
const SCHEMA: u32 = 1;

/// A measurement of each job.
pub struct Measured {
    pub title: &'static str,
    pub key: &'static str,
    unit: Unit,
    value: fn(&MetricsSummary) -> Option<f64>,
}

impl Measured {
    pub const ALL: [Measured; 3] = [
        Measured { title: "TTFT p50", key: "ttft_p50_ms", unit: Unit::Millis, value: |m| m.ttft_ms.p50 },
        Measured { title: "TPOT p50", key: "tpot_p50_ms", unit: Unit::Millis, value: |m| m.tpot_ms.p50 },
        Measured { title: "tok/s", key: "decode_tok_s", unit: Unit::None, value: |m| m.decode_tok_s },
    ];

    /// Missing if too little was measured.
    pub fn cell(&self, metrics: Option<&MetricsSummary>) -> Cell {
        // More digits than any measurement has, but few enough that the number reads back unchanged.
        let value = metrics.and_then(self.value).map(|value| (value * 1e6).round() / 1e6);
        self.unit.cell(value).tone(Tone::Number)
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

    /// The launcher's id of the job, and the node or GPU, as far as they are known.
    pub fn placement_parts(&self) -> [Option<&str>; 2] {
        let placement = self.placement.as_ref();
        let id = placement.map(|placement| placement.id.as_str()).filter(|id| !id.is_empty());
        [id, placement.and_then(|placement| placement.on.as_deref())]
    }

    pub fn metrics(&self) -> Option<&MetricsSummary> {
        self.result.as_ref()?.metrics.as_ref()
    }
}

/// Columns of [`Job::placement_parts`].
pub const PLACEMENT: [&str; 2] = ["id", "on"];

/// One row per job: swept values, measurements, outcome. `live` has the measurements of a running job so far.
pub fn sweep_table<'a>(sweep: &'a Sweep, live: impl Fn(usize) -> Option<&'a MetricsSummary>) -> Table {
    let swept = sweep.swept();
    let placement = PLACEMENT.into_iter().filter(|_| sweep.has_placements());
    let keys = swept.iter().map(|index| sweep.jobs[0].key_and_value(*index).0.to_owned());
    let mut table = Table::new([Column::number("job").key("job")]);
    table.columns.extend(placement.clone().map(Column::text));
    table.columns.extend(keys.map(|key| Column::text(key.clone()).key(key)));
    table.columns.extend(Measured::ALL.map(|measured| Column::number(measured.title).key(measured.key)));
    table.columns.push(Column::text("outcome"));
    table.columns.extend(["outcome", "reason", "run_dir"].into_iter().chain(placement).map(Column::data));
    for (index, job) in sweep.jobs.iter().enumerate() {
        let result = job.result.as_ref();
        let reason = job.reason().unwrap_or_default();
        let outcome = if reason.is_empty() { job.status() } else { format!("{}: {reason}", job.status()) };
        let placement = job.placement_parts().map(Cell::from).into_iter().filter(|_| sweep.has_placements());
        let mut row = cells![index + 1];
        row.extend(placement.clone());
        row.extend(swept.iter().map(|index| Cell::from(job.key_and_value(*index).1)));
        let metrics = live(index).or_else(|| job.metrics());
        row.extend(Measured::ALL.iter().map(|measured| measured.cell(metrics)));
        let dir = result.and_then(|result| result.dir.as_ref()).map(|dir| dir.display().to_string());
        row.extend(cells![outcome, result.map(|result| result.outcome.to_string()), reason, dir]);
        table.push(row.into_iter().chain(placement));
    }
    table
}

/// The table as text.
pub fn table_text(sweep: &Sweep) -> String {
    sweep_table(sweep, |_| None).text()
}

/// `sweep.csv`: the jobs that have ended.
pub fn sweep_csv(sweep: &Sweep) -> String {
    ended_jobs(sweep).csv()
}

/// The jobs that have ended.
pub fn ended_jobs(sweep: &Sweep) -> Table {
    let mut table = sweep_table(sweep, |_| None);
    let mut jobs = sweep.jobs.iter();
    table.rows.retain(|_| jobs.next().is_some_and(|job| job.result.is_some()));
    table
}

/// The sweep as JSON.
pub fn sweep_json(sweep: &Sweep) -> Value {
    let indexes = sweep.swept();
    let latency = |s: Summary| json!({"n": s.n, "mean": s.mean, "p50": s.p50, "p90": s.p90, "p99": s.p99});
    let job = |(index, job): (usize, &Job)| {
        let result = job.result.as_ref();
        let metrics = job.metrics();
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
    use super::{super::jobs::JobResult, *};
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
  1  x      1   40.0 ms         –    250  completed
  2  long   2         –         –      –  failed: it has \"quotes\", commas
  3  x      3         –         –      –  not run";
        assert_eq!(table_text(&sweep()), wanted);
    }

    #[test]
    fn the_csv_reads_back() {
        let text = ended_jobs(&sweep()).csv();
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
