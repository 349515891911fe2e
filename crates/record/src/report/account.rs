//! The accounts of a run: as text, as a section of `report.md`, and as JSON.

use serde_json::{Map, Value, json};

use super::{launches::launches_md, list_item};
use crate::state::{Accounts, RunState, Stacks};
use llmprof_analysis::account::{Account, Entry, Figure, SCHEMA, Setup, remedy};
use llmprof_base::{
    cells,
    table::{Cell, Column, Table, Tone},
    units::{Unit, grouped, millis},
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

/// The owners of accounts, without rows.
fn no_owners() -> Table {
    let account = ["of", "total_ms", "n"].map(Column::data);
    Table::new(account.into_iter().chain([
        Column::text("owner").key("owner"),
        Column::data("group"),
        Column::number("time").key("ms").unit(Unit::Millis).tone(Tone::Number),
        Column::number("share").key("share").unit(Unit::Share).tone(Tone::Dim),
        Column::text("basis").key("basis").tone(Tone::Dim),
    ]))
}

fn owner(account: &Account, name: String, group: &str, ns: f64, basis: String) -> Vec<Cell> {
    cells![
        account.figure.key(),
        account.total_ns / 1e6,
        account.n,
        name,
        group,
        ns / 1e6,
        account.share(ns),
        basis,
    ]
}

fn entry(account: &Account, entry: &Entry) -> Vec<Cell> {
    let group = entry.owner.group().key();
    owner(account, entry.owner.to_string(), group, entry.ns, entry.basis.to_string())
}

/// All owners of all accounts.
pub fn all_owners(accounts: &Accounts) -> Table {
    let mut table = no_owners();
    for account in accounts.all() {
        account.entries.iter().for_each(|one| table.push(entry(account, one)));
    }
    table
}

/// The considerable owners of an account, and the sum of the smaller ones.
pub fn considerable_owners(account: &Account) -> Table {
    let (shown, small, small_ns) = account.considerable();
    let mut table = no_owners();
    shown.into_iter().for_each(|one| table.push(entry(account, one)));
    if small > 0 {
        table.push(owner(account, format!("{small} smaller"), "", small_ns, String::new()));
    }
    table
}

/// For a terminal: a table for each account; empty without one.
pub fn account_text(state: &RunState) -> String {
    let titles = |account: &Account| [title(account), String::new(), String::new(), String::new()];
    let table = |account: &Account| considerable_owners(account).titled(titles(account)).text();
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
        out += &format!("### {}\n\n{}\n", title(account), considerable_owners(account).markdown());
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
    let mut table = python_lines(stacks);
    table.rows.truncate(HOST_LINES);
    format!(
        "### What the host did\n\nThe lines of the program's Python threads, in {} samples.\n\n{}\n",
        grouped(i64::try_from(stacks.samples()).unwrap_or(i64::MAX)),
        table.markdown()
    )
}

/// The Python lines of a followed program, and how often its threads were there.
pub fn python_lines(stacks: &Stacks) -> Table {
    let mut table = Table::new([
        Column::number("while the GPU was idle")
            .key("share_while_gpu_idle")
            .unit(Unit::Share)
            .tone(Tone::Number),
        Column::number("all").key("share").unit(Unit::Share),
        Column::text("state").key("state"),
        Column::text("thread").key("thread").tone(Tone::Dim),
        Column::path("line").key("line"),
    ]);
    for line in stacks.lines() {
        table.push(cells![line.idle_share, line.share, line.state.to_string(), line.thread, line.line]);
    }
    table
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
