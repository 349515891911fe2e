//! Changes in the kernels of one source between two windows of a run, or between two runs.

use std::collections::HashMap;

use llmprof_event::kernels::{Extent, Group, KernelRow, KernelTable, Measure};

/// A table, and the number of steps of its times; `None` if the unit is a call.
#[derive(Debug, Clone, Copy)]
pub struct Profiled<'a> {
    pub table: &'a KernelTable,
    pub steps: Option<u64>,
}

/// How a row differs from the earlier one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Its time per step or per call, relative to the earlier time.
    Time(f64),
    /// It did not run before.
    New,
    /// It ran only before.
    Gone,
}

/// The changes of all rows in one grouping.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    rows: HashMap<Key, Change>,
    group: Group,
    nested: bool,
    /// Rows that ran only before.
    pub gone: Vec<String>,
}

/// The key of a row in two tables: by name and, unless rows are combined, by grid and operator.
type Key = (String, Option<String>, Option<Extent>, Option<&'static str>);

fn key(row: &KernelRow, group: Group, nested: bool) -> Key {
    let range = row.range.clone().filter(|_| nested || group == Group::None);
    let single = group == Group::None;
    (
        row.name.clone(),
        range,
        row.grid.filter(|_| single),
        row.operator.filter(|_| single).map(|operator| operator.name()),
    )
}

/// The time of a row per step or per call.
fn unit_ns(row: &KernelRow, steps: Option<u64>) -> Option<f64> {
    match steps {
        Some(steps) => row.total_ns.map(|ns| ns / steps.max(1) as f64),
        None => row.mean_ns,
    }
}

impl Changes {
    /// `None` if the tables are of different kinds, do not measure time, or if one of them is empty.
    pub fn between(before: Profiled<'_>, now: Profiled<'_>, group: Group) -> Option<Changes> {
        let comparable = before.table.kind == now.table.kind
            && now.table.kind.measure() == Measure::Time
            && before.steps.is_some() == now.steps.is_some()
            && [before, now].iter().all(|side| !side.table.rows.is_empty());
        if !comparable {
            return None;
        }
        let nested = now.table.nested;
        let rows = |side: Profiled<'_>| -> HashMap<Key, Option<f64>> {
            let grouped = side.table.grouped(group).rows;
            grouped.iter().map(|row| (key(row, group, nested), unit_ns(row, side.steps))).collect()
        };
        let (before, now) = (rows(before), rows(now));
        let mut gone: Vec<String> =
            before.keys().filter(|key| !now.contains_key(*key)).map(|(name, ..)| name.clone()).collect();
        gone.sort();
        let mut changes: HashMap<Key, Change> = HashMap::new();
        for (key, ns) in &now {
            let change = match before.get(key) {
                None => Some(Change::New),
                Some(then) => {
                    let both = then.zip(*ns).filter(|(then, _)| *then > 0.0);
                    both.map(|(then, now)| Change::Time(now / then))
                }
            };
            changes.extend(change.map(|change| (key.clone(), change)));
        }
        changes
            .extend(before.into_keys().filter(|key| !now.contains_key(key)).map(|key| (key, Change::Gone)));
        Some(Changes { rows: changes, group, nested, gone })
    }

    /// The change of a row of the table in the same grouping; `None` if it is not known.
    pub fn get(&self, row: &KernelRow) -> Option<Change> {
        self.rows.get(&key(row, self.group, self.nested)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::Kind;

    fn row(name: &str, calls: u64, mean_ns: f64) -> KernelRow {
        let total_ns = Some(calls as f64 * mean_ns);
        KernelRow { calls, total_ns, mean_ns: Some(mean_ns), ..KernelRow::named(name) }
    }

    fn table(rows: Vec<KernelRow>) -> KernelTable {
        KernelTable { rows, ..KernelTable::new("test", Kind::Kernels) }
    }

    fn ratio(change: Option<Change>) -> f64 {
        match change {
            Some(Change::Time(ratio)) => ratio,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn windows_of_different_length_compare_per_step_and_per_call() {
        let before = table(vec![row("gemv", 100, 1000.0), row("old", 10, 5.0), row("fused", 100, 10.0)]);
        // Five times as many steps; half as many calls of `fused` in each.
        let now = table(vec![row("gemv", 500, 1100.0), row("fused", 250, 10.0), row("fresh", 5, 7.0)]);
        let of = |steps: [Option<u64>; 2]| {
            let [before, now] =
                [(&before, steps[0]), (&now, steps[1])].map(|(table, steps)| Profiled { table, steps });
            Changes::between(before, now, Group::Name)
        };
        let per_step = of([Some(10), Some(50)]).unwrap();
        assert!((ratio(per_step.get(&now.rows[0])) - 1.1).abs() < 1e-12);
        assert!((ratio(per_step.get(&now.rows[1])) - 0.5).abs() < 1e-12);
        assert_eq!(per_step.get(&now.rows[2]), Some(Change::New));
        assert_eq!(per_step.get(&before.rows[1]), Some(Change::Gone));
        assert_eq!(per_step.get(&row("never", 1, 1.0)), None);
        assert_eq!(per_step.gone, ["old"]);
        let per_call = of([None, None]).unwrap();
        assert!((ratio(per_call.get(&now.rows[1])) - 1.0).abs() < 1e-12);
        assert_eq!(of([None, Some(1)]), None, "steps are not compared with calls");
    }

    #[test]
    fn only_like_is_compared_with_like() {
        let some = table(vec![row("gemv", 1, 1.0)]);
        let bytes = KernelTable { kind: Kind::MemorySize, ..some.clone() };
        for (before, now) in [(&some, &bytes), (&bytes, &bytes), (&table(Vec::new()), &some)] {
            let [before, now] = [before, now].map(|table| Profiled { table, steps: None });
            assert_eq!(Changes::between(before, now, Group::Family), None);
        }
    }

    #[test]
    fn single_launches_are_distinguished_by_grid() {
        let on = |x: u32, ns: f64| KernelRow { grid: Some([x, 1, 1]), ..row("gemv", 1, ns) };
        let (before, now) = (table(vec![on(8, 10.0), on(16, 20.0)]), table(vec![on(8, 10.0), on(16, 30.0)]));
        let [x, y] = [&before, &now].map(|table| Profiled { table, steps: None });
        let changes = Changes::between(x, y, Group::None).unwrap();
        assert_eq!(
            [0, 1].map(|i| changes.get(&now.rows[i])),
            [Change::Time(1.0), Change::Time(1.5)].map(Some)
        );
        let combined = Changes::between(x, y, Group::Name).unwrap();
        assert!((ratio(combined.get(&now.grouped(Group::Name).rows[0])) - 40.0 / 30.0).abs() < 1e-12);
    }
}
