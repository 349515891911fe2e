//! Each measured time as a waterfall of its owners: a bar begins where the one above it ends.

use plotters::prelude::*;

use super::canvas::{
    Area, BLUE, DrawError, FAINT, Format, GREEN, Hovers, INK, LINE, ORANGE, PURPLE, RED, fitted, label,
    label_before, plot,
};
use crate::state::RunState;
use llmprof_analysis::account::{Account, Group};
use llmprof_base::units::{millis, percent};

const BAR: i32 = 14;

/// A name, its group, its start and its time, both as shares.
struct Bar {
    name: String,
    group: Group,
    from: f64,
    share: f64,
    ns: f64,
}

/// `None` without an account.
pub fn account_svg(state: &RunState, format: Format) -> Option<String> {
    let accounts = state.accounts();
    if accounts.is_empty() {
        return None;
    }
    let all: Vec<(&Account, Vec<Bar>)> = accounts.all().map(|account| (account, bars(account))).collect();
    let height: i32 = all.iter().map(|(_, bars)| 2 * LINE + 2 + row_height(format) * bars.len() as i32).sum();
    plot(state, format, height as u32 + 4, |area, hovers| {
        let mut y = 4;
        for (account, bars) in &all {
            draw_account(area, hovers, (account, bars), (format, &mut y))?;
        }
        Ok(())
    })
}

fn bars(account: &Account) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let mut from = 0.0;
    let mut add = |name: String, group: Group, ns: f64| {
        let share = account.share(ns);
        bars.push(Bar { name, group, from, share, ns });
        from += share;
    };
    let (shown, small, small_ns) = account.considerable();
    shown.into_iter().for_each(|entry| add(entry.owner.to_string(), entry.owner.group(), entry.ns));
    if small > 0 {
        add(format!("{small} smaller"), Group::Unexplained, small_ns);
    }
    bars
}

fn colour(group: Group) -> RGBColor {
    match group {
        Group::Bound => GREEN,
        Group::Gpu => BLUE,
        Group::Clock => RED,
        Group::Gaps => ORANGE,
        Group::Others => PURPLE,
        Group::Outside => INK,
        Group::ModelStart => BLUE,
        Group::ProcessStart => ORANGE,
        Group::Unexplained => FAINT,
    }
}

fn row_height(format: Format) -> i32 {
    format.pick(LINE + 2, LINE + BAR + 8)
}

fn draw_account(
    area: &Area<'_>,
    hovers: &mut Hovers,
    (account, bars): (&Account, &[Bar]),
    (format, y): (Format, &mut i32),
) -> Result<(), DrawError> {
    let width = format.width() as i32;
    let left = format.pick(24, 8);
    let (bar_left, bar_below) = format.pick((260, 0), (left, LINE));
    let whole = format.pick(width - bar_left - 180, width - 2 * left);
    let title = format!("{} {}", account.figure.name(), millis(account.total_ns / 1e6));
    area.draw(&label(title, (left, *y), FAINT))?;
    *y += LINE + 2;
    for bar in bars {
        let value = format!("{} · {}", millis(bar.ns / 1e6), percent(100.0 * bar.share));
        let x = |share: f64| bar_left + (f64::from(whole) * share.min(1.0)) as i32;
        let (from, to) = (x(bar.from), x(bar.from + bar.share));
        area.draw(&label(fitted(&bar.name, format.pick(bar_left - left - 8, 200)), (left, *y), INK))?;
        area.draw(&match format {
            Format::Phone => label_before(value.clone(), (width - left, *y), INK),
            _ => label(value.clone(), (to + 8, *y), INK),
        })?;
        let top = *y + bar_below;
        let corners = [(from, top), (to.max(from + 1), top + BAR)];
        area.draw(&Rectangle::new(corners, colour(bar.group).mix(0.8).filled()))?;
        let (across, down) = area.get_pixel_range();
        let above = down.start + *y;
        hovers.add(
            (across.start + left, above - 2),
            (across.end - left, above + row_height(format) - 3),
            &format!("{}: {value}", bar.name),
        );
        *y += row_height(format);
    }
    *y += LINE;
    Ok(())
}
