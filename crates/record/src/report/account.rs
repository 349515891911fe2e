//! The accounts of a run: as text, as a section of `report.md`, and as JSON.

use serde_json::{Map, Value, json};

use super::{launches::launches_md, list_item};
use crate::state::{Accounts, RunState, Stacks};
use llmprof_analysis::account::{Account, Entry, Figure, SCHEMA, Setup, remedy};
use llmprof_base::{
    table::{aligned, markdown},
    units::{grouped, millis, percent},
};

/// `account` of `metrics.json`; null without one.
pub(super) fn account_json(state: &RunState) -> Value {
    let accounts = state.accounts();
    if accounts.is_empty() {
        return Value::Null;
    }
    let mut object = Map::new();
    object.insert("schema".to_owned(), json!(SCHEMA));
    for account in accounts.all() {
        object.insert(account.figure.key().to_owned(), one_json(account, &state.setup(account.figure)));
    }
    Value::Object(object)
}

/// `setup` decides which remedies apply.
fn one_json(account: &Account, setup: &Setup) -> Value {
    let entry = |entry: &Entry| {
        json!({
            "owner": entry.owner.key(),
            "name": entry.owner.to_string(),
            "group": entry.owner.group().key(),
            "ms": entry.ns / 1e6,
            "share": account.share(entry.ns),
            "basis": entry.basis.to_string(),
            "remedy": remedy(entry.owner, setup),
        })
    };
    json!({
        "figure": account.figure,
        "total_ms": account.total_ns / 1e6,
        "n": account.n,
        "owners": account.entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

/// `TPOT 5.44 ms (n = 9,984)`.
fn title(account: &Account) -> String {
    let n = if account.n > 1 { format!(" (mean, n = {})", grouped(account.n as i64)) } else { String::new() };
    format!("{} {}{n}", account.figure.name(), millis(account.total_ns / 1e6))
}

fn rows(account: &Account) -> Vec<[String; 4]> {
    let (shown, small, small_ns) = account.considerable();
    let share = |ns: f64| percent(100.0 * account.share(ns));
    let mut rows: Vec<[String; 4]> = shown
        .into_iter()
        .map(|entry| {
            [entry.owner.to_string(), millis(entry.ns / 1e6), share(entry.ns), entry.basis.to_string()]
        })
        .collect();
    if small > 0 {
        rows.push([format!("{small} smaller"), millis(small_ns / 1e6), share(small_ns), String::new()]);
    }
    rows
}

/// For a terminal: a table for each account; empty without one.
pub fn account_text(state: &RunState) -> String {
    let table = |account: &Account| {
        let mut table = vec![[title(account), String::new(), String::new(), String::new()]];
        table.extend(rows(account));
        aligned(&table, |column| column == 1 || column == 2)
    };
    state.accounts().all().map(table).collect::<Vec<_>>().join("\n\n")
}

/// The section of `report.md`.
pub(super) fn account_md(state: &RunState) -> String {
    let accounts: Accounts = state.accounts();
    if accounts.is_empty() {
        return String::new();
    }
    let mut out =
        "## Where the time goes\n\nEach nanosecond has one owner; the times add up to the mean.\n\n"
            .to_owned();
    for account in accounts.all() {
        let mut table = vec![["owner", "time", "share", "basis"].map(str::to_owned)];
        table.extend(rows(account));
        out +=
            &format!("### {}\n\n{}\n", title(account), markdown(&table, |column| column == 1 || column == 2));
        // Throughput has the owners of TPOT and TTFT.
        if account.figure != Figure::Throughput {
            out += &remedies(account, &state.setup(account.figure));
        }
    }
    out + &host_md(&state.stacks) + &launches_md(state)
}

/// Maximum lines of the host in a report.
const HOST_LINES: usize = 20;

/// The Python lines of a followed program.
fn host_md(stacks: &Stacks) -> String {
    if !stacks.is_there() {
        return String::new();
    }
    let share = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), |share| percent(100.0 * share));
    let mut table = vec![["while the GPU was idle", "all", "state", "thread", "line"].map(str::to_owned)];
    table.extend(stacks.lines().iter().take(HOST_LINES).map(|line| {
        [
            share(line.idle_share),
            share(Some(line.share)),
            line.state.to_string(),
            line.thread.clone(),
            line.line.to_owned(),
        ]
    }));
    format!(
        "### What the host did\n\nThe lines of the program's Python threads, in {} samples.\n\n{}\n",
        grouped(i64::try_from(stacks.samples()).unwrap_or(i64::MAX)),
        markdown(&table, |column| column < 2)
    )
}

/// What would make the owners smaller, each remedy once.
fn remedies(account: &Account, setup: &Setup) -> String {
    let mut known: Vec<(&str, Vec<String>)> = Vec::new();
    for entry in account.considerable().0 {
        let Some(remedy) = remedy(entry.owner, setup) else { continue };
        match known.iter_mut().find(|(text, _)| *text == remedy) {
            Some((_, owners)) => owners.push(entry.owner.to_string()),
            None => known.push((remedy, vec![entry.owner.to_string()])),
        }
    }
    let item =
        |(remedy, owners): &(&str, Vec<String>)| list_item(&format!("{}: {remedy}.", owners.join(", ")));
    let items: String = known.iter().map(item).collect();
    if items.is_empty() { items } else { items + "\n" }
}
