//! Tokens: one cell per token, coloured by ITL, with power and clock on the same axis.

use crate::{
    layout::Hit,
    pane::{Pane, Spec},
    ui::Action,
    view::View,
    widgets::{
        Lane, ListLayout, Span, TokenStrip, cut, draw_box, draw_dashes, fit, label_value, note, wrapped,
    },
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};

use super::{gpu, histogram::Histogram, lanes::draw_rows, streams::Streams, token_window::TokenWindow};
use llmprof_base::{
    cells,
    table::{Cell, Column, Table},
    units::{millis, three_digits},
};
use llmprof_event::{Stamp, readings::Reading};
use llmprof_record::state::{Incident, IncidentKind, KeptSample, Series, TokenMark};

pub struct TokensPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Tokens",
    keys: &[KeyCode::Char('3')],
    help: "Tokens: the ITL of every token, with power and clock",
    is_special: false,
    why_empty: "no tokens in this run",
    has_content: |_, state| !state.trail.is_empty(),
    draw: |view, area, buf| TokensPane(view).render(area, buf),
    table: kept_tokens,
    // Incidents, counted from the newest.
    rows: |view| view.state.flight.incidents.len(),
    open: Some(Action::ToggleIncident),
    ..Spec::EMPTY
};

/// All kept tokens up to the last one on the screen; or those around the open incident.
fn kept_tokens(view: &View<'_>) -> Table {
    let state = view.state;
    let window = TokenWindow::new(view, usize::MAX);
    let gpu = state.profiled_gpu();
    let beside = if gpu.is_some() { ["sm_clock_mhz", "power_w"] } else { ["cpu_pct", "cpu_clock_mhz"] };
    let mut table = Table::keyed("token,t_s,request,id,first,warmup,since_last_ms");
    table.columns.extend(beside.into_iter().chain(["incident", "kernels_recorded"]).map(Column::data));
    for (mark, number_of) in window.tokens.iter().zip(window.first..) {
        let mut row = cells![
            number_of,
            mark.t.secs(),
            mark.request,
            mark.id,
            mark.first,
            mark.warmup,
            mark.gap_ns as f64 / 1e6,
        ];
        let text = |value: Option<f32>| Cell::from(value.map(|value| value.to_string()));
        row.extend(match gpu {
            Some(gpu) => [
                window.value(gpu.series(Reading::SmClock), |sample| sample.sm_clock_mhz, mark.t),
                window.value(gpu.series(Reading::Power), |sample| sample.power_w, mark.t),
            ]
            .map(text),
            None => [&state.host.cpu_pct, &state.host.freq_mhz]
                .map(|series| text(window.value(series, |_| None, mark.t))),
        });
        let incident = state.flight.incidents.iter().find(|incident| incident.token == number_of);
        row.extend(cells![incident.map(|incident| incident.describe()), mark.recorded]);
        table.push(row);
    }
    table
}

/// Widths left and right of the cells.
const LABEL: u16 = 8;
const READOUT: u16 = 18;

impl Widget for TokensPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        if area.height < 9 || area.width < 50 {
            return strip_box(view, area, buf);
        }
        let incidents = view.state.flight.incidents.len() as u16;
        let side = match area.width >= 150 && area.height >= 16 {
            true => view.ui.side.unwrap_or(SIDE).clamp(MIN_SIDE, area.width - MIN_MAIN),
            false => 0,
        };
        let [main, beside] = Layout::horizontal([Constraint::Min(0), Constraint::Length(side)]).areas(area);
        let below = match area.height {
            18.. if side == 0 => (area.height / 4).clamp(4, 9),
            _ => 0,
        };
        let [strip, detail, rest] =
            Layout::vertical([Constraint::Min(8), Constraint::Length(3), Constraint::Length(below)])
                .areas(main);
        if side > 0 {
            view.on_click(Rect { x: beside.x - 1, width: 2, ..beside }, Hit::Splitter);
        }
        match has_streams(view) {
            true => streams_box(view, strip, buf),
            false => strip_box(view, strip, buf),
        }
        cursor_box(view, detail, buf);
        let (first, second) = match side {
            // Incidents are more important than the distribution.
            0 if area.width < 100 && incidents > 0 => (rest, Rect::default()),
            0 if area.width < 100 => (Rect::default(), rest),
            0 => {
                let [left, right] =
                    Layout::horizontal([Constraint::Fill(1), Constraint::Length(SIDE)]).areas(rest);
                (left, right)
            }
            _ => {
                let [above, below] =
                    Layout::vertical([Constraint::Min(0), Constraint::Length(area.height / 3)]).areas(beside);
                (above, below)
            }
        };
        if !first.is_empty() {
            incidents_box(view, first, buf);
        }
        if !second.is_empty() {
            histogram(view).render(second, buf);
        }
    }
}

/// The width of incidents and distribution next to the tokens.
const SIDE: u16 = 46;
const MIN_SIDE: u16 = 30;
const MIN_MAIN: u16 = 80;

fn histogram<'a>(view: &View<'a>) -> Histogram<'a> {
    Histogram { distribution: &view.state.total.itl, title: view.state.gap_name(), theme: view.theme }
}

/// The median ITL.
fn median_ms(view: &View<'_>) -> f64 {
    view.state.total.itl.percentile_ms(50.0).or_else(|| median_of_trail(view)).unwrap_or(1.0).max(1e-6)
}

/// The median of the last tokens, before anything is measured.
fn median_of_trail(view: &View<'_>) -> Option<f64> {
    let mut gaps: Vec<u64> = view.state.trail.window(0, 200).filter(|m| !m.first).map(|m| m.gap_ns).collect();
    let middle = gaps.len() / 2;
    (!gaps.is_empty()).then(|| *gaps.select_nth_unstable(middle).1 as f64 / 1e6)
}

/// Concurrent requests are several streams: a strip of all their tokens would be meaningless.
fn has_streams(view: &View<'_>) -> bool {
    let streams = || view.state.trail.window(0, 256).map(|mark| mark.stream).max();
    view.state.kind().has_concurrent_requests() && streams().is_some_and(|highest| highest > 0)
}

/// Every stream as a row over time, with power and clock below.
fn streams_box(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let incident = view.open_incident();
    let selected = selected_mark(view);
    let centre = incident.map(|incident| incident.at).or_else(|| {
        let is_selected = view.tokens_back() > 0;
        selected.filter(|_| is_selected).map(|mark| mark.t)
    });
    let (mut from, to) = view.stream_range(centre);
    // With very many streams, the trail covers fewer seconds.
    let oldest = view.state.trail.since(Stamp::default()).next().map(|mark| mark.t);
    if let Some(oldest) = oldest.filter(|oldest| incident.is_none() && *oldest < to) {
        from = from.max(oldest);
    }
    let view = &view.over((from, to));
    let tokens: Vec<&TokenMark> = match incident {
        Some(incident) => incident.tokens.iter().filter(|mark| mark.t >= from && mark.t <= to).collect(),
        None => view.state.trail.since(from).take_while(|mark| mark.t <= to).collect(),
    };
    let streams = Streams::from_view(view);
    let median = median_ms(view);
    let slowest = tokens.iter().filter(|mark| !mark.first).map(|mark| mark.gap_ns).max();
    let aside = slowest.map_or_else(String::new, |ns| {
        let (usual, most) = (millis(median), millis(ns as f64 / 1e6));
        format!("{} median {usual} · max {most} · [ ] zoom", view.state.gap_name())
    });
    let title = match incident {
        Some(incident) => format!("incident at {:.3} s · {}", incident.at.secs(), incident.describe()),
        None => streams.title(view),
    };
    let inner = draw_box(theme, (&title, &aside), area, buf);
    let rows = match view.workload_gpu() {
        Some(gpu) => [(Reading::SmClock, "SM clock"), (Reading::Power, "power")]
            .map(|(reading, label)| gpu::row(view, gpu, reading, label, usize::MAX))
            .into(),
        None => Vec::new(),
    };
    let least = 3 * rows.len() as u16;
    let wanted = streams.lines(inner.height.saturating_sub(least)) + 1;
    let below = inner.height.saturating_sub(wanted).max(rows.len() as u16).min(inner.height / 2);
    let [above, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(below)]).areas(inner);
    streams.draw_gaps(view, &tokens, selected.filter(|_| centre.is_some()), median, above, buf);
    draw_rows(view, rows, below, buf);
}

/// The token under the cursor, that of the open incident, or the newest.
fn selected_mark<'a>(view: &View<'a>) -> Option<&'a TokenMark> {
    let at_incident = view.open_incident().and_then(|incident| {
        let at = incident.tokens.partition_point(|mark| mark.t < incident.at);
        let late = |mark: &&TokenMark| matches!(incident.kind, IncidentKind::LateToken { gap_ns, .. } if mark.gap_ns == gap_ns);
        let same = incident.tokens[at..].iter().take_while(|mark| mark.t == incident.at);
        same.clone().find(late).or_else(|| incident.tokens.get(at))
    });
    at_incident.or_else(|| view.state.trail.window(view.tokens_back(), 1).next_back())
}

/// The token strip with its lanes, in a box.
pub fn strip_box(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let wide = area.width >= 60;
    let (label, readout) = if wide { (LABEL, READOUT) } else { (0, 0) };
    let cells = area.width.saturating_sub(2 + label + readout) as usize;
    let window = TokenWindow::new(view, cells);
    let slowest = window.tokens.iter().filter(|m| !m.first).map(|m| m.gap_ns).max();
    let aside = slowest
        .filter(|_| area.width as usize > 40 + window.title.chars().count())
        .map(|ns| {
            let (median, most) = (millis(median_ms(view)), millis(ns as f64 / 1e6));
            format!("{} median {median} · max {most}", view.state.gap_name())
        })
        .unwrap_or_default();
    let inner = draw_box(theme, (&window.title, &aside), area, buf);
    if window.tokens.is_empty() {
        let text = match view.open_incident() {
            Some(incident) => format!(" no token at that time; {}", incident.meanwhile()),
            None => no_token(view).to_owned(),
        };
        return note(theme, &text).render(inner, buf);
    }
    let shown = window.tokens.len();
    let mut lanes = lanes(view, &window);
    lanes.truncate(inner.height.saturating_sub(1) as usize);
    let spare = inner.height - lanes.len() as u16;
    // Two rows per lane if there is room, the rest for the tokens.
    let values = lanes.iter().filter(|lane| !lane.is_flag).count() as u16;
    let strip_rows = spare.saturating_sub(values).max(spare.div_ceil(2));
    let cell_area = Rect { x: inner.x + label, width: cells as u16, ..inner };
    let median = median_ms(view);
    let strip_area = Rect { height: strip_rows, ..cell_area };
    if wide {
        let ticks = Rect { x: inner.x, width: label - 1, ..strip_area };
        itl_ticks(view, median, ticks, strip_area, buf);
    }
    let strip = TokenStrip { tokens: window.tokens, median_ms: median, theme, cursor: window.cursor };
    strip.render(strip_area, buf);
    if !strip_area.is_empty() {
        draw_dashes(buf, Rect { y: row_of(1.0, strip_area), height: 1, ..strip_area }, theme);
    }
    if wide {
        legend(view, median, Rect { x: cell_area.right() + 1, width: readout - 2, ..strip_area }, buf);
    }
    view.on_click(Rect { height: inner.height, ..cell_area }, Hit::Tokens { first: window.first, n: shown });
    for column in &window.incidents {
        buf[(cell_area.x + *column as u16, cell_area.y)].set_symbol(theme.glyphs.mark).set_style(theme.bad);
    }
    let mut y = inner.y + strip_rows;
    let flags = lanes.iter().filter(|lane| lane.is_flag).count() as u16;
    let mut values = lanes.len() as u16 - flags;
    for lane in lanes {
        let height = if lane.is_flag {
            1
        } else {
            let height = ((inner.bottom() - y - flags) / values).clamp(1, 9);
            values -= 1;
            height
        };
        lane.draw(view, Rect { y, height, ..inner }, (label, readout), buf);
        y += height;
    }
}

/// Why there is no token: after the end, none follows.
pub fn no_token(view: &View<'_>) -> &'static str {
    if view.state.finished.is_some() { " no token was measured" } else { " no token yet" }
}

/// The row of cells with this multiple of the median.
fn row_of(factor: f64, cells: Rect) -> u16 {
    let from_bottom = (TokenStrip::share(factor) * f64::from(cells.height)).ceil() as u16;
    cells.bottom() - from_bottom.max(1).min(cells.height)
}

/// The ITL in ms at the left, and a line behind the tokens at multiples of the median.
fn itl_ticks(view: &View<'_>, median: f64, labels: Rect, cells: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    for factor in [4.0, 2.0, 1.0] {
        let y = row_of(factor, cells);
        let text = Line::styled(three_digits(median * factor), theme.dim).right_aligned();
        text.render(Rect { y, height: 1, ..labels }, buf);
        let line = if theme.glyphs.ascii { "." } else { "┈" };
        (cells.left()..cells.right()).filter(|_| factor > 1.0).for_each(|x| {
            buf[(x, y)].set_symbol(line).set_style(theme.border);
        });
    }
    let unit = format!("{} ms", view.state.short_gap_name());
    let unit = Line::styled(unit, theme.dim).right_aligned();
    unit.render(Rect { height: 1, ..labels }, buf);
}

/// The meaning of the colours of tokens.
fn legend(view: &View<'_>, median: f64, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    if area.height < 8 || area.width < 14 {
        return;
    }
    let mark = if theme.glyphs.ascii { "#" } else { "■" };
    let row = |style, text: String| {
        Line::from(vec![Text::styled(format!("{mark} "), style), Text::styled(text, theme.dim)])
    };
    let mut lines = vec![Line::styled(format!("p50 {}", millis(median)), theme.text)];
    for (heat, step) in theme.heat.iter().skip(1).zip(TokenStrip::STEPS).rev() {
        lines.push(row(*heat, theme.glyphs.plain(&format!("over {step} ×"))));
    }
    lines.push(row(theme.heat[0], "usual".to_owned()));
    lines.push(row(theme.prefill, "first token".to_owned()));
    Paragraph::new(lines).render(area, buf);
}

/// A lane whose columns are tokens.
struct TokenLane {
    label: String,
    readout: String,
    columns: Vec<Option<Span>>,
    range: (f32, f32),
    style: ratatui::style::Style,
    /// Whether it is a flag instead of a value.
    is_flag: bool,
}

impl TokenLane {
    fn draw(self, view: &View<'_>, area: Rect, (label, readout): (u16, u16), buf: &mut Buffer) {
        if !self.is_flag {
            let label_text = format!(" {}", self.label);
            let lane = Lane {
                label: &label_text,
                readout: format!("{} ", self.readout),
                columns: self.columns,
                range: self.range,
                style: self.style,
                ramp: None,
                limit: None,
                theme: view.theme,
                label_width: label,
                readout_width: readout,
            };
            return lane.render(area, buf);
        }
        if label > 0 {
            buf.set_stringn(area.x + 1, area.y, &self.label, label as usize - 2, self.style);
        }
        let chart = Lane::plot_area(area, label, readout);
        for (x, pair) in self.columns.chunks(2).take(chart.width as usize).enumerate() {
            if pair.iter().flatten().any(|s| s.mid > 0.0) {
                buf[(chart.x + x as u16, area.y)].set_symbol(view.theme.glyphs.active).set_style(self.style);
            }
        }
        let place = Rect { x: chart.right(), width: readout, height: 1, ..area };
        Line::styled(self.readout, self.style).render(place, buf);
    }
}

/// The value at each token, twice: a cell has two dot columns.
fn over_tokens(window: &TokenWindow<'_>, value: impl Fn(Stamp) -> Option<f32>) -> Vec<Option<Span>> {
    window.tokens.iter().flat_map(|mark| [value(mark.t).map(Span::flat); 2]).collect()
}

fn lanes(view: &View<'_>, window: &TokenWindow<'_>) -> Vec<TokenLane> {
    let mut lanes = device_lanes(view, window);
    if window.tokens.iter().any(|mark| mark.recorded) {
        let columns = window.tokens.iter().flat_map(|mark| [mark.recorded.then_some(Span::flat(1.0)); 2]);
        lanes.push(TokenLane {
            label: "kernel".into(),
            readout: " recorded".into(),
            columns: columns.collect(),
            range: (0.0, 1.0),
            style: view.theme.accent,
            is_flag: true,
        });
    }
    lanes
}

fn device_lanes(view: &View<'_>, window: &TokenWindow<'_>) -> Vec<TokenLane> {
    let theme = view.theme;
    let none: fn(&KeptSample) -> Option<f64> = |_| None;
    let lane = |label: &str,
                series: &Series,
                of_sample: fn(&KeptSample) -> Option<f64>,
                top: Option<f32>,
                unit: &str,
                style| {
        let top = top.or(series.range().map(|r| r.1)).unwrap_or(1.0).max(1.0);
        let value = |t| window.value(series, of_sample, t);
        let selected = window.cursor.and_then(|i| window.tokens.get(i)).or(window.tokens.last());
        let readout = match selected.and_then(|mark| value(mark.t)) {
            Some(v) => format!("{} {unit}", three_digits(f64::from(v)).replace(',', "")),
            None => "n/a".to_owned(),
        };
        TokenLane {
            label: label.to_owned(),
            readout,
            columns: over_tokens(window, value),
            range: (0.0, top),
            style,
            is_flag: false,
        }
    };
    let Some(gpu) = view.workload_gpu() else {
        let host = &view.state.host;
        if host.latest.is_none() {
            return Vec::new();
        }
        return vec![
            lane("CPU", &host.cpu_pct, none, Some(100.0), "%", theme.utilisation),
            lane("clock", &host.freq_mhz, none, None, "MHz", theme.clock),
        ];
    };
    let max_clock = gpu.info.sm_clock_max_mhz.map(|v| v as f32);
    let (clock, power) = (gpu.series(Reading::SmClock), gpu.series(Reading::Power));
    let mut lanes = vec![
        lane("SM", clock, |sample| sample.sm_clock_mhz, max_clock, "MHz", theme.clock),
        lane("power", power, |sample| sample.power_w, gpu.info.power_limit_w, "W", theme.power),
    ];
    for (bit, series) in &gpu.reasons {
        let reason = llmprof_event::reasons::named(*bit);
        let columns = match window.samples {
            None => over_tokens(window, |t| series.at(t)),
            Some(samples) => over_tokens(window, |t| {
                let before = samples.partition_point(|sample| sample.t <= t);
                let bits = samples[..before].last().and_then(|sample| sample.reasons)?;
                Some(if bits & bit != 0 { 1.0 } else { 0.0 })
            }),
        };
        if reason.fault() && columns.iter().flatten().any(|s| s.mid > 0.0) {
            lanes.push(TokenLane {
                label: "limit".into(),
                readout: format!(" {}", reason.name()),
                columns,
                range: (0.0, 1.0),
                style: theme.reason(*bit),
                is_flag: true,
            });
        }
    }
    lanes
}

/// The incidents, newest first.
fn incidents_box(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let incidents = &view.state.flight.incidents;
    let title = format!("incidents · {}", incidents.len());
    let inner = draw_box(theme, (&title, if incidents.is_empty() { "" } else { "Enter opens" }), area, buf);
    if incidents.is_empty() {
        return note(theme, " none").render(inner, buf);
    }
    // Only the selected incident has its circumstances, because there is no room for more.
    let meanwhile = view.selected_incident().map(Incident::meanwhile).unwrap_or_default();
    let words = wrapped(&theme.glyphs.plain(&meanwhile), inner.width.saturating_sub(2).into());
    let told = if meanwhile.is_empty() { 0 } else { (words.len() as u16).min(inner.height / 3) };
    let [inner, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(told)]).areas(inner);
    for (word, y) in words.into_iter().zip(below.y..below.bottom()) {
        buf.set_stringn(below.x + 1, y, word, below.width.saturating_sub(2).into(), theme.dim);
    }
    let list = ListLayout::new(inner, incidents.len(), view.ui.row(Pane::Tokens));
    for (i, place) in list.rows() {
        let incident = &incidents[incidents.len() - 1 - i];
        let style = if i == list.selected { theme.selected } else { theme.text };
        let text = format!(" {:>8.3} s  {}", incident.at.secs(), incident.describe());
        let text = cut(&theme.glyphs.plain(&text), place.width as usize, theme.glyphs.ascii);
        Line::styled(text, style).render(place, buf);
        view.on_click(place, Hit::Row(i));
    }
}

/// The selected token.
fn cursor_box(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = draw_box(theme, ("this token", "← → select"), area, buf);
    let Some(mark) = selected_mark(view) else {
        return note(theme, no_token(view)).render(inner, buf);
    };
    let gap = mark.gap_ns as f64 / 1e6;
    let mut parts = vec![
        label_value(theme, " at", &format!("{:.3}", mark.t.secs()), "s"),
        label_value(theme, if mark.first { "TTFT" } else { view.state.gap_name() }, &millis(gap), ""),
        label_value(theme, "request", &mark.request.to_string(), if mark.warmup { "(warm-up)" } else { "" }),
    ];
    // Servers and other programs do not report token ids.
    if view.state.kind().runs_model() {
        parts.push(label_value(theme, "id", &mark.id.to_string(), ""));
    }
    if !mark.first {
        parts.insert(2, label_value(theme, "", &format!("{:.2}", gap / median_ms(view)), "× median"));
    }
    if mark.recorded {
        parts.push(vec![Text::styled("kernels recorded", theme.accent)]);
    }
    if let Some(gpu) = view.workload_gpu() {
        if let Some(mhz) = gpu.series(Reading::SmClock).at(mark.t) {
            parts.push(label_value(theme, "SM", &format!("{mhz:.0}"), "MHz"));
        }
        if let Some(w) = gpu.series(Reading::Power).at(mark.t) {
            parts.push(label_value(theme, "power", &format!("{w:.0}"), "W"));
        }
    }
    fit(theme, parts, inner.width).render(inner, buf);
}
