//! One step as lanes over time: which operator is at work when, and when none is.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    base::units::{millis, percent},
    event::{KernelSpan, StepTimeline, kernels::names},
    model::{Operator, OperatorKind},
    tui::{
        theme::Theme,
        view::View,
        widgets::{boxed, cut},
    },
};

const LABEL: u16 = 16;
const READOUT: u16 = 18;
/// Layers in view at each zoom; the first is the whole step.
const LAYERS_AT: [usize; 3] = [usize::MAX, 4, 1];
/// A step without layers is cut into so many parts, and each of these again.
const PARTS_AT: [u64; 3] = [1, 8, 64];
/// Rows beside the lanes: the frame, the idle lane, the axis.
const AROUND: u16 = 4;

/// How close a timeline can be looked at.
pub const ZOOMS: usize = 3;

/// Part of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    pub from_ns: u64,
    pub to_ns: u64,
    /// Which part it is, in words.
    pub words: String,
}

/// The end of the last kernel.
fn end_ns(timeline: &StepTimeline) -> u64 {
    timeline.spans.iter().map(|span| span.start_ns.saturating_add(span.ns)).max().unwrap_or(0)
}

/// Where each layer begins, in the order of time.
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

/// How many stretches there are at a zoom.
pub fn stretches(timeline: &StepTimeline, zoom: usize) -> usize {
    let zoom = zoom.min(ZOOMS - 1);
    match layers(timeline).len() {
        0 => PARTS_AT[zoom] as usize,
        n => n.div_ceil(LAYERS_AT[zoom].min(n)),
    }
}

/// The `nth` stretch at a zoom; the last one where there are fewer.
pub fn stretch(timeline: &StepTimeline, zoom: usize, nth: usize) -> Stretch {
    let (zoom, end) = (zoom.min(ZOOMS - 1), end_ns(timeline));
    let nth = nth.min(stretches(timeline, zoom) - 1);
    let begins = layers(timeline);
    if zoom == 0 {
        return Stretch { from_ns: 0, to_ns: end, words: "the whole step".to_owned() };
    }
    if begins.is_empty() {
        let (parts, nth) = (PARTS_AT[zoom], nth as u64);
        let at = |part: u64| (u128::from(end) * u128::from(part) / u128::from(parts)) as u64;
        return Stretch {
            from_ns: at(nth),
            to_ns: at(nth + 1),
            words: format!("part {} of {parts}", nth + 1),
        };
    }
    let n = LAYERS_AT[zoom].min(begins.len());
    let first = nth * n;
    let last = (first + n).min(begins.len()) - 1;
    let (layer, from_ns) = begins[first];
    // What comes before the first layer and after the last one belongs to them.
    let from_ns = if first == 0 { 0 } else { from_ns };
    let to_ns = begins.get(last + 1).map_or(end, |(_, begin)| *begin);
    let words = match n {
        1 => format!("layer {layer}"),
        _ => format!("layers {layer} to {}", begins[last].0),
    };
    Stretch { from_ns, to_ns, words }
}

/// A row of the timeline.
struct Lane {
    label: String,
    style: Style,
    belongs: Box<dyn Fn(&KernelSpan) -> bool>,
}

/// The rows a timeline would like: one for each operator, and what is around them.
pub fn wanted_height(timeline: &StepTimeline) -> u16 {
    operators(timeline).len() as u16 + AROUND + 1
}

/// The least rows it can be drawn in: one for each kind of operator.
pub fn least_height(timeline: &StepTimeline) -> u16 {
    kinds(timeline).len() as u16 + AROUND
}

fn operators(timeline: &StepTimeline) -> Vec<Option<Operator>> {
    let mut found: Vec<Option<Operator>> = Vec::new();
    for span in &timeline.spans {
        if !found.contains(&span.operator) {
            found.push(span.operator);
        }
    }
    // Those without a name come last.
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
                Some(OperatorKind::Matmul) => "products",
                Some(OperatorKind::Attention) => "attention",
                Some(OperatorKind::Pointwise) => "norms, rope",
                Some(OperatorKind::Ends) => "ends",
                None => "other",
            }
            .to_owned(),
            style: theme.operator(kind),
            belongs: Box::new(move |span| span.operator.map(Operator::kind) == kind),
        })
        .collect()
}

/// How much of each of `cells` equal parts of a stretch the spans take, 0–1 each. Spans may lie over each other: what
/// is taken twice counts once if they are in order of their beginnings.
fn busy_shares<'s>(
    spans: impl Iterator<Item = &'s KernelSpan>,
    stretch: &Stretch,
    cells: usize,
) -> (Vec<f64>, u64) {
    let mut shares = vec![0.0; cells];
    let length = stretch.to_ns.saturating_sub(stretch.from_ns) as f64;
    let (mut covered_to, mut busy) = (stretch.from_ns, 0);
    if length <= 0.0 || cells == 0 {
        return (shares, 0);
    }
    let cell_ns = length / cells as f64;
    for span in spans {
        let from = span.start_ns.max(covered_to);
        let to = span.start_ns.saturating_add(span.ns).min(stretch.to_ns);
        if to <= from {
            continue;
        }
        covered_to = to;
        busy += to - from;
        let (from, to) = ((from - stretch.from_ns) as f64 / cell_ns, (to - stretch.from_ns) as f64 / cell_ns);
        for (cell, share) in
            shares.iter_mut().enumerate().skip(from as usize).take(to.ceil() as usize - from as usize)
        {
            *share += (to.min(cell as f64 + 1.0) - from.max(cell as f64)).max(0.0);
        }
    }
    (shares, busy)
}

/// Draws the step in a frame.
pub fn draw(view: &View<'_>, timeline: &StepTimeline, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let look = &view.ui.kernels;
    let stretch = stretch(timeline, look.zoom, look.stretch);
    let length = millis(stretch.to_ns.saturating_sub(stretch.from_ns) as f64 / 1e6);
    let title = format!("one {} step · {} · {length}", timeline.phase.name(), stretch.words);
    let aside = if area.width as usize > title.width() + 40 { "+ - zoom · [ ] earlier, later" } else { "" };
    let block = boxed(theme, &title, aside);
    let inner = block.inner(area);
    block.render(area, buf);
    if inner.height < 3 || inner.width < 20 || timeline.spans.is_empty() {
        return;
    }
    let (label, readout) = if inner.width >= 60 { (LABEL, READOUT) } else { (inner.width / 3, 0) };
    let cells = inner.width.saturating_sub(label + readout);
    let mut lanes = lanes(theme, timeline, inner.height.saturating_sub(2) as usize);
    lanes.truncate(inner.height as usize - 2);
    let mut y = inner.y;
    for lane in &lanes {
        let spans = timeline.spans.iter().filter(|span| (lane.belongs)(span));
        let (shares, busy) = busy_shares(spans, &stretch, cells as usize);
        let at = Rect { y, height: 1, ..inner };
        lane_line(theme, (&lane.label, lane.style), &shares, (busy, &stretch), (label, readout), at, buf);
        y += 1;
    }
    let (shares, busy) = busy_shares(timeline.spans.iter(), &stretch, cells as usize);
    let idle: Vec<f64> =
        shares.iter().map(|share| 1.0 - share).map(|idle| if idle < NO_GAP { 0.0 } else { idle }).collect();
    let waiting = stretch.to_ns.saturating_sub(stretch.from_ns).saturating_sub(busy);
    let at = Rect { y, height: 1, ..inner };
    lane_line(theme, ("idle", theme.warn), &idle, (waiting, &stretch), (label, readout), at, buf);
    axis(theme, timeline, &stretch, Rect { x: inner.x + label, y: y + 1, width: cells, height: 1 }, buf);
    let ends = Rect { x: inner.x + label + cells, y: y + 1, width: readout, height: 1 };
    let words = format!("to {} ", millis(stretch.to_ns as f64 / 1e6));
    Line::styled(theme.glyphs.plain(&words), theme.dim).right_aligned().render(ends, buf);
    let from = format!(" from {}", millis(stretch.from_ns as f64 / 1e6));
    buf.set_stringn(inner.x, y + 1, theme.glyphs.plain(&from), label.saturating_sub(1) as usize, theme.dim);
    if y + 2 < inner.bottom() {
        longest(theme, timeline, &stretch, inner.width).render(Rect { y: y + 2, height: 1, ..inner }, buf);
    }
}

/// Less than this of a cell is nothing but rounding.
const UNSEEN: f64 = 1e-6;
/// Gaps that take less than this of a cell are in the number beside the lane, but not worth a mark.
const NO_GAP: f64 = 0.02;

fn lane_line(
    theme: &Theme,
    (name, style): (&str, Style),
    shares: &[f64],
    (busy_ns, stretch): (u64, &Stretch),
    (label, readout): (u16, u16),
    area: Rect,
    buf: &mut Buffer,
) {
    buf.set_stringn(area.x + 1, area.y, name, label.saturating_sub(2) as usize, style);
    for (x, share) in shares.iter().enumerate().filter(|(_, share)| **share > UNSEEN) {
        // The height tells how much of the cell's time it is.
        let height = ((share * 8.0).round() as usize).clamp(1, 8);
        buf[(area.x + label + x as u16, area.y)].set_symbol(theme.glyphs.bars[height - 1]).set_style(style);
    }
    if busy_ns == 0 {
        return;
    }
    let length = stretch.to_ns.saturating_sub(stretch.from_ns).max(1);
    let words = format!(
        "{:>9} {:>7} ",
        millis(busy_ns as f64 / 1e6),
        percent(busy_ns as f64 / length as f64 * 100.0)
    );
    let at = Rect { x: area.right().saturating_sub(readout), width: readout, ..area };
    Line::styled(theme.glyphs.plain(&words), theme.text).right_aligned().render(at, buf);
}

/// Where layers begin, with their numbers as far as there is room.
fn axis(theme: &Theme, timeline: &StepTimeline, stretch: &Stretch, area: Rect, buf: &mut Buffer) {
    let length = stretch.to_ns.saturating_sub(stretch.from_ns);
    if length == 0 || area.is_empty() {
        return;
    }
    for x in area.left()..area.right() {
        buf[(x, area.y)].set_symbol(theme.glyphs.line).set_style(theme.border);
    }
    let mut free_from = area.x;
    for (layer, begin) in layers(timeline) {
        if !(stretch.from_ns..stretch.to_ns).contains(&begin) {
            continue;
        }
        let share = (begin - stretch.from_ns) as f64 / length as f64;
        let x = area.x + (share * f64::from(area.width)) as u16;
        let text = layer.to_string();
        if x >= free_from && x + text.len() as u16 <= area.right() {
            buf.set_string(x, area.y, &text, theme.dim);
            free_from = x + text.len() as u16 + 1;
        }
    }
}

/// The kernels in view that take the most time, each kind once.
fn longest<'a>(theme: &Theme, timeline: &StepTimeline, stretch: &Stretch, width: u16) -> Line<'a> {
    let mut most: Vec<&KernelSpan> = timeline
        .spans
        .iter()
        .filter(|span| (stretch.from_ns..stretch.to_ns).contains(&span.start_ns))
        .collect();
    most.sort_by_key(|span| std::cmp::Reverse(span.ns));
    let mut seen: Vec<(u16, Option<Operator>)> = Vec::new();
    let mut line = vec![Text::styled(" longest", theme.dim)];
    for span in most {
        if seen.contains(&(span.name, span.operator)) {
            continue;
        }
        seen.push((span.name, span.operator));
        let kernel =
            timeline.names.get(span.name as usize).map(|name| names::family(name)).unwrap_or_default();
        let time = millis(span.ns as f64 / 1e6);
        let words = match span.operator {
            Some(operator) if operator.name() == kernel => format!("  {operator} {time}"),
            Some(operator) => format!("  {operator} {time} ({kernel})"),
            None => format!("  {kernel} {time}"),
        };
        let used: usize = line.iter().map(Text::width).sum();
        if used + words.width() > width as usize || seen.len() > 5 {
            break;
        }
        let style = theme.operator(span.operator.map(Operator::kind));
        line.push(Text::styled(cut(&theme.glyphs.plain(&words), width as usize, theme.glyphs.ascii), style));
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
    fn a_cell_shows_the_part_of_its_time_that_was_busy() {
        let whole = Stretch { from_ns: 0, to_ns: 400, words: String::new() };
        // Ten of a hundred, a gap, one that begins before the last has ended.
        let spans = [span(None, 0, 10), span(None, 100, 150), span(None, 200, 100)];
        let (shares, busy) = busy_shares(spans.iter(), &whole, 4);
        assert_eq!(busy, 210);
        for (share, wanted) in shares.iter().zip([0.1, 1.0, 1.0, 0.0]) {
            assert!((share - wanted).abs() < 1e-9, "{shares:?}");
        }
        let part = Stretch { from_ns: 150, to_ns: 250, words: String::new() };
        assert_eq!(busy_shares(spans.iter(), &part, 3).1, 100);
        assert_eq!(busy_shares(spans.iter(), &Stretch { to_ns: 0, ..whole.clone() }, 3).1, 0);
        assert_eq!(busy_shares(spans.iter(), &whole, 0).0.len(), 0);
    }

    #[test]
    fn stretches_cover_the_step_without_gaps() {
        let layered: Vec<KernelSpan> = (0..28).map(|l| span(Some(l), 5 + u64::from(l) * 100, 90)).collect();
        let plain: Vec<KernelSpan> = (0..28).map(|i| span(None, i * 100, 90)).collect();
        for timeline in [step(layered), step(plain), step(Vec::new()), step(vec![span(Some(3), 0, u64::MAX)])]
        {
            for zoom in 0..ZOOMS + 1 {
                let n = stretches(&timeline, zoom);
                let all: Vec<Stretch> = (0..n).map(|nth| stretch(&timeline, zoom, nth)).collect();
                assert_eq!(all[0].from_ns, 0);
                assert_eq!(all[n - 1].to_ns, end_ns(&timeline));
                assert!(all.windows(2).all(|two| two[0].to_ns == two[1].from_ns), "{all:?}");
                assert_eq!(stretch(&timeline, zoom, n + 5), all[n - 1]);
            }
        }
    }

    #[test]
    fn a_stretch_says_which_layers_it_has() {
        let timeline = step((0..28).map(|l| span(Some(l), u64::from(l) * 100, 90)).collect());
        for (zoom, nth, words) in [(0, 0, "the whole step"), (1, 1, "layers 4 to 7"), (2, 27, "layer 27")] {
            assert_eq!(stretch(&timeline, zoom, nth).words, words);
        }
        assert_eq!(stretches(&timeline, 1), 7);
    }
}
