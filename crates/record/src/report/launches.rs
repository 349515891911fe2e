//! The kernels of a program by the Python lines that launched them: as tables, as JSON, and as stacks for flame graphs.

use serde_json::{Value, json};

use crate::state::{LaunchGroup, LaunchPlace, Launches, RunState};
use llmprof_base::{
    cells,
    table::{Column, Table, Tone},
    units::{Unit, grouped, millis},
};

/// Maximum rows in a report, and kernels of a row in JSON.
const REPORTED: usize = 20;
const KERNELS: usize = 10;

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The lines or files that launched kernels, by GPU time.
pub fn launches_table(launches: &Launches, group: LaunchGroup) -> Table {
    let mut table = Table::new([
        Column::number("share").key("share").unit(Unit::TinyShare).tone(Tone::Number),
        Column::number("GPU time").key("gpu_ms").unit(Unit::Millis),
        Column::number("launches").key("launches").unit(Unit::Count),
        Column::path(match group {
            LaunchGroup::Line => "line",
            LaunchGroup::Module => "file",
        })
        .key("place"),
        Column::text("largest kernel").key("kernel").tone(Tone::Dim),
    ]);
    for place in launches.places(group) {
        table.push(cells![
            place.share,
            milliseconds(place.launched.ns),
            place.launched.launches,
            place.text(),
            place.kernels.first().map_or("", |(name, _)| *name),
        ]);
    }
    table
}

/// `1.2 s in 8,400 kernels`.
fn sum(launches: &Launches) -> String {
    let all = launches.all();
    let count = grouped(i64::try_from(all.launches).unwrap_or(i64::MAX));
    format!("{} in {count} kernels that were recorded with their launches", millis(milliseconds(all.ns)))
}

/// The table of `kernels RUN --by line`.
pub fn launches_text(state: &RunState, group: LaunchGroup, limit: usize) -> String {
    let mut table = launches_table(&state.launches, group);
    let all = table.rows.len();
    table.rows.truncate(limit);
    let more = all.saturating_sub(limit);
    let more = if more > 0 { format!("\n{more} more rows (-k {all} shows all)") } else { String::new() };
    format!("{}\n\n{}{more}", sum(&state.launches), table.text())
}

pub fn launches_json(state: &RunState, group: LaunchGroup, limit: usize) -> Value {
    let launches = &state.launches;
    let row = |place: &LaunchPlace<'_>| {
        let kernel = |(name, launched): &(&str, crate::state::Launched)| json!({ "name": name, "gpu_ms": milliseconds(launched.ns), "launches": launched.launches });
        json!({
            "place": place.place,
            "share": place.share,
            "gpu_ms": milliseconds(place.launched.ns),
            "launches": place.launched.launches,
            "kernels": place.kernels.iter().take(KERNELS).map(kernel).collect::<Vec<_>>(),
        })
    };
    let rows: Vec<Value> = launches.places(group).iter().take(limit).map(row).collect();
    json!({
        "schema": 1,
        "by": match group { LaunchGroup::Line => "line", LaunchGroup::Module => "module" },
        "gpu_ms": milliseconds(launches.all().ns),
        "launches": launches.all().launches,
        "rows": rows,
    })
}

/// The section of the report.
pub(super) fn launches_md(state: &RunState) -> String {
    let launches = &state.launches;
    if !launches.is_there() {
        return String::new();
    }
    let mut table = launches_table(launches, LaunchGroup::Line);
    table.rows.truncate(REPORTED);
    format!(
        "### Kernels by line\n\nThe Python lines that launched the program's kernels, by GPU time: {}.\n\n{}\n",
        sum(launches),
        table.markdown()
    )
}

/// A file with the stacks of all launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackFormat {
    /// A line for each stack and kernel, and its nanoseconds.
    Collapsed,
    Speedscope,
}

pub fn stacks_file(state: &RunState, format: StackFormat) -> String {
    match format {
        StackFormat::Collapsed => collapsed(&state.launches),
        StackFormat::Speedscope => speedscope(&state.launches).to_string(),
    }
}

fn collapsed(launches: &Launches) -> String {
    let line = |(path, ns): (Vec<std::borrow::Cow<'_, str>>, u64)| {
        // The separator of the format.
        let path: Vec<String> = path.iter().map(|frame| frame.replace(';', ",")).collect();
        format!("{} {ns}\n", path.join(";"))
    };
    launches.stacks().into_iter().map(line).collect()
}

/// <https://www.speedscope.app/file-format-schema.json>
fn speedscope(launches: &Launches) -> Value {
    let stacks = launches.stacks();
    let mut names: Vec<&str> =
        stacks.iter().flat_map(|(path, _)| path.iter().map(std::convert::AsRef::as_ref)).collect();
    names.sort_unstable();
    names.dedup();
    let index = |name: &str| names.binary_search(&name).unwrap_or(0);
    let samples: Vec<Vec<usize>> =
        stacks.iter().map(|(path, _)| path.iter().map(|frame| index(frame)).collect()).collect();
    let weights: Vec<u64> = stacks.iter().map(|(_, ns)| *ns).collect();
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": { "frames": names.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>() },
        "profiles": [{
            "type": "sampled",
            "name": "GPU time by the line that launched it",
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": weights.iter().sum::<u64>(),
            "samples": samples,
            "weights": weights,
        }],
    })
}

#[cfg(test)]
mod tests {
    use llmprof_event::{Envelope, Event, LaunchFrame, LaunchLines, LaunchRow, LaunchStack, Stamp};

    use super::*;

    fn state() -> RunState {
        let frame = |file: &str, line, function: &str| LaunchFrame {
            file: file.to_owned(),
            dir: "/app/".to_owned(),
            line,
            function: function.to_owned(),
        };
        let frames = vec![frame("model.py", 5, "attend"), frame("run.py", 2, "main")];
        let row = |stack, kernel: &str, ns| LaunchRow { stack, kernel: kernel.to_owned(), launches: 3, ns };
        let lines = LaunchLines {
            pid: 7,
            frames,
            stacks: vec![LaunchStack { stack: 1, frames: vec![0, 1], own: Some(0) }],
            rows: vec![row(1, "gemm; of f16", 3_000_000), row(0, "fill", 1_000_000)],
        };
        let mut state = RunState::default();
        state.apply(&Envelope { t: Stamp::default(), event: Event::LaunchLines(Box::new(lines)) });
        state
    }

    #[test]
    fn a_table_has_the_lines_by_time() {
        let state = state();
        let text = launches_text(&state, LaunchGroup::Line, 1);
        assert!(text.starts_with("4.00 ms in 6 kernels"), "{text}");
        assert!(text.contains("75 %") && text.contains("model.py:5 attend"), "{text}");
        assert!(text.ends_with("1 more rows (-k 2 shows all)"), "{text}");
        assert!(launches_text(&state, LaunchGroup::Module, 9).contains("model.py  "), "{text}");
        assert!(launches_md(&state).contains("| 75 %"), "{}", launches_md(&state));
        assert_eq!(launches_md(&RunState::default()), "");
        let json = launches_json(&state, LaunchGroup::Line, 9);
        assert_eq!((&json["rows"][1]["place"], &json["rows"][1]["gpu_ms"]), (&Value::Null, &json!(1.0)));
    }

    #[test]
    fn stacks_are_files_of_other_tools() {
        let state = state();
        assert_eq!(
            stacks_file(&state, StackFormat::Collapsed),
            "(outside of Python);fill 1000000\nrun.py:2 main;model.py:5 attend;gemm, of f16 3000000\n"
        );
        let file: Value = serde_json::from_str(&stacks_file(&state, StackFormat::Speedscope)).unwrap();
        let profile = &file["profiles"][0];
        let name = |at: &Value| file["shared"]["frames"][at.as_u64().unwrap() as usize]["name"].clone();
        let last: Vec<Value> = profile["samples"][1].as_array().unwrap().iter().map(name).collect();
        assert_eq!(last, ["run.py:2 main", "model.py:5 attend", "gemm; of f16"]);
        assert_eq!(profile["endValue"], 4_000_000);
    }
}
