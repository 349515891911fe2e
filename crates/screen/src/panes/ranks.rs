//! Ranks: the GPUs of one program side by side, their collectives, and who waits for whom.

use crate::{
    pane::Spec,
    theme::Theme,
    view::View,
    widgets::{TableLines, cut, draw_box, draw_note, inside_box, note, wrapped},
};
use crossterm::event::KeyCode;
use std::collections::BTreeSet;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span as Text},
    widgets::Widget,
};

use llmprof_analysis::ranks::{Late, Totals, collective_table, lane_table};
use llmprof_base::{
    cells,
    table::{Cell, Table},
    units::{clock, millis, percent},
};
use llmprof_event::ranks::RankLane;

pub struct RanksPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Ranks",
    keys: &[KeyCode::Char('0')],
    help: "Ranks: several GPUs of one program: who waits for whom",
    is_special: true,
    why_empty: "fewer than two GPUs were recorded together",
    has_content: |_, state| state.ranks.is_there(),
    draw: |view, area, buf| RanksPane(view).render(area, buf),
    table: lanes_and_collectives,
    ..Spec::EMPTY
};

/// One row per lane and per collective.
fn lanes_and_collectives(view: &View<'_>) -> Table {
    let mut table = Table::keyed(
        "what,name,gpu,span_s,compute_s,nccl_s,wait_s,copy_s,idle_s,steps,kernels,collectives,last,bytes,ranks,calls,median_us,algbw_b_s,busbw_b_s",
    );
    let totals = view.state.ranks.total();
    for lane in &totals.lanes {
        let (of, sums) = (lane.lane(), &lane.sums);
        let mut row = cells!["lane", of.to_string(), of.gpu];
        let times = [lane.span_ns, sums.compute_ns, sums.nccl_ns, sums.wait_ns, sums.copy_ns, sums.idle_ns];
        row.extend(times.map(|ns| Cell::from(ns as f64 / 1e9)));
        row.extend([sums.steps, sums.kernels, sums.collectives, sums.last].map(Cell::from));
        table.push(row);
    }
    let lanes = table.rows.len();
    table.append(&collective_table(totals));
    table.rows[lanes..].iter_mut().for_each(|row| row[0] = "collective".into());
    table
}

/// Signs of a timeline, their meaning, and their style.
fn signs(theme: &Theme) -> [(char, &'static str, &'static str, Style); 5] {
    let glyph = |unicode, ascii| if theme.glyphs.ascii { ascii } else { unicode };
    [
        ('c', "computes", glyph("█", "#"), theme.utilisation),
        ('n', "NCCL", glyph("▓", "="), theme.prefill),
        ('w', "waits", glyph("░", "~"), theme.warn),
        ('m', "copies", glyph("▒", ":"), theme.clock),
        ('.', "nothing", glyph("·", "."), theme.dim),
    ]
}

/// The displayed data: recent work while a run is in progress, all of it afterwards.
fn shown<'a>(view: &View<'a>) -> (&'a Totals, Late, &'static str) {
    let state = view.state;
    let ranks = &state.ranks;
    match is_over(view) {
        true => (ranks.total(), state.late_rank_of_run(), "all recorded time"),
        false => (ranks.recent(), state.late_rank(), "recent bursts"),
    }
}

fn is_over(view: &View<'_>) -> bool {
    view.state.finished.is_some() || view.state.is_of_files()
}

impl Widget for RanksPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let (totals, late, span) = shown(view);
        if !view.state.ranks.is_there() {
            let inner = draw_box(theme, ("ranks", ""), area, buf);
            let text = match view.state.followed().is_some() && !is_over(view) {
                true => "no collective and no kernels of several GPUs were recorded yet",
                false => {
                    "no ranks: llmprof-tui exec -- torchrun --nproc-per-node 2 PROGRAM, or kernels TRACE TRACE…"
                }
            };
            return draw_note(theme, text, inner, buf);
        }
        let words = words(view, totals, &late);
        let width = (area.width as usize).saturating_sub(4);
        let lines: Vec<(usize, String)> = words
            .iter()
            .enumerate()
            .flat_map(|(i, text)| {
                wrapped(&theme.glyphs.plain(text), width).into_iter().map(move |line| (i, line))
            })
            .collect();
        let lanes = totals.lanes.len() as u16;
        let collectives = totals.collectives.len() as u16;
        let wanted = collectives.clamp(1, 12) + 3;
        let said = (lines.len() as u16).min((area.height / 4).max(2));
        let room = area.height.saturating_sub(said);
        let table = if collectives > 0 && room >= lanes + 9 { wanted.min(room - lanes - 4) } else { 0 };
        // The text gets the room that the lanes do not need.
        let above = (room - table).min(lanes * 3 + 4);
        let [above, middle, below] =
            Layout::vertical([Constraint::Length(above), Constraint::Length(table), Constraint::Fill(1)])
                .areas(area);
        draw_lanes(view, totals, (&late, span), above, buf);
        if table > 0 {
            draw_collectives(view, totals, middle, buf);
        }
        for ((i, line), y) in lines.into_iter().zip(below.y..below.bottom()) {
            let first = i == 0;
            if first && y == below.y {
                buf.set_string(below.x + 1, y, theme.glyphs.pointer, theme.accent);
            }
            let style = match (&late, first) {
                (Late::Straggler(_), true) => theme.warn,
                (_, true) => theme.text,
                _ => theme.dim,
            };
            buf.set_stringn(below.x + 3, y, line, width, style);
        }
    }
}

/// The late rank, missing data, and NCCL's output.
fn words(view: &View<'_>, totals: &Totals, late: &Late) -> Vec<String> {
    let state = view.state;
    let mut words = Vec::new();
    if !totals.is_empty() {
        words.push(late.to_string());
    }
    for (rank, at) in state.ended_ranks() {
        words.push(format!("Rank {rank} has ended at {}.", clock(std::time::Duration::from_nanos(at.0))));
    }
    let silent: Vec<String> = state.silent_ranks().iter().map(u32::to_string).collect();
    if !silent.is_empty() {
        words.push(format!(
            "No kernels of rank {} were recorded; the Log has the reason if it is known.",
            silent.join(", ")
        ));
    }
    if let Some(error) = totals.clock_error_ns {
        words.push(format!("The clocks of the ranks agree to {}.", millis(error as f64 / 1e6)));
    }
    words.extend(state.ranks.nccl.words());
    words
}

/// Columns right of the timeline: their width, and the width of the pane from which on they are shown.
const COLUMNS: [(&str, usize, u16); 7] = [
    ("compute", 9, 50),
    ("NCCL", 8, 60),
    ("waits", 8, 0),
    ("idle", 8, 70),
    ("step", 10, 110),
    ("last in", 9, 110),
    ("SM clock", 10, 90),
];

fn draw_lanes(view: &View<'_>, totals: &Totals, (late, span): (&Late, &str), area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = inside_box(area);
    let names: Vec<String> = totals
        .lanes
        .iter()
        .map(|lane| {
            let name = lane.lane().to_string();
            match lane.lane().gpu {
                Some(gpu) if inner.width >= 100 && !name.contains("GPU") => format!("{name} · GPU {gpu}"),
                _ => name,
            }
        })
        .collect();
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(24) as u16 + 2;
    let fitting = COLUMNS.into_iter().filter(|(_, _, from)| inner.width >= *from);
    let columns: Vec<(&str, usize)> = fitting.map(|(key, width, _)| (key, width)).collect();
    let right = columns.iter().map(|(_, width)| *width as u16).sum::<u16>();
    let clock = |lane: &RankLane| match is_over(view) {
        true => view.state.rank_clock(lane),
        false => view.state.recent_rank_clock(lane),
    };
    let table = TableLines::new(theme, lane_table(totals, clock), columns);
    let picture = Rect { x: inner.x + label, width: inner.width.saturating_sub(label + right + 1), ..inner };
    let title = title_of(totals);
    let aside = match shown_part(view.state.ranks.picture_ns, totals, picture.width) {
        Some(step) if area.width >= 76 => format!("{step} · shares: {span}"),
        Some(step) => step,
        None => span.to_owned(),
    };
    draw_box(theme, (&title, &aside), area, buf);
    if inner.height < 2 || totals.lanes.is_empty() {
        return note(theme, " no time in which all ranks were recorded yet").render(inner, buf);
    }
    // Two lines are reserved for a lane and for the number of those that do not fit.
    let has_heading = inner.height > 2 || totals.lanes.len() == 1;
    let columns = |y: u16| Rect { x: picture.right(), y, width: right, height: 1 }.intersection(inner);
    if has_heading {
        Line::from(table.heading()).render(columns(inner.y), buf);
    }
    let late = match late {
        Late::Straggler(straggler) => Some(&straggler.lane),
        _ => None,
    };
    let has_legend = inner.height >= totals.lanes.len() as u16 + 2;
    let body = inner.height - u16::from(has_heading) - u16::from(has_legend);
    let height = (body / totals.lanes.len() as u16).clamp(1, 3);
    // A lane has at most two lines and a blank one.
    let drawn = height.min(2);
    let fits = (body / height) as usize;
    // The last line shows the number of lanes that do not fit.
    let fitting = if fits < totals.lanes.len() { (body - 1) as usize } else { fits };
    let first = inner.y + u16::from(has_heading);
    let places = (first..).step_by(height as usize);
    for (row, ((lane, name), y)) in totals.lanes.iter().zip(&names).zip(places).take(fitting).enumerate() {
        let is_late = late.is_some_and(|late| late.is(lane.lane()));
        let style = if is_late { theme.warn.add_modifier(Modifier::BOLD) } else { theme.text };
        let name = cut(&theme.glyphs.plain(name), label as usize - 2, theme.glyphs.ascii);
        buf.set_stringn(inner.x + 1, y, name, label as usize - 2, style);
        draw_picture(theme, &lane.sums.picture, Rect { y, height: drawn, ..picture }, buf);
        Line::from(table.row(row)).render(columns(y), buf);
    }
    if totals.lanes.len() > fitting {
        let text = format!(" {} more lanes do not fit", totals.lanes.len() - fitting);
        note(theme, &text).render(Rect { y: inner.bottom() - 1, height: 1, ..inner }, buf);
    } else if has_legend {
        let mut legend = vec![Text::raw(" ")];
        for (_, name, glyph, style) in signs(theme) {
            legend.push(Text::styled(format!("{glyph} "), style));
            legend.push(Text::styled(format!("{name}  "), theme.dim));
        }
        let part = if drawn > 1 { "low" } else { "dim" };
        legend.push(Text::styled(format!("{part}: under half the time"), theme.dim));
        Line::from(legend).render(Rect { y: inner.bottom() - 1, height: 1, ..inner }, buf);
    }
}

/// The kind of the lanes: GPUs, or ranks if several share one.
fn title_of(totals: &Totals) -> String {
    let known: Option<BTreeSet<u32>> = totals.lanes.iter().map(|lane| lane.lane().gpu).collect();
    let lanes = totals.lanes.len();
    match known.map(|gpus| gpus.len()) {
        Some(1) if lanes > 1 => format!("{lanes} ranks on one GPU"),
        Some(gpus) if gpus < lanes => format!("{lanes} ranks on {gpus} GPUs"),
        _ => format!("{lanes} GPUs of one program"),
    }
}

/// A narrow column hides short work: with more cells per column, only a part of the step is shown.
const MAX_CELLS: usize = 2;

/// The number of drawn cells.
fn drawn_cells(cells: usize, width: u16) -> usize {
    cells.min(width as usize * MAX_CELLS)
}

/// The duration of the timelines.
fn shown_part(picture_ns: u64, totals: &Totals, width: u16) -> Option<String> {
    let cells = totals.lanes.iter().map(|lane| lane.sums.picture.len()).max().filter(|cells| *cells > 0)?;
    let drawn = drawn_cells(cells, width);
    let time = millis(picture_ns as f64 / 1e6 * drawn as f64 / cells as f64);
    Some(if drawn < cells { format!("{time} of a step") } else { format!("one step: {time}") })
}

/// A column has the sign of the kind of work that ran longest in it. It is full if that was at least half of the time.
fn draw_picture(theme: &Theme, picture: &str, area: Rect, buf: &mut Buffer) {
    let cells = &picture.as_bytes()[..drawn_cells(picture.len(), area.width)];
    let signs = signs(theme);
    for (i, x) in (area.left()..area.right()).enumerate() {
        let edge = |i: usize| i * cells.len() / area.width as usize;
        let part = cells.get(edge(i)..edge(i + 1).max(edge(i) + 1)).unwrap_or_default();
        if part.is_empty() {
            continue;
        }
        let count = |sign: char| part.iter().filter(|cell| char::from(**cell) == sign).count();
        let most = |(sign, ..): &&(char, &str, &str, Style)| {
            // If any work ran, however short, the column is not empty.
            (*sign != '.', 4 * count(*sign) + count(sign.to_ascii_uppercase()))
        };
        let ran = signs.iter().filter(|(sign, ..)| count(*sign) + count(sign.to_ascii_uppercase()) > 0);
        let Some((sign, _, glyph, style)) = ran.max_by_key(most) else { continue };
        let full = part.iter().filter(|cell| cell.is_ascii_lowercase()).count();
        let is_full = *sign != '.' && 2 * full >= part.len();
        let style = if is_full || *sign == '.' { *style } else { theme.faint(*style) };
        let top = if is_full { area.top() } else { area.bottom().saturating_sub(1) };
        for y in top..area.bottom() {
            buf[(x, y)].set_symbol(glyph).set_style(style);
        }
    }
}

fn draw_collectives(view: &View<'_>, totals: &Totals, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let aside = match totals.nccl_share() {
        Some(share) => format!("{} of the time", percent(100.0 * share)),
        None => String::new(),
    };
    let inner = draw_box(theme, ("collectives", &aside), area, buf);
    let table = collective_table(totals);
    let mut shown: Vec<(&str, usize)> = COLLECTIVE_COLUMNS
        .into_iter()
        .enumerate()
        .filter_map(|(i, key)| Some((key, table.full_width(table.index(key)?) + if i == 0 { 1 } else { 2 })))
        .collect();
    let wanted = |shown: &[(&str, usize)]| shown.iter().map(|(_, width)| width).sum::<usize>() + 2;
    for dropped in DISPENSABLE {
        if wanted(&shown) > inner.width as usize {
            shown.retain(|(key, _)| *key != dropped);
        }
    }
    let spare = (inner.width as usize).saturating_sub(wanted(&shown)) / COLLECTIVE_COLUMNS.len();
    shown.iter_mut().for_each(|(_, width)| *width += spare.min(6));
    let table = TableLines::new(theme, table, shown);
    let rows = (0..table.table.rows.len()).map(|row| table.row(row));
    for (line, place) in [table.heading()].into_iter().chain(rows).zip(inner.rows()) {
        let place = Rect { x: place.x + 1, ..place }.intersection(inner);
        Line::from(line).render(place, buf);
    }
}

const COLLECTIVE_COLUMNS: [&str; 8] =
    ["name", "size", "ranks", "calls", "median_us", "algbw_b_s", "busbw_b_s", "wait_us_each"];
/// Columns that are dropped first.
const DISPENSABLE: [&str; 3] = ["algbw_b_s", "ranks", "calls"];
