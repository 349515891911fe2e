//! The same kernels in other sources: live, and in the reports of nsys and ncu.

use super::source::{Source, Sources};
use llm_cost::Operator;
use llmprof_event::kernels::{Group, KernelRow, KernelTable, Kind, names};

/// The kernels of a row in another source.
pub struct Elsewhere<'a> {
    pub source: Source<'a>,
    /// All of them as one row.
    pub row: KernelRow,
    /// Their share of the other source's total, in percent.
    pub share: Option<f64>,
    /// Whether they have other grids in that source.
    pub other_grid: bool,
    /// Operators with the same kernel on the same grid, which a report without operators cannot separate.
    pub shared_with: Vec<Operator>,
}

/// The rows of a table in a combined row.
pub fn rows_of<'t>(table: &'t KernelTable, group: Group, row: &KernelRow) -> Vec<&'t KernelRow> {
    let same = |part: &&KernelRow| {
        let single = group != Group::None
            || (part.grid == row.grid && part.operator == row.operator && part.range == row.range);
        group.key(part) == row.name && single && (!table.nested || part.range == row.range)
    };
    table.rows.iter().filter(same).collect()
}

/// The kernels of a row of the displayed source in all others, only those of the same phase.
pub fn elsewhere<'a>(sources: &Sources<'a>, group: Group, row: &KernelRow) -> Vec<Elsewhere<'a>> {
    let shown = sources.shown();
    if !has_kernels(&shown) {
        return Vec::new();
    }
    let table = shown.table();
    let parts: Vec<Named<'_>> = rows_of(&table, group, row).into_iter().map(Named::new).collect();
    let others = sources.all.iter().enumerate().filter(|(index, other)| {
        let same_phase = shown.phase().zip(other.phase()).is_none_or(|(a, b)| a == b);
        *index != sources.index && has_kernels(other) && same_phase
    });
    others.filter_map(|(_, other)| found(&table, &parts, *other)).collect()
}

fn has_kernels(source: &Source<'_>) -> bool {
    source.kind() == Kind::Kernels && !matches!(source, Source::Timed { .. })
}

fn found<'a>(shown: &KernelTable, parts: &[Named<'_>], source: Source<'a>) -> Option<Elsewhere<'a>> {
    let table = source.table();
    let mut named: Vec<(Named<'_>, bool)> = Vec::new();
    for row in &table.rows {
        let other = Named::new(row);
        let same: Vec<&Named<'_>> = parts.iter().filter(|part| part.is_named_as(&other)).collect();
        if !same.is_empty() {
            let on_grid = same.iter().any(|part| part.may_have_grid_of(&other));
            named.push((other, on_grid));
        }
    }
    // Another grid is another problem size: used only if there is nothing else.
    let other_grid = !named.iter().any(|(_, on_grid)| *on_grid);
    named.retain(|(_, on_grid)| other_grid || *on_grid);
    let (first, rest) = named.split_first()?;
    let mut row = first.0.row.clone();
    rest.iter().for_each(|(other, _)| row.absorb(other.row));
    let share =
        table.total().filter(|total| *total > 0.0).zip(row.total_ns).map(|(all, ns)| ns / all * 100.0);
    let shared_with = match row.operator {
        None if !other_grid => operators_beside(shown, parts, &named),
        _ => Vec::new(),
    };
    Some(Elsewhere { row, share, other_grid, shared_with, source })
}

/// The operators of other rows of the displayed table with the found kernels.
fn operators_beside(shown: &KernelTable, parts: &[Named<'_>], found: &[(Named<'_>, bool)]) -> Vec<Operator> {
    let own: Vec<Option<Operator>> = parts.iter().map(|part| part.row.operator).collect();
    let mut others: Vec<Operator> = Vec::new();
    for row in &shown.rows {
        let Some(operator) = row.operator.filter(|operator| !own.contains(&Some(*operator))) else {
            continue;
        };
        let named = Named::new(row);
        let is_found =
            |(other, _): &(Named<'_>, bool)| named.is_named_as(other) && named.may_have_grid_of(other);
        if !others.contains(&operator) && found.iter().any(is_found) {
            others.push(operator);
        }
    }
    others
}

/// A row with its name in the forms that tools use.
struct Named<'t> {
    row: &'t KernelRow,
    full: String,
    function: String,
}

impl<'t> Named<'t> {
    fn new(row: &'t KernelRow) -> Named<'t> {
        Named { row, full: names::demangled(&row.name).into_owned(), function: names::function(&row.name) }
    }

    /// Whether the full names are equal; if a tool has written only the function, that is compared.
    fn is_named_as(&self, other: &Named<'_>) -> bool {
        let is_bare = |named: &Named<'_>| named.full == named.function;
        self.full == other.full || ((is_bare(self) || is_bare(other)) && self.function == other.function)
    }

    fn may_have_grid_of(&self, other: &Named<'_>) -> bool {
        self.row.grid.zip(other.row.grid).is_none_or(|(a, b)| a == b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, grid: Option<u32>, operator: Option<Operator>) -> KernelRow {
        KernelRow {
            calls: 1,
            total_ns: Some(10.0),
            mean_ns: Some(10.0),
            grid: grid.map(|x| [x, 1, 1]),
            operator,
            ..KernelRow::named(name)
        }
    }

    #[test]
    fn names_match_as_tools_write_them() {
        for (a, b, same) in [
            ("skinny_8_bf16", "skinny_8_bf16", true),
            ("_Z11gemv_kernelIfLi4EEvPKT_i", "gemv_kernel", true),
            ("void gemv_kernel<float, 4>(float const*, int)", "_Z11gemv_kernelIfLi4EEvPKT_i", true),
            ("void gemv_kernel<float, 8>(float const*, int)", "_Z11gemv_kernelIfLi4EEvPKT_i", false),
            ("skinny_8_bf16", "skinny_gated_8_bf16", false),
        ] {
            let (x, y) = (row(a, None, None), row(b, None, None));
            assert_eq!(Named::new(&x).is_named_as(&Named::new(&y)), same, "{a} and {b}");
        }
    }

    #[test]
    fn kernels_are_joined_by_grid_and_ambiguous_ones_are_named() {
        let live = KernelTable {
            rows: vec![
                row("skinny", Some(224), Some(Operator::Down)),
                row("skinny", Some(224), Some(Operator::AttentionOutput)),
                row("skinny", Some(288), Some(Operator::Qkv)),
                row("norm", Some(1), Some(Operator::MlpNorm)),
            ],
            ..KernelTable::new("live", Kind::Kernels)
        };
        let ncu = KernelTable {
            rows: vec![
                row("skinny", Some(224), None),
                row("skinny", Some(288), None),
                row("norm", Some(2), None),
            ],
            ..KernelTable::new("ncu", Kind::Kernels)
        };
        let report = llmprof_event::KernelReport {
            tool: "ncu 2025".into(),
            phase: None,
            file: String::new(),
            tables: vec![ncu],
        };
        let of = |operator: Operator| {
            let parts: Vec<Named<'_>> =
                live.rows.iter().filter(|row| row.operator == Some(operator)).map(Named::new).collect();
            found(&live, &parts, Source::Table { report: &report, table: &report.tables[0] })
        };
        let down = of(Operator::Down).unwrap();
        assert_eq!((down.row.calls, down.row.grid), (1, Some([224, 1, 1])));
        assert_eq!(down.shared_with, [Operator::AttentionOutput]);
        assert!((down.share.unwrap() - 100.0 / 3.0).abs() < 1e-9);
        let qkv = of(Operator::Qkv).unwrap();
        assert_eq!((qkv.row.grid, qkv.shared_with.len(), qkv.other_grid), (Some([288, 1, 1]), 0, false));
        assert!(of(Operator::MlpNorm).unwrap().other_grid, "only on another grid");
        assert!(of(Operator::Rope).is_none());
    }
}
