//! Roofline: phases, operators and kernels against the peaks of the GPU.

use crate::{
    export::key_of,
    layout::Hit,
    pane::{Pane, Spec},
    theme::Theme,
    view::View,
    widgets::{Dots, ListLayout, TableLines, draw_box, draw_note, draw_pointed, wrapped},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use llmprof_analysis::{
    peaks::Basis,
    roofline::{Point, PointKind, Roof, Roofline},
};
use llmprof_base::{
    cells,
    table::{Align, Cell, Table},
    units::{scaled, three_digits},
};
use llmprof_event::{Phase, WorkKind};

pub struct RooflinePane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Roofline",
    keys: &[KeyCode::Char('5')],
    help: "Roofline: operators and kernels against the GPU's peaks",
    is_special: false,
    why_empty: "no operators or kernels were timed",
    has_content: |_, state| state.kind().has_workload() && !state.roofline().points.is_empty(),
    draw: |view, area, buf| RooflinePane(view).render(area, buf),
    table: ceilings_and_points,
    rows: |view| view.state.roofline().points.len(),
    ..Spec::EMPTY
};

/// The ceilings, then the points.
fn ceilings_and_points(view: &View<'_>) -> Table {
    let roofline = view.state.roofline();
    let mut table = Table::keyed(
        "kind,phase,name,flop_per_byte,flop_per_s,bytes_per_s,flops,bytes,seconds,flops_pct,bytes_pct,time_pct,class,basis",
    );
    let stated = roofline.stated().zip(Some(roofline.peaks.as_ref().ok().and_then(|peaks| peaks.clock_mhz)));
    let ceilings = [("stated", stated), ("now", roofline.now().zip(Some(roofline.clock_mhz)))];
    for (name, (roof, mhz)) in ceilings.into_iter().filter_map(|(name, roof)| Some((name, roof?))) {
        let Roof { flops, bytes_per_s } = roof;
        let mut row = cells!["ceiling", "", name, roof.ridge(), flops, bytes_per_s];
        row.resize(table.columns.len() - 1, Cell::default());
        row.push(mhz.map(|mhz| format!("SM at {mhz} MHz")).into());
        table.push(row);
    }
    let ceilings = table.rows.len();
    table.append(&roofline.table());
    for (row, point) in table.rows[ceilings..].iter_mut().zip(&roofline.points) {
        row[0] = key_of(&point.kind).into();
    }
    table
}

/// From this width on, plot and list are side by side.
const WIDE: u16 = 110;
const LIST_WIDTH: u16 = 65;
/// Room for `1 PFLOP/s`.
const AXIS: u16 = 8;

impl Widget for RooflinePane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let roofline = view.state.roofline();
        if roofline.points.is_empty() {
            let inner = draw_box(view.theme, ("roofline", ""), area, buf);
            return draw_note(view.theme, &why_empty(view), inner, buf);
        }
        let selected = view.ui.row(Pane::Roofline).min(roofline.points.len().saturating_sub(1));
        let hints = hints(view);
        let most = (area.height.saturating_sub(12) / 3).min(4);
        let used = hint_lines(view, &hints, Rect { height: most, ..area }, buf);
        let area = Rect { y: area.y + used, height: area.height - used, ..area };
        let detail = match area.height {
            0..=9 => 0,
            10..=23 => 3,
            _ => 5,
        };
        let [main, below] = Layout::vertical([Constraint::Min(3), Constraint::Length(detail)]).areas(area);
        if main.width >= WIDE && main.height >= 8 {
            let [left, right] =
                Layout::horizontal([Constraint::Min(30), Constraint::Length(LIST_WIDTH)]).areas(main);
            plot(view, &roofline, selected, left, buf);
            list(view, &roofline, selected, right, buf);
        } else if main.height >= 14 && main.width >= 40 {
            let rows = (roofline.points.len() as u16 + 3).clamp(4, main.height * 2 / 5);
            let [top, bottom] = Layout::vertical([Constraint::Min(8), Constraint::Length(rows)]).areas(main);
            plot(view, &roofline, selected, top, buf);
            list(view, &roofline, selected, bottom, buf);
        } else {
            list(view, &roofline, selected, main, buf);
        }
        details(view, &roofline, selected, below, buf);
    }
}

fn why_empty(view: &View<'_>) -> String {
    let Some(run) = &view.state.run else { return "No data recorded yet.".to_owned() };
    // Without kernels, the name of the model would not help.
    if let Some(reason) = view.state.program_without_kernels() {
        return reason;
    }
    match &run.kind {
        WorkKind::Watch => {
            "There is no workload, so FLOPs and bytes cannot be counted. This pane shows kernels with ncu counters."
                .to_owned()
        }
        _ if run.shape.is_some() => {
            "No measurements yet: the first request adds its prefill and its decode steps.".to_owned()
        }
        WorkKind::Program | WorkKind::Server => {
            "The shape of the model is not known. Name it with --model, e.g. --model qwen2_5_7b.".to_owned()
        }
        WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python => {
            format!("The FLOPs and bytes of {} are not known: its architecture is not supported.", run.model)
        }
    }
}

fn hints(view: &View<'_>) -> Vec<String> {
    let of = |phase| view.state.kernel_hints(phase).into_iter();
    let (mut decode, mut prefill) = (of(Phase::Decode), of(Phase::Prefill));
    // The first of each phase, then the others.
    let first = decode.next().into_iter().chain(prefill.next());
    first.chain(decode).chain(prefill).collect()
}

/// Draws the first hints that fit completely; returns the rows used.
fn hint_lines(view: &View<'_>, hints: &[String], area: Rect, buf: &mut Buffer) -> u16 {
    let theme = view.theme;
    let mut used = 0;
    for hint in hints {
        let text = theme.glyphs.plain(hint);
        let rows = wrapped(&text, area.width.saturating_sub(3) as usize).len() as u16;
        if used + rows > area.height {
            break;
        }
        let place = Rect { y: area.y + used, height: rows, ..area };
        draw_pointed(theme, Line::styled(text, theme.text), place, buf);
        used += rows;
    }
    used
}

/// The mark of the `i`-th point, in the plot and in the list.
fn mark(point: &Point, i: usize) -> char {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    match (point.kind, point.phase) {
        (PointKind::Phase, phase) if phase == Phase::Prefill.name() => 'P',
        (PointKind::Phase, phase) if phase == Phase::Vision.name() => 'V',
        (PointKind::Phase, _) => 'D',
        _ => LETTERS.get(i).map_or('*', |letter| *letter as char),
    }
}

fn style_of(view: &View<'_>, point: &Point) -> Style {
    let theme = view.theme;
    match (point.kind, point.phase) {
        (PointKind::Kernel, _) => theme.accent,
        (_, phase) if phase == Phase::Prefill.name() => theme.prefill,
        (_, phase) if phase == Phase::Vision.name() => theme.phase(Phase::Vision),
        _ => theme.decode,
    }
}

/// As many of the peaks as fit.
fn peaks_text(roofline: &Roofline, width: usize) -> String {
    let Ok(peaks) = &roofline.peaks else { return "peaks unknown".to_owned() };
    let memory = scaled(peaks.bytes_per_s, "B/s");
    let at = |flops: f64, mhz: Option<f64>| match mhz {
        Some(mhz) => format!("{} at {} MHz", scaled(flops, "FLOP/s"), three_digits(mhz)),
        None => scaled(flops, "FLOP/s"),
    };
    let label = if peaks.basis == Basis::Estimated { "estimated " } else { "" };
    let stated = format!("{label}{}", at(peaks.flops, peaks.clock_mhz));
    let now = roofline.now().map(|roof| at(roof.flops, roofline.clock_mhz));
    let long = now.as_ref().map(|now| format!("{stated}, now {now} · {memory}"));
    let short = format!("{} · {memory}", now.unwrap_or(stated));
    let fits = |text: &String| text.chars().count() + "roofline".len() + 6 <= width;
    long.filter(fits).or(Some(short).filter(fits)).unwrap_or_default()
}

/// The mark for several points in one cell.
fn several(theme: &Theme) -> char {
    if theme.glyphs.ascii { '+' } else { '◆' }
}

/// The halo around the mark of a point with a large share of the time.
fn halo(theme: &Theme) -> char {
    if theme.glyphs.ascii { '*' } else { '●' }
}

/// Draws a legend in the frame below the plot, for the marks that are neither phases nor letters of the list. Marks
/// that are not in the plot are left out.
fn legend(view: &View<'_>, frame: Rect, field: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let drawn: String = field.positions().map(|place| buf[place].symbol().to_owned()).collect();
    let all = [
        (halo(theme), format!("at least {LONG_TIME_PCT:.0} % of the time")),
        (several(theme), "several points".to_owned()),
    ];
    let mut right = frame.right().saturating_sub(2);
    for (sign, meaning) in all.into_iter().filter(|(sign, _)| drawn.contains(*sign)) {
        let text = format!(" {sign} {meaning} ");
        let width = text.chars().count() as u16;
        if right < frame.x + width + 2 {
            break;
        }
        right -= width;
        buf.set_string(right, frame.bottom() - 1, text, theme.dim);
    }
}

fn plot(view: &View<'_>, roofline: &Roofline, selected: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = draw_box(theme, ("roofline", &peaks_text(roofline, area.width as usize)), area, buf);
    if inner.width < AXIS + 10 || inner.height < 4 {
        return;
    }
    let field = Rect { x: inner.x + AXIS, width: inner.width - AXIS, height: inner.height - 1, ..inner };
    let (xs, ys) = roofline.extent();
    let mut dots = Dots::new(field, theme.glyphs.ascii);
    let (width, height) = dots.size();
    let place = |value: f64, [low, high]: [f64; 2], count: usize| {
        let share = (value.log10() - low) / (high - low);
        (share.is_finite() && (-0.001..=1.001).contains(&share))
            .then(|| (share.clamp(0.0, 1.0) * (count - 1) as f64).round() as usize)
    };
    let mut roof_line = |roof: &Roof, style: Style, every: usize| {
        let mut before: Option<usize> = None;
        for x in 0..width {
            let intensity = 10f64.powf(xs[0] + (xs[1] - xs[0]) * x as f64 / (width - 1) as f64);
            let Some(y) = place(roof.ceiling(intensity), ys, height) else { continue };
            // A steep line is drawn without gaps.
            for y in before.map_or(y, |before| (before + 1).min(y))..=y {
                if (x + y) % every == 0 {
                    dots.set(x, y, style);
                }
            }
            before = Some(y);
        }
    };
    if let Some(roof) = roofline.stated() {
        let only = roofline.now().is_none();
        roof_line(&roof, if only { theme.number } else { theme.border }, if only { 1 } else { 3 });
    }
    if let Some(roof) = roofline.now() {
        roof_line(&roof, theme.number, 1);
    }
    if let Some(roof) = roofline.now().or(roofline.stated()) {
        shade(view, &roof, (xs, ys), field, buf);
    }
    dots.draw(buf);
    // Above the lines, which begin in the corner of a label.
    if let Some(roof) = roofline.now().or(roofline.stated()) {
        name_sides(view, &roof, xs, field, buf);
    }
    axes(view, (xs, ys), inner, field, buf);
    // Points with a short time are only in the list; the selected one comes last, so that it is on top.
    let is_shown =
        |i: &usize| *i != selected && roofline.points[*i].time_pct.is_none_or(|pct| pct >= MIN_TIME_PCT);
    let order = (0..roofline.points.len()).filter(is_shown).chain([selected]);
    let mut used: Vec<(u16, u16)> = Vec::new();
    for i in order {
        let Some(point) = roofline.points.get(i) else { continue };
        let Some(intensity) = point.timed.flop_per_byte() else { continue };
        let at = place(intensity, xs, width).zip(place(point.timed.flop_per_s(), ys, height));
        let Some(cell) = at.and_then(|(x, y)| dots.cell(x, y)) else { continue };
        let style = style_of(view, point).add_modifier(Modifier::BOLD);
        let (symbol, style) = match (i == selected, used.contains(&cell)) {
            (true, _) => (mark(point, i), style.add_modifier(Modifier::REVERSED)),
            (false, true) => (several(theme), theme.number),
            (false, false) => (mark(point, i), style),
        };
        buf[cell].set_char(symbol).set_style(style);
        // A point with a long time has a halo.
        let side = (cell.0 + 1, cell.1);
        if point.time_pct.is_some_and(|pct| pct >= LONG_TIME_PCT)
            && side.0 < field.right()
            && !used.contains(&side)
        {
            buf[side].set_char(halo(theme)).set_style(style_of(view, point));
        }
        used.push(cell);
    }
    legend(view, area, field, buf);
}

/// Points with a smaller share of the time are not drawn until they are selected.
const MIN_TIME_PCT: f64 = 1.0;
/// Points with a larger share are drawn larger.
const LONG_TIME_PCT: f64 = 10.0;

/// Colours the area below the roof: memory-bound left of the ridge, compute-bound right of it.
fn shade(view: &View<'_>, roof: &Roof, (xs, ys): ([f64; 2], [f64; 2]), field: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let ridge = roof.flops / roof.bytes_per_s;
    let (memory, compute) = (theme.tint(theme.memory), theme.tint(theme.utilisation));
    for (i, x) in (field.left()..field.right()).enumerate() {
        let share = (i as f64 + 0.5) / f64::from(field.width);
        let intensity = 10f64.powf(xs[0] + (xs[1] - xs[0]) * share);
        let up = (roof.ceiling(intensity).log10() - ys[0]) / (ys[1] - ys[0]);
        let rows = (up.clamp(0.0, 1.0) * f64::from(field.height)).round() as u16;
        let column =
            Rect { x, y: field.bottom() - rows.min(field.height), width: 1, height: rows.min(field.height) };
        buf.set_style(column, if intensity < ridge { memory } else { compute });
    }
}

/// Labels the ridge, and the bound on its left and on its right.
fn name_sides(view: &View<'_>, roof: &Roof, xs: [f64; 2], field: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let low = field.bottom() - 1;
    buf.set_string(field.x + 1, low, "memory-bound", theme.memory);
    let intensity = roof.flops / roof.bytes_per_s;
    let share = (intensity.log10() - xs[0]) / (xs[1] - xs[0]);
    if !(0.0..1.0).contains(&share) {
        return;
    }
    let ridge = field.x + (share * f64::from(field.width)).ceil() as u16;
    let text = format!("ridge {} FLOP/B ", three_digits(intensity));
    if ridge > field.x + text.len() as u16 && ridge < field.right() {
        buf.set_string(ridge - text.len() as u16, field.y, &text, theme.dim);
        buf.set_string(ridge, field.y, if theme.glyphs.ascii { "v" } else { "▾" }, theme.accent);
    }
    let text = "compute-bound";
    if ridge + (text.len() as u16) < field.right() {
        buf.set_string(field.right() - text.len() as u16 - 1, low, text, theme.utilisation);
    }
}

/// A power of ten with its prefix: `10 G`.
fn power(exponent: f64) -> String {
    let value = 10f64.powf(exponent);
    match value {
        v if v >= 1e15 => format!("{:.0} P", v / 1e15),
        v if v >= 1e12 => format!("{:.0} T", v / 1e12),
        v if v >= 1e9 => format!("{:.0} G", v / 1e9),
        v if v >= 1e6 => format!("{:.0} M", v / 1e6),
        v if v >= 1e3 => format!("{:.0} k", v / 1e3),
        v if v >= 1.0 => format!("{v:.0}"),
        v => format!("{v}"),
    }
}

fn axes(view: &View<'_>, (xs, ys): ([f64; 2], [f64; 2]), inner: Rect, field: Rect, buf: &mut Buffer) {
    let dim = view.theme.dim;
    // Powers of ten and their cells.
    let ticks = |[low, high]: [f64; 2], cells: u16| {
        (low.ceil() as i32..=high.floor() as i32).map(move |power| {
            let share = (f64::from(power) - low) / (high - low);
            (f64::from(power), (share * f64::from(cells - 1)).round() as u16)
        })
    };
    for (exponent, up) in ticks(ys, field.height) {
        let at = Rect { y: field.bottom() - 1 - up, height: 1, width: AXIS - 1, ..inner };
        Line::styled(power(exponent), dim).right_aligned().render(at, buf);
    }
    Line::styled("FLOP/s", dim).render(Rect { y: inner.bottom() - 1, height: 1, width: AXIS, ..inner }, buf);
    let unit = "FLOP/B";
    let room = field.right().saturating_sub(unit.len() as u16 + 1);
    let mut free = field.x;
    for (exponent, along) in ticks(xs, field.width) {
        let text = power(exponent);
        let x = field.x + along;
        let end = x + text.len() as u16;
        if x >= free && end <= room {
            buf.set_string(x, inner.bottom() - 1, &text, dim);
            free = end + 1;
        }
    }
    let x = field.right().saturating_sub(unit.len() as u16);
    buf.set_string(x, inner.bottom() - 1, unit, dim);
}

fn list(view: &View<'_>, roofline: &Roofline, selected: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let n = roofline.points.len();
    let inner = draw_box(theme, ("points", &format!("{} of {n}", selected + 1)), area, buf);
    if inner.height == 0 {
        return;
    }
    let total: usize = COLUMNS.iter().map(|(_, width)| width).sum();
    let label = (inner.width as usize).saturating_sub(total + 3).clamp(16, 24);
    let label = label.min((inner.width as usize).saturating_sub(12)).max(6);
    let mut room = (inner.width as usize).saturating_sub(label + 3);
    let fitting = COLUMNS.into_iter().take_while(|(_, width)| {
        let fits = room >= *width;
        room = room.saturating_sub(*width);
        fits
    });
    let mut points = roofline.table();
    points.rename("time_pct", "time");
    points
        .columns
        .iter_mut()
        .filter(|column| column.key == "class")
        .for_each(|column| column.align = Align::Right);
    let table = TableLines::new(theme, points, [("label", label)].into_iter().chain(fitting));
    let mut rows = inner;
    if inner.height > 1 {
        let heading = [vec![Text::raw("   ")], table.heading()].concat();
        Line::from(heading).render(inner, buf);
        rows = Rect { y: inner.y + 1, height: inner.height - 1, ..inner };
    }
    for (i, place) in ListLayout::new(rows, n, selected).rows() {
        let point = &roofline.points[i];
        let mark = Text::styled(format!(" {} ", mark(point, i)), style_of(view, point));
        Line::from([vec![mark], table.row(i)].concat()).render(place, buf);
        view.on_click(place, Hit::Row(i));
        if i == selected {
            buf.set_style(place, theme.selected);
        }
    }
}

/// Columns of the list, dropped from the end if they do not fit.
const COLUMNS: [(&str, usize); 5] =
    [("peak_pct", 8), ("flop_per_s", 9), ("flop_per_byte", 8), ("class", 9), ("time_pct", 7)];

/// The selected point as text.
fn details(view: &View<'_>, roofline: &Roofline, selected: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let Some(point) = roofline.points.get(selected).filter(|_| area.height > 0) else { return };
    let plain = |text: &str| theme.glyphs.plain(text);
    let mut lines = vec![Line::from(vec![
        Text::styled(plain(&format!("{}  ", point.label())), style_of(view, point)),
        Text::styled(plain(&point.describe()), theme.text),
    ])];
    match (&point.verdict, &roofline.peaks) {
        (Some(verdict), _) => {
            lines.push(Line::styled(
                plain(&format!("{}: {}", verdict.class.word(), verdict.rule)),
                theme.text,
            ));
        }
        (None, Err(why)) => lines.push(Line::styled(plain(&format!("Peaks unknown: {why}")), theme.warn)),
        (None, Ok(_)) => {}
    }
    let source =
        roofline.peaks.as_ref().map_or_else(|_| String::new(), |peaks| format!("; peaks: {}", peaks.source));
    lines.push(Line::styled(plain(&format!("{}{source}", point.basis)), theme.dim));
    let place = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    Paragraph::new(lines).wrap(Wrap { trim: true }).render(place, buf);
}
