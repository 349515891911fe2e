//! One step as lanes over time: each operator, and the gaps.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    theme::Theme,
    view::View,
    widgets::{cut, draw_box},
};
use llm_cost::{Operator, OperatorKind};
use llmprof_base::units::{millis, percent};
use llmprof_event::{KernelSpan, StepTimeline, kernels::names};

const LABEL: u16 = 16;
const READOUT: u16 = 18;
/// The number of visible layers at each zoom; the first is the whole step.
const LAYERS_IN_VIEW: [usize; 3] = [usize::MAX, 4, 1];
/// Parts of a step without layers, at each zoom.
const EQUAL_PARTS: [u64; 3] = [1, 8, 64];
/// Rows in addition to the lanes: the box, the idle lane, the axis.
const OTHER_ROWS: u16 = 4;

/// Zoom levels.
pub const ZOOMS: usize = 3;

/// Part of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    pub from_ns: u64,
    pub to_ns: u64,
    pub title: String,
}

impl Part {
    fn ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

/// The end of the last kernel.
fn end_ns(timeline: &StepTimeline) -> u64 {
    timeline.spans.iter().map(|span| span.start_ns.saturating_add(span.ns)).max().unwrap_or(0)
}

/// Where each layer begins, in order.
fn layers(timeline: &StepTimeline) -> Vec<(u16, u64)> {
    let mut begins: Vec<(u16, u64)> = Vec::new();
    for span in &timeline.spans {
        let Some(layer) = span.layer else { continue };
        if begins.last().is_none_or(|(known, _)| *known != layer) {
            begins.push((layer, span.start_ns));
        }
    }
    begins
}

/// The number of parts at a zoom.
pub fn parts(timeline: &StepTimeline, zoom: usize) -> usize {
    let zoom = zoom.min(ZOOMS - 1);
    match layers(timeline).len() {
        0 => EQUAL_PARTS[zoom] as usize,
        n => n.div_ceil(LAYERS_IN_VIEW[zoom].min(n)),
    }
}

/// The `nth` part at a zoom; the last one if there are fewer.
pub fn part(timeline: &StepTimeline, zoom: usize, nth: usize) -> Part {
    let (zoom, end) = (zoom.min(ZOOMS - 1), end_ns(timeline));
    let nth = nth.min(parts(timeline, zoom) - 1);
    let begins = layers(timeline);
    if zoom == 0 {
        return Part { from_ns: 0, to_ns: end, title: "whole step".to_owned() };
    }
    if begins.is_empty() {
        let (parts, nth) = (EQUAL_PARTS[zoom], nth as u64);
        let start = |part: u64| (u128::from(end) * u128::from(part) / u128::from(parts)) as u64;
        let title = format!("part {} of {parts}", nth + 1);
        return Part { from_ns: start(nth), to_ns: start(nth + 1), title };
    }
    let n = LAYERS_IN_VIEW[zoom].min(begins.len());
    let first = nth * n;
    let last = (first + n).min(begins.len()) - 1;
    let (layer, from_ns) = begins[first];
    // The time before the first layer and after the last one belongs to them.
    let from_ns = if first == 0 { 0 } else { from_ns };
    let to_ns = begins.get(last + 1).map_or(end, |(_, begin)| *begin);
    let title = match n {
        1 => format!("layer {layer}"),
        _ => format!("layers {layer} to {}", begins[last].0),
    };
    Part { from_ns, to_ns, title }
}

/// A row of the timeline.
struct Lane {
    label: String,
    style: Style,
    belongs: Box<dyn Fn(&KernelSpan) -> bool>,
}

/// The height for one lane per operator.
pub fn wanted_height(timeline: &StepTimeline) -> u16 {
    operators(timeline).len() as u16 + OTHER_ROWS + 1
}

/// The height for one lane per kind of operator.
pub fn min_height(timeline: &StepTimeline) -> u16 {
    kinds(timeline).len() as u16 + OTHER_ROWS
}

fn operators(timeline: &StepTimeline) -> Vec<Option<Operator>> {
    let mut found: Vec<Option<Operator>> = Vec::new();
    for span in &timeline.spans {
        if !found.contains(&span.operator) {
            found.push(span.operator);
        }
    }
    // Unknown operators come last.
    found.sort_by_key(|operator| (operator.is_none(), *operator));
    found
}

fn kinds(timeline: &StepTimeline) -> Vec<Option<OperatorKind>> {
    let mut found: Vec<Option<OperatorKind>> =
        operators(timeline).into_iter().map(|operator| operator.map(Operator::kind)).collect();
    found.sort_by_key(|kind| (kind.is_none(), *kind));
    found.dedup();
    found
}

fn lanes(theme: &Theme, timeline: &StepTimeline, rows: usize) -> Vec<Lane> {
    let by_operator = operators(timeline);
    if by_operator.len() <= rows {
        return by_operator
            .into_iter()
            .map(|operator| Lane {
                label: operator.map_or("other", Operator::name).to_owned(),
                style: theme.operator(operator.map(Operator::kind)),
                belongs: Box::new(move |span| span.operator == operator),
            })
            .collect();
    }
    kinds(timeline)
        .into_iter()
        .map(|kind| Lane {
            label: match kind {
                Some(OperatorKind::Matmul) => "matmul",
                Some(OperatorKind::Attention) => "attention",
                Some(OperatorKind::Pointwise) => "norms, rope",
                Some(OperatorKind::Ends) => "embed, head",
                None => "other",
            }
            .to_owned(),
            style: theme.operator(kind),
            belongs: Box::new(move |span| span.operator.map(Operator::kind) == kind),
        })
        .collect()
}

/// The busy share of each of `cells` equal intervals, 0–1, and the busy time. Spans are in order of their starts and
/// may overlap: overlapping time counts once.
fn busy_shares<'s>(
    spans: impl Iterator<Item = &'s KernelSpan>,
    part: &Part,
    cells: usize,
) -> (Vec<f64>, u64) {
    let mut shares = vec![0.0; cells];
    let length = part.ns() as f64;
    let (mut covered_to, mut busy) = (part.from_ns, 0);
    if length <= 0.0 || cells == 0 {
        return (shares, 0);
    }
    let cell_ns = length / cells as f64;
    for span in spans {
        let from = span.start_ns.max(covered_to);
        let to = span.start_ns.saturating_add(span.ns).min(part.to_ns);
        if to <= from {
            continue;
        }
        covered_to = to;
        busy += to - from;
        let (from, to) = ((from - part.from_ns) as f64 / cell_ns, (to - part.from_ns) as f64 / cell_ns);
        for (cell, share) in
            shares.iter_mut().enumerate().skip(from as usize).take(to.ceil() as usize - from as usize)
        {
            *share += (to.min(cell as f64 + 1.0) - from.max(cell as f64)).max(0.0);
        }
    }
    (shares, busy)
}

/// Draws the step in a box.
pub fn draw(view: &View<'_>, timeline: &StepTimeline, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let part = part(timeline, view.ui.kernels.zoom, view.ui.kernels.part);
    let length = millis(part.ns() as f64 / 1e6);
    let title = format!("one {} step · {} · {length}", timeline.phase.name(), part.title);
    let aside = if area.width as usize > title.width() + 40 { "+ - zoom · [ ] previous, next" } else { "" };
    let inner = draw_box(theme, (&title, aside), area, buf);
    if inner.height < 3 || inner.width < 20 || timeline.spans.is_empty() {
        return;
    }
    let (label, readout) = if inner.width >= 60 { (LABEL, READOUT) } else { (inner.width / 3, 0) };
    let cells = inner.width.saturating_sub(label + readout);
    let mut lanes = lanes(theme, timeline, inner.height.saturating_sub(2) as usize);
    lanes.truncate(inner.height as usize - 2);
    let mut rows = inner.rows();
    for (lane, row) in lanes.iter().zip(&mut rows) {
        let spans = timeline.spans.iter().filter(|span| (lane.belongs)(span));
        let (shares, busy_ns) = busy_shares(spans, &part, cells as usize);
        draw_lane(theme, (&lane.label, lane.style), &shares, (busy_ns, &part), (label, readout), row, buf);
    }
    let (shares, busy_ns) = busy_shares(timeline.spans.iter(), &part, cells as usize);
    let idle: Vec<f64> =
        shares.iter().map(|share| 1.0 - share).map(|idle| if idle < NO_GAP { 0.0 } else { idle }).collect();
    let idle_ns = part.ns().saturating_sub(busy_ns);
    let Some(row) = rows.next() else { return };
    draw_lane(theme, ("gaps", theme.warn), &idle, (idle_ns, &part), (label, readout), row, buf);
    let Some(row) = rows.next() else { return };
    axis(theme, timeline, &part, Rect { x: inner.x + label, width: cells, ..row }, buf);
    let ends = Rect { x: inner.x + label + cells, width: readout, ..row };
    let to = format!("to {} ", millis(part.to_ns as f64 / 1e6));
    Line::styled(theme.glyphs.plain(&to), theme.dim).right_aligned().render(ends, buf);
    let from = format!(" from {}", millis(part.from_ns as f64 / 1e6));
    buf.set_stringn(inner.x, row.y, theme.glyphs.plain(&from), label.saturating_sub(1) as usize, theme.dim);
    if let Some(row) = rows.next() {
        longest(theme, timeline, &part, inner.width).render(row, buf);
    }
}

/// Smaller shares are rounding errors.
const ROUNDING: f64 = 1e-6;
/// Gaps below this share of a cell are counted but not drawn.
const NO_GAP: f64 = 0.02;

fn draw_lane(
    theme: &Theme,
    (name, style): (&str, Style),
    shares: &[f64],
    (busy_ns, part): (u64, &Part),
    (label, readout): (u16, u16),
    area: Rect,
    buf: &mut Buffer,
) {
    buf.set_stringn(area.x + 1, area.y, name, label.saturating_sub(2) as usize, style);
    for (x, share) in shares.iter().enumerate().filter(|(_, share)| **share > ROUNDING) {
        // The height is the share of the cell's time.
        let height = ((share * 8.0).round() as usize).clamp(1, 8);
        buf[(area.x + label + x as u16, area.y)].set_symbol(theme.glyphs.bars[height - 1]).set_style(style);
    }
    if busy_ns == 0 {
        return;
    }
    let share = percent(busy_ns as f64 / part.ns().max(1) as f64 * 100.0);
    let text = format!("{:>9} {share:>7} ", millis(busy_ns as f64 / 1e6));
    let place = Rect { x: area.right().saturating_sub(readout), width: readout, ..area };
    Line::styled(theme.glyphs.plain(&text), theme.text).right_aligned().render(place, buf);
}

/// The starts of layers, with as many of their numbers as fit; the first has a label.
fn axis(theme: &Theme, timeline: &StepTimeline, part: &Part, area: Rect, buf: &mut Buffer) {
    let length = part.ns();
    if length == 0 || area.is_empty() {
        return;
    }
    for x in area.left()..area.right() {
        buf[(x, area.y)].set_symbol(theme.glyphs.line).set_style(theme.border);
    }
    let mut free_from = area.x;
    for (layer, begin) in layers(timeline) {
        if !(part.from_ns..part.to_ns).contains(&begin) {
            continue;
        }
        let share = (begin - part.from_ns) as f64 / length as f64;
        let x = area.x + (share * f64::from(area.width)) as u16;
        let text = if free_from == area.x { format!("layer {layer}") } else { layer.to_string() };
        if x >= free_from && x + text.len() as u16 <= area.right() {
            buf.set_string(x, area.y, &text, theme.dim);
            free_from = x + text.len() as u16 + 1;
        }
    }
}

/// The longest kernels in view, each kind once.
fn longest<'a>(theme: &Theme, timeline: &StepTimeline, part: &Part, width: u16) -> Line<'a> {
    let mut spans: Vec<&KernelSpan> =
        timeline.spans.iter().filter(|span| (part.from_ns..part.to_ns).contains(&span.start_ns)).collect();
    spans.sort_by_key(|span| std::cmp::Reverse(span.ns));
    let mut seen: Vec<(u16, Option<Operator>)> = Vec::new();
    let mut line = vec![Text::styled(" longest", theme.dim)];
    for span in spans {
        if seen.contains(&(span.name, span.operator)) {
            continue;
        }
        seen.push((span.name, span.operator));
        let kernel =
            timeline.names.get(span.name as usize).map(|name| names::family(name)).unwrap_or_default();
        let time = millis(span.ns as f64 / 1e6);
        let text = match span.operator {
            Some(operator) if operator.name() == kernel => format!("  {operator} {time}"),
            Some(operator) => format!("  {operator} {time} ({kernel})"),
            None => format!("  {kernel} {time}"),
        };
        let used: usize = line.iter().map(Text::width).sum();
        if used + text.width() > width as usize || seen.len() > 5 {
            break;
        }
        let style = theme.operator(span.operator.map(Operator::kind));
        line.push(Text::styled(cut(&theme.glyphs.plain(&text), width as usize, theme.glyphs.ascii), style));
    }
    Line::from(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(layer: Option<u16>, start_ns: u64, ns: u64) -> KernelSpan {
        KernelSpan { name: 0, operator: Some(Operator::Qkv), layer, start_ns, ns }
    }

    fn step(spans: Vec<KernelSpan>) -> StepTimeline {
        StepTimeline { names: vec!["skinny".into()], spans, ..StepTimeline::default() }
    }

    #[test]
    fn a_cell_shows_its_busy_share() {
        let step = Part { from_ns: 0, to_ns: 400, title: String::new() };
        // Ten of a hundred, a gap, one that begins before the last has ended.
        let spans = [span(None, 0, 10), span(None, 100, 150), span(None, 200, 100)];
        let (shares, busy) = busy_shares(spans.iter(), &step, 4);
        assert_eq!(busy, 210);
        for (share, wanted) in shares.iter().zip([0.1, 1.0, 1.0, 0.0]) {
            assert!((share - wanted).abs() < 1e-9, "{shares:?}");
        }
        let middle = Part { from_ns: 150, to_ns: 250, title: String::new() };
        assert_eq!(busy_shares(spans.iter(), &middle, 3).1, 100);
        assert_eq!(busy_shares(spans.iter(), &Part { to_ns: 0, ..step.clone() }, 3).1, 0);
        assert_eq!(busy_shares(spans.iter(), &step, 0).0.len(), 0);
    }

    #[test]
    fn parts_cover_the_step_without_gaps() {
        let layered: Vec<KernelSpan> = (0..28).map(|l| span(Some(l), 5 + u64::from(l) * 100, 90)).collect();
        let plain: Vec<KernelSpan> = (0..28).map(|i| span(None, i * 100, 90)).collect();
        for timeline in [step(layered), step(plain), step(Vec::new()), step(vec![span(Some(3), 0, u64::MAX)])]
        {
            for zoom in 0..ZOOMS + 1 {
                let n = parts(&timeline, zoom);
                let all: Vec<Part> = (0..n).map(|nth| part(&timeline, zoom, nth)).collect();
                assert_eq!(all[0].from_ns, 0);
                assert_eq!(all[n - 1].to_ns, end_ns(&timeline));
                assert!(all.windows(2).all(|two| two[0].to_ns == two[1].from_ns), "{all:?}");
                assert_eq!(part(&timeline, zoom, n + 5), all[n - 1]);
            }
        }
    }

    #[test]
    fn the_axis_labels_its_numbers_as_layers() {
        use crate::theme::{Depth, Glyphs};
        use llmprof_config::ThemeName;
        let timeline = step((0..4).map(|l| span(Some(l), u64::from(l) * 100, 100)).collect());
        let theme = Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE);
        let area = Rect::new(0, 0, 40, 1);
        let mut buf = Buffer::empty(area);
        axis(&theme, &timeline, &part(&timeline, 0, 0), area, &mut buf);
        let text: String = buf.content().iter().map(|cell| cell.symbol()).collect();
        assert_eq!(text, "layer 0───1─────────2─────────3─────────");
    }

    #[test]
    fn a_part_names_its_layers() {
        let timeline = step((0..28).map(|l| span(Some(l), u64::from(l) * 100, 90)).collect());
        for (zoom, nth, title) in [(0, 0, "whole step"), (1, 1, "layers 4 to 7"), (2, 27, "layer 27")] {
            assert_eq!(part(&timeline, zoom, nth).title, title);
        }
        assert_eq!(parts(&timeline, 1), 7);
    }
}
