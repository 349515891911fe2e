//! Kernels by share of time, for each phase and each report.

use plotters::prelude::*;

use super::canvas::{Area, BLUE, DrawError, FAINT, INK, ORANGE, PURPLE, label, plot};
use crate::{
    base::units::{millis, percent},
    event::{Phase, kernels::Kind},
    state::RunState,
};

const MOST_ROWS: usize = 12;
const ROW: i32 = 20;
const NAME_CHARS: usize = 44;

struct Group {
    title: String,
    colour: RGBColor,
    /// Name, nanoseconds, share from 0 to 1.
    rows: Vec<(String, f64, f64)>,
    left_out: usize,
}

/// `None` without kernels.
pub fn kernel_shares_svg(state: &RunState) -> Option<String> {
    let groups = groups(state);
    if groups.is_empty() {
        return None;
    }
    let lines: i32 =
        groups.iter().map(|group| 2 + group.rows.len() as i32 + i32::from(group.left_out > 0)).sum();
    plot(state, 26 + (lines * ROW + 10) as u32, |area| {
        let mut y = 4;
        for group in &groups {
            draw_group(area, group, &mut y)?;
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

fn draw_group(area: &Area<'_>, group: &Group, y: &mut i32) -> Result<(), DrawError> {
    area.draw(&label(group.title.clone(), (14, *y), 13, INK))?;
    *y += ROW;
    for (name, ns, share) in &group.rows {
        let short = match name.chars().count() > NAME_CHARS {
            true => format!("{}…", name.chars().take(NAME_CHARS - 1).collect::<String>()),
            false => name.clone(),
        };
        area.draw(&label(short, (24, *y), 12, INK))?;
        let to = 330 + (520.0 * share) as i32;
        area.draw(&Rectangle::new([(330, *y), (to.max(331), *y + 13)], group.colour.mix(0.8).filled()))?;
        let text = format!("{} · {}", percent(share * 100.0), millis(ns / 1e6));
        area.draw(&label(text, (to + 8, *y), 12, INK))?;
        *y += ROW;
    }
    if group.left_out > 0 {
        area.draw(&label(format!("and {} more", group.left_out), (24, *y), 12, FAINT))?;
        *y += ROW;
    }
    *y += ROW;
    Ok(())
}
