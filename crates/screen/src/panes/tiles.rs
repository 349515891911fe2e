//! The most important numbers in boxes side by side.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
    widgets::Widget,
};

use super::headlines::{Rate, headline, rate_unit};
use crate::{
    view::View,
    widgets::{cut, draw_box, draw_gauge},
};
use llmprof_analysis::{distribution::Distribution, trust::Severity};
use llmprof_base::units::{GIB, percent_digits, three_digits};
use llmprof_event::{WorkKind, readings::Reading, reasons};
use llmprof_record::state::GpuState;

/// Rows of a tile with its frame.
pub const ROWS: u16 = 4;
/// A narrower tile would truncate its number.
const MIN_WIDTH: u16 = 11;

/// A number with its reference value.
struct Tile {
    title: &'static str,
    value: String,
    unit: &'static str,
    /// Title and unit if there is no room for the full title.
    narrow: Option<(&'static str, &'static str)>,
    /// The text below the number.
    note: String,
    style: Style,
    /// Its share of a limit, drawn as a bar instead of a note if there is no room for both.
    load: Option<f32>,
}

/// Draws as many tiles as fit; more important ones come first.
pub fn draw(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let mut tiles = tiles(view);
    tiles.truncate(room(area));
    let mut widths = vec![Constraint::Fill(1); tiles.len()];
    widths[0] = Constraint::Length(first_width(area.width, tiles.len() as u16));
    let places = Layout::horizontal(widths).split(area);
    for (tile, place) in tiles.into_iter().zip(places.iter()) {
        tile.draw(view, *place, buf);
    }
}

/// The first tile has the longest title, and takes the room that the others can spare.
fn first_width(width: u16, tiles: u16) -> u16 {
    const WANTED: u16 = 16;
    let spare = width.saturating_sub(MIN_WIDTH * (tiles - 1));
    spare.min(WANTED).max(width / tiles)
}

fn room(area: Rect) -> usize {
    (area.width / MIN_WIDTH).max(1) as usize
}

/// Whether the trust of the run is one of the tiles.
pub fn show_trust(view: &View<'_>, area: Rect) -> bool {
    tiles(view).iter().take(room(area)).any(|tile| tile.title == TRUST)
}

const TRUST: &str = "trust";

impl Tile {
    fn draw(self, view: &View<'_>, area: Rect, buf: &mut Buffer) {
        let theme = view.theme;
        // The frame takes a corner and a blank on each side.
        let fits = self.title.len() + 4 <= area.width.into();
        let (title, unit) = self.narrow.filter(|_| !fits).unwrap_or((self.title, self.unit));
        let inner = draw_box(theme, (title, ""), area, buf);
        let width = inner.width.saturating_sub(1) as usize;
        let value = theme.glyphs.plain(&self.value);
        let unit = theme.glyphs.plain(unit);
        let used = value.chars().count();
        buf.set_stringn(inner.x + 1, inner.y, &value, width, self.style);
        if used + 1 + unit.chars().count() <= width {
            buf.set_string(inner.x + 1 + used as u16 + 1, inner.y, unit, theme.dim);
        }
        if inner.height < 2 {
            return;
        }
        let below = Rect { x: inner.x + 1, y: inner.y + 1, width: inner.width.saturating_sub(1), height: 1 };
        let note = cut(&theme.glyphs.plain(&self.note), below.width as usize, theme.glyphs.ascii);
        let noted = note.chars().count() as u16;
        Line::styled(note, theme.dim).render(below, buf);
        let bar = Rect { x: below.x + noted + 1, width: below.width.saturating_sub(noted + 2), ..below };
        if let Some(share) = self.load.filter(|_| bar.width >= 5) {
            draw_gauge(buf, bar, share, &theme.load(), theme);
        }
    }
}

fn tiles(view: &View<'_>) -> Vec<Tile> {
    let mut tiles = Vec::new();
    if view.state.kind().has_workload() {
        tiles.push(rate(view));
        let [ttft, tpot] = match view.state.kind().infers_steps() {
            true => ["TTFT, inferred", "TPOT, inferred"],
            false => ["TTFT", "TPOT"],
        };
        tiles.push(latency(view, ttft, &view.state.total.ttft));
        tiles.push(latency(view, tpot, &view.state.total.tpot));
    }
    match view.workload_gpu() {
        Some(gpu) => tiles.extend(of_gpu(view, gpu)),
        None => tiles.extend(of_host(view)),
    }
    tiles.extend(trust(view));
    tiles
}

fn rate(view: &View<'_>) -> Tile {
    let (rate, kind) = headline(view);
    let none = || view.theme.glyphs.none.to_owned();
    let (title, narrow, mean) = match view.state.kind() {
        WorkKind::Server => ("output tok/s", "output", view.state.total.output_tok_s()),
        WorkKind::Program => ("decode steps/s", "decode", view.state.decode_tok_s()),
        WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Watch => {
            ("decode tok/s", "decode", view.state.decode_tok_s())
        }
    };
    let mean = mean.map(three_digits);
    Tile {
        title,
        value: rate.map_or_else(none, three_digits),
        unit: if kind == Rate::Now { "now" } else { "mean" },
        narrow: Some((narrow, rate_unit(view))),
        note: mean.filter(|_| kind == Rate::Now).map_or_else(String::new, |mean| format!("mean {mean}")),
        style: view.theme.number,
        load: None,
    }
}

fn latency(view: &View<'_>, title: &'static str, distribution: &Distribution) -> Tile {
    let none = view.theme.glyphs.none;
    let p50 = distribution.percentile_ms(50.0);
    let shown = p50.or_else(|| distribution.last_ms());
    let note = match (p50, distribution.percentile_ms(99.0), distribution.max_ms()) {
        (Some(_), Some(p99), _) => format!("p99 {}", three_digits(p99)),
        (Some(_), None, Some(max)) => format!("max {}", three_digits(max)),
        _ => String::new(),
    };
    Tile {
        title,
        value: shown.map_or_else(|| none.to_owned(), three_digits),
        unit: if p50.is_some() { "ms p50" } else { "ms" },
        narrow: None,
        note,
        style: view.theme.number,
        load: None,
    }
}

fn of_gpu(view: &View<'_>, gpu: &GpuState) -> Vec<Tile> {
    let theme = view.theme;
    let none = || theme.glyphs.none.to_owned();
    let whole = |reading| gpu.value(reading).map_or_else(none, |value| format!("{value:.0}"));
    let bits = gpu.reasons_now.map_or(0, |(_, bits)| bits);
    let style = |limits: u64| if bits & limits != 0 { theme.warn } else { theme.number };
    let tile = |title, reading, unit, limits| Tile {
        title,
        value: whole(reading),
        unit,
        narrow: None,
        note: String::new(),
        style: style(limits),
        load: None,
    };
    let of = |reading, limit: Option<f32>| {
        gpu.value(reading).zip(limit.filter(|limit| *limit > 0.0)).map(|(value, limit)| value as f32 / limit)
    };
    let mut power = tile("power", Reading::Power, "W", reasons::SW_POWER_CAP | reasons::HW_POWER_BRAKE);
    if let Some(limit) = gpu.info.power_limit_w {
        power.note = format!("of {limit:.0}");
        power.load = of(Reading::Power, Some(limit));
    }
    let mut temperature = tile("temp", Reading::Temp, "°C", reasons::THERMAL);
    temperature.note = match (gpu.slowdown_temp_ahead_c(), gpu.value(Reading::Temp)) {
        (Some(limit), Some(now)) if f64::from(limit) > now => format!("{:.0} left", f64::from(limit) - now),
        (Some(_), Some(_)) => "at slowdown".to_owned(),
        (None, Some(_)) if bits & reasons::THERMAL != 0 => "throttled".to_owned(),
        _ => String::new(),
    };
    let mut clock = tile("SM clock", Reading::SmClock, "MHz", reasons::faults(u64::MAX));
    if let Some(max) = gpu.info.sm_clock_max_mhz {
        clock.note = format!("of {max}");
    }
    vec![power, temperature, clock]
}

fn of_host(view: &View<'_>) -> Vec<Tile> {
    let theme = view.theme;
    let host = &view.state.host;
    let Some((_, sample)) = &host.latest else { return Vec::new() };
    let tile = |title, value: Option<String>, unit, note: String| Tile {
        title,
        value: value.unwrap_or_else(|| theme.glyphs.none.to_owned()),
        unit,
        narrow: None,
        note,
        style: theme.number,
        load: None,
    };
    let cpu = host.cpu_pct.last().map(|(_, pct)| pct);
    let gib = |bytes: u64| three_digits(bytes as f64 / GIB);
    let total = host.info.as_ref().and_then(|info| info.mem_total_bytes);
    let cores = format!("{} cores", sample.core_pct.len());
    vec![
        Tile { load: cpu.map(|pct| pct / 100.0), ..tile("CPU", cpu.map(percent_digits), "%", cores) },
        tile(
            "memory",
            sample.mem_used_bytes.map(gib),
            "GiB",
            total.map_or_else(String::new, |total| format!("of {}", gib(total))),
        ),
        tile("clock", sample.freq_mhz.map(|mhz| format!("{mhz:.0}")), "MHz", String::new()),
    ]
}

fn trust(view: &View<'_>) -> Option<Tile> {
    let theme = view.theme;
    let trust = view.state.trust()?;
    let style = match trust.severity {
        None => theme.good,
        Some(Severity::LowersTrust) => theme.warn,
        Some(Severity::BlocksComparison) => theme.bad,
    };
    let dots = |n: u32, dot: &str| dot.repeat(n as usize);
    let missing = trust.of - trust.score;
    Some(Tile {
        title: TRUST,
        value: dots(trust.score, theme.glyphs.dot) + &dots(missing, theme.glyphs.hollow_dot),
        unit: "",
        narrow: None,
        note: match trust.severity {
            None => "no issue",
            Some(Severity::LowersTrust) => "see v",
            Some(Severity::BlocksComparison) => "not comparable",
        }
        .to_owned(),
        style,
        load: None,
    })
}
