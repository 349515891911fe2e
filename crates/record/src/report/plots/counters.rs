//! Histograms of counters over the kernels of a report of ncu, weighted by their time.

use plotters::prelude::*;

use super::canvas::{Area, DrawError, FAINT, Format, Hovers, INK, LINE, ORANGE, fitted, label, plot};
use crate::state::RunState;
use llmprof_base::units::percent;
use llmprof_event::kernels::{KernelRow, KernelTable, Kind, counters::CounterMeans};

/// Bins of ten percent; values above 100 are in the last.
const BINS: usize = 10;
const BAR: i32 = 70;

/// A counter that is a percentage, and its name.
type Percentage = (&'static str, fn(&CounterMeans) -> Option<f64>);

const COUNTERS: [Percentage; 4] = [
    ("SM", |known| known.sm_pct),
    ("DRAM", |known| known.dram_pct),
    ("tensor pipe", |known| known.tensor_pct),
    ("occupancy", |known| known.occupancy_pct),
];

/// The share of the kernels' time by the percentage of one counter.
#[derive(Debug, PartialEq)]
struct Weighted {
    name: &'static str,
    /// From 0 to 1, relative to the time of the kernels that have the counter.
    shares: [f64; BINS],
    mean_pct: f64,
}

/// `None` without counters.
pub fn counters_svg(state: &RunState, format: Format) -> Option<String> {
    let groups: Vec<(String, Vec<Weighted>)> = state
        .kernels
        .reports
        .iter()
        .flat_map(|report| report.tables.iter().map(move |table| (report, table)))
        .filter(|(_, table)| table.kind == Kind::Kernels)
        .map(|(report, table)| (format!("{} ({})", report.tool, report.file), weighted(table)))
        .filter(|(_, counters)| !counters.is_empty())
        .collect();
    if groups.is_empty() {
        return None;
    }
    let columns = format.pick(COUNTERS.len(), 2);
    let line = BAR + 2 * LINE + 10;
    let rows = |counters: &[Weighted]| counters.len().div_ceil(columns) as i32;
    let height: i32 = groups.iter().map(|(_, counters)| LINE + 6 + line * rows(counters)).sum::<i32>() + 8;
    plot(state, format, height as u32, |area, hovers| {
        let (left, width) = (format.pick(24, 8), format.width() as i32);
        let column = (width - 2 * left) / columns as i32;
        let mut y = 4;
        for (title, counters) in &groups {
            area.draw(&label(fitted(title, width - 2 * left), (left, y), FAINT))?;
            y += LINE + 6;
            for (i, counter) in counters.iter().enumerate() {
                let at = (left + (i % columns) as i32 * column, y + (i / columns) as i32 * line);
                draw_counter(area, hovers, counter, at, column - 16)?;
            }
            y += line * rows(counters);
        }
        Ok(())
    })
}

fn weighted(table: &KernelTable) -> Vec<Weighted> {
    let known: Vec<(CounterMeans, f64)> = table.rows.iter().map(|row| (row.known(), weight(row))).collect();
    let of = |(name, value): Percentage| {
        let values: Vec<(f64, f64)> = known
            .iter()
            .filter_map(|(known, ns)| Some((value(known)?, *ns)))
            .filter(|(pct, _)| pct.is_finite())
            .collect();
        let total: f64 = values.iter().map(|(_, ns)| ns).sum();
        let mut shares = [0.0; BINS];
        for (pct, ns) in &values {
            shares[((pct.max(0.0) / 100.0 * BINS as f64) as usize).min(BINS - 1)] += ns / total;
        }
        let mean_pct = values.iter().map(|(pct, ns)| pct * ns / total).sum();
        (total > 0.0).then_some(Weighted { name, shares, mean_pct })
    };
    COUNTERS.into_iter().filter_map(of).collect()
}

/// The time of a row, by the report's own clock.
fn weight(row: &KernelRow) -> f64 {
    let counted = row.known().duration_ns.map(|ns| ns * row.calls as f64);
    row.total_ns.or(counted).filter(|ns| ns.is_finite()).unwrap_or(0.0)
}

fn draw_counter(
    area: &Area<'_>,
    hovers: &mut Hovers,
    counter: &Weighted,
    (x, y): (i32, i32),
    width: i32,
) -> Result<(), DrawError> {
    let title = format!("{}, mean {}", counter.name, percent(counter.mean_pct));
    area.draw(&label(fitted(&title, width), (x, y), INK))?;
    let (top, bottom) = (y + LINE, y + LINE + BAR);
    let bar = width / BINS as i32;
    let largest = counter.shares.iter().copied().fold(0.0, f64::max).max(1e-9);
    let (from, above) = (area.get_pixel_range().0.start, area.get_pixel_range().1.start);
    for (i, share) in counter.shares.iter().enumerate() {
        let left = x + i as i32 * bar;
        let height = (share / largest * f64::from(BAR)).round() as i32;
        if *share > 0.0 {
            let corners = [(left, bottom - height.max(1)), (left + bar - 1, bottom)];
            area.draw(&Rectangle::new(corners, ORANGE.mix(0.8).filled()))?;
        }
        let text = format!(
            "{} {} to {} %: {} of the kernels' time",
            counter.name,
            i * 10,
            (i + 1) * 10,
            percent(100.0 * share)
        );
        hovers.add((from + left, above + top), (from + left + bar, above + bottom), &text);
    }
    area.draw(&PathElement::new([(x, bottom), (x + bar * BINS as i32, bottom)], FAINT))?;
    area.draw(&label("0".to_owned(), (x, bottom + 2), FAINT))?;
    area.draw(&label("100 %".to_owned(), (x + bar * BINS as i32 - 34, bottom + 2), FAINT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::counters::Counter;

    #[test]
    fn a_long_kernel_counts_more() {
        let row = |ns: f64, sm: f64| {
            let mut row = KernelRow { calls: 1, total_ns: Some(ns), ..KernelRow::named("k") };
            let mut counter = Counter::NONE;
            counter.add(sm, ns);
            row.counters.merge(
                &"sm__throughput.avg.pct_of_peak_sustained_elapsed".into(),
                &"%".into(),
                &counter,
            );
            row
        };
        let table = KernelTable {
            rows: vec![row(900.0, 95.0), row(100.0, 5.0), row(1.0, 130.0)],
            ..KernelTable::new("ncu", Kind::Kernels)
        };
        let [sm] = &weighted(&table)[..] else { panic!() };
        assert_eq!(sm.name, "SM");
        assert!((sm.shares[9] - 901.0 / 1001.0).abs() < 1e-9 && (sm.shares[0] - 100.0 / 1001.0).abs() < 1e-9);
        assert!((sm.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
