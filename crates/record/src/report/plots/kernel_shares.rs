//! Kernels by share of time, for each phase and each report.

use plotters::prelude::*;

use super::canvas::{
    Area, BLUE, DrawError, FAINT, Format, Hovers, INK, LINE, ORANGE, PURPLE, fitted, label, label_before,
    plot,
};
use crate::state::RunState;
use llmprof_base::units::{millis, percent};
use llmprof_event::{Phase, kernels::Kind};

const MOST_ROWS: usize = 12;
const BAR: i32 = 14;

struct Group {
    title: String,
    colour: RGBColor,
    /// Name, nanoseconds, share from 0 to 1.
    rows: Vec<(String, f64, f64)>,
    left_out: usize,
}

/// `None` without kernels.
pub fn kernel_shares_svg(state: &RunState, format: Format) -> Option<String> {
    let groups = groups(state);
    if groups.is_empty() {
        return None;
    }
    let row = row_height(format);
    let height =
        |group: &Group| 2 + LINE * (2 + i32::from(group.left_out > 0)) + row * group.rows.len() as i32;
    let height = groups.iter().map(height).sum::<i32>() + 4;
    plot(state, format, height as u32, |area, hovers| {
        let mut y = 4;
        for group in &groups {
            draw_group(area, hovers, group, (format, &mut y))?;
        }
        Ok(())
    })
}

fn groups(state: &RunState) -> Vec<Group> {
    let mut groups = Vec::new();
    for (phase, colour) in [(Phase::Decode, BLUE), (Phase::Prefill, PURPLE)] {
        let Some(live) = state.kernels.live(phase).filter(|live| !live.total.rows.is_empty()) else {
            continue;
        };
        let named = live.total.rows.iter().map(|row| {
            let operator = row.operator.map_or_else(String::new, |operator| format!("{operator}: "));
            (format!("{operator}{}", row.family), row.total_ns)
        });
        let title = format!("{}, {} steps", phase.name(), live.total.steps);
        groups.extend(group(title, colour, named));
    }
    for report in &state.kernels.reports {
        for table in report.tables.iter().filter(|table| table.kind == Kind::Kernels) {
            let named = table.rows.iter().map(|row| (row.family.clone(), row.total_ns));
            let phase = report.phase.map_or_else(String::new, |phase| format!(", {}", phase.name()));
            groups.extend(group(format!("{}{phase} ({})", report.tool, report.file), ORANGE, named));
        }
    }
    groups
}

/// Sums rows of the same name. `None` if nothing was timed.
fn group(
    title: String,
    colour: RGBColor,
    named: impl Iterator<Item = (String, Option<f64>)>,
) -> Option<Group> {
    let mut rows: Vec<(String, f64, f64)> = Vec::new();
    for (name, ns) in named {
        let ns = ns.filter(|ns| ns.is_finite()).unwrap_or(0.0);
        match rows.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, sum, _)) => *sum += ns,
            None => rows.push((name, ns, 0.0)),
        }
    }
    let total: f64 = rows.iter().map(|(_, ns, _)| ns).sum();
    if total <= 0.0 {
        return None;
    }
    rows.iter_mut().for_each(|(_, ns, share)| *share = *ns / total);
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    Some(Group { title, colour, rows, left_out })
}

/// A name, a bar and its value: beside each other, or the bar below.
fn row_height(format: Format) -> i32 {
    format.pick(LINE + 2, LINE + BAR + 8)
}

fn draw_group(
    area: &Area<'_>,
    hovers: &mut Hovers,
    group: &Group,
    (format, y): (Format, &mut i32),
) -> Result<(), DrawError> {
    let width = format.width() as i32;
    let left = format.pick(24, 8);
    let (bar_left, bar_below) = format.pick((380, 0), (left, LINE));
    let longest = format.pick(width - bar_left - 160, width - 2 * left);
    area.draw(&label(fitted(&group.title, width - 2 * left), (left, *y), FAINT))?;
    *y += LINE + 2;
    for (name, ns, share) in &group.rows {
        let value = format!("{} · {}", percent(share * 100.0), millis(ns / 1e6));
        let end = bar_left + (f64::from(longest) * share) as i32;
        area.draw(&label(fitted(name, format.pick(bar_left - left - 8, 200)), (left, *y), INK))?;
        area.draw(&match format {
            Format::Phone => label_before(value.clone(), (width - left, *y), INK),
            _ => label(value.clone(), (end + 8, *y), INK),
        })?;
        let top = *y + bar_below;
        let corners = [(bar_left, top), (end.max(bar_left + 1), top + BAR)];
        area.draw(&Rectangle::new(corners, group.colour.mix(0.8).filled()))?;
        // Hovers are placed in the whole plot.
        let (from, _) = area.get_pixel_range();
        let above = area.get_pixel_range().1.start;
        let row =
            [(from.start + left, above + *y - 2), (from.end - left, above + *y + row_height(format) - 3)];
        hovers.add(row[0], row[1], &format!("{name}: {value}"));
        *y += row_height(format);
    }
    if group.left_out > 0 {
        area.draw(&label(format!("and {} more", group.left_out), (left, *y), FAINT))?;
        *y += LINE;
    }
    *y += LINE;
    Ok(())
}
