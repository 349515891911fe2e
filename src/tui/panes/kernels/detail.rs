//! The details of a row: times, launch, what bounds it, counters and the advice of ncu.

use ratatui::{
    buffer::Buffer,
    layout::{Margin, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use super::{
    bound::Bounds,
    count,
    source::Source,
    table::{bar, extent},
};
use crate::{
    base::units::{millis, percent, scaled, three_digits},
    event::kernels::{Advice, Group, KernelRow, Kind, counters::Known, names},
    kernels::show::{TableView, amount_text},
    tui::{
        theme::Theme,
        view::View,
        widgets::{cut, draw_box, wrapped_behind},
    },
};

/// Stall reasons that are listed.
const STALLS: usize = 6;
/// Kernels of a group that are listed.
const PARTS: usize = 12;
const BAR: usize = 20;
const MIN_BAR: usize = 5;
/// Cells for the text next to a bar.
const ASIDE: usize = 24;
const LABEL: usize = 22;

/// Draws the details of the selected row in a box.
pub fn draw(view: &View<'_>, source: &Source<'_>, shown: &TableView, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let rows = &shown.table.rows;
    let Some(row) = rows.get(view.ui.kernels.row).or(rows.last()) else { return };
    let title = cut(&row.name, (area.width as usize).saturating_sub(34).max(8), theme.glyphs.ascii);
    let aside = if area.width >= 60 { "PgUp PgDn scroll · Enter closes" } else { "" };
    let inner = draw_box(theme, (&title, aside), area, buf).inner(Margin::new(1, 0));
    if inner.is_empty() {
        return;
    }
    let width = inner.width as usize;
    let lines = Page { theme, width, lines: Vec::new() }.filled(view, source, shown, row);
    let last = lines.len().saturating_sub(inner.height as usize);
    let from = view.ui.kernels.scroll.min(last);
    for (line, row) in lines.into_iter().skip(from).zip(inner.rows()) {
        line.render(row, buf);
    }
}

struct Page<'t, 'l> {
    theme: &'t Theme,
    width: usize,
    lines: Vec<Line<'l>>,
}

impl<'l> Page<'_, 'l> {
    fn filled(
        mut self,
        view: &View<'_>,
        source: &Source<'_>,
        shown: &TableView,
        row: &KernelRow,
    ) -> Vec<Line<'l>> {
        self.times(source, shown, row);
        self.launch(row);
        self.operator(view, source, row);
        self.parts(source, source.group(&view.ui.kernels), row);
        if source.kind() == Kind::Kernels {
            let known = row.known();
            self.bounds(row, &known, &Bounds::of(view, source));
            self.units(row, &known);
            self.stalls(&known);
            self.advice(&row.advice);
        }
        self.names(row);
        self.counters(row);
        self.lines
    }

    fn text(&mut self, text: &str, style: Style) {
        self.lines.push(Line::styled(self.theme.glyphs.plain(text), style));
    }

    fn heading(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        self.text(text, self.theme.accent);
    }

    /// Wrapped text behind a prefix; the lines after the first are indented.
    fn paragraph(&mut self, prefix: Vec<Text<'l>>, text: &str, indent: usize) {
        let indent = indent.min(self.width / 3);
        let taken = prefix.iter().map(Text::width).sum::<usize>().saturating_sub(indent);
        let text = self.theme.glyphs.plain(text);
        let mut lines = wrapped_behind(taken, &text, self.width.saturating_sub(indent)).into_iter();
        let mut spans = prefix;
        spans.push(Text::styled(lines.next().unwrap_or_default(), self.theme.text));
        self.lines.push(Line::from(spans));
        let blank = " ".repeat(indent);
        self.lines.extend(lines.map(|line| Line::styled(format!("{blank}{line}"), self.theme.text)));
    }

    /// A label and its value.
    fn fact(&mut self, label: &str, value: &str) {
        self.labelled(Text::styled(self.label(label), self.theme.dim), value);
    }

    fn labelled(&mut self, label: Text<'l>, value: &str) {
        self.paragraph(vec![label], value, LABEL + 2);
    }

    /// Padded, so that values are aligned; not on narrow screens.
    fn label(&self, text: &str) -> String {
        let text = self.theme.glyphs.plain(text);
        if self.width < 2 * LABEL { format!("  {text} ") } else { format!("  {text:<LABEL$}") }
    }

    /// A percentage, with a bar if that fits.
    fn meter(&mut self, label: &str, pct: Option<f64>, aside: &str, style: Style) {
        let Some(pct) = pct else { return };
        let mut spans = vec![
            Text::styled(self.label(label), self.theme.dim),
            Text::styled(format!("{:>8}  ", percent(pct)), self.theme.number),
        ];
        let used: usize = spans.iter().map(Text::width).sum();
        let cells = self.width.saturating_sub(used + ASIDE).min(BAR);
        if cells >= MIN_BAR {
            let bar = bar(self.theme, pct / 100.0, cells);
            spans.push(Text::styled(format!("{bar:<cells$} "), style));
        }
        if self.width >= used + ASIDE {
            spans.push(Text::styled(self.theme.glyphs.plain(aside), self.theme.dim));
        }
        self.lines.push(Line::from(spans));
    }

    fn times(&mut self, source: &Source<'_>, shown: &TableView, row: &KernelRow) {
        let (one, several) = source.count_nouns();
        let mut calls = format!("{} {}", count(row.calls), if row.calls == 1 { one } else { several });
        if let Some((steps, unit)) = source.steps() {
            calls += &format!(", {} per {unit}", three_digits(row.calls as f64 / steps as f64));
        }
        if let Some(pct) = shown.share(row) {
            calls += &format!(", {} of the total", percent(pct));
        }
        self.fact("calls", &calls);
        if let Some(amount) = shown.table.amount(row) {
            let text = |amount| amount_text(source.kind().measure(), amount);
            let per_step = source.steps().map(|(steps, unit)| (text(amount / steps as f64), unit));
            let each = per_step.map(|(each, unit)| format!("{each} per {unit}, ")).unwrap_or_default();
            self.fact("total", &format!("{each}{} in all", text(amount)));
        }
        let spread = [
            ("mean", row.mean_ns),
            ("median", row.median_ns),
            ("min", row.min_ns),
            ("max", row.max_ns),
            ("standard deviation", row.stddev_ns),
        ];
        let spread: Vec<String> = spread
            .into_iter()
            .filter_map(|(name, ns)| Some(format!("{name} {}", millis(ns? / 1e6))))
            .collect();
        if !spread.is_empty() {
            self.fact("one call", &spread.join(", "));
        }
        if let Some(bytes) = row.bytes.filter(|_| source.kind() != Kind::MemorySize) {
            let speed = row.total_ns.filter(|ns| *ns > 0.0).map(|ns| bytes / ns * 1e9);
            let speed = speed.map(|speed| format!(", {}", scaled(speed, "B/s"))).unwrap_or_default();
            self.fact("bytes", &format!("{}{speed}", scaled(bytes, "B")));
        }
        if let Some(product) = &row.product {
            self.fact("shape", &product.text());
        }
    }

    fn launch(&mut self, row: &KernelRow) {
        let launch = [
            row.grid.map(|grid| format!("grid {}", extent(grid))),
            row.block.map(|block| format!("block {}", extent(block))),
            row.registers.map(|n| format!("{n} registers per thread")),
            row.shared_bytes.map(|n| format!("{} shared memory per block", scaled(n as f64, "B"))),
        ];
        let launch: Vec<String> = launch.into_iter().flatten().collect();
        if !launch.is_empty() {
            self.fact("launch", &launch.join(", "));
        }
        if let Some(n) = row.graph_calls {
            let text = match n {
                0 => "none of the calls".to_owned(),
                n if n >= row.calls => "all calls".to_owned(),
                n => format!("{} of the calls", count(n)),
            };
            self.fact("in CUDA graphs", &text);
        }
        if let Some(operator) = row.operator {
            self.fact("operator", operator.name());
        }
        if let Some(range) = &row.range {
            self.fact("NVTX range", range);
        }
    }

    fn bounds(&mut self, row: &KernelRow, known: &Known, bounds: &Bounds) {
        self.heading("what bounds it");
        match bounds.verdict(row) {
            Ok(verdict) => {
                let style = self.theme.class(verdict.class);
                self.labelled(Text::styled(self.label(verdict.class.word()), style), &verdict.rule);
            }
            Err(_) if row.counters.is_empty() && bounds.operator(row).is_none() => {
                self.text("  needs counters: press c to collect them with ncu", self.theme.dim);
            }
            Err(why) => self.paragraph(vec![Text::raw("  ")], &format!("unknown: {why}"), 2),
        }
        let operator = bounds.operator(row).filter(|_| row.counters.is_empty());
        if let Some(timed) = operator.and_then(|operator| operator.achieved) {
            let (flops, bytes) = (scaled(timed.flop_per_s(), "FLOP/s"), scaled(timed.bytes_per_s(), "B/s"));
            self.fact("its operator achieves", &format!("{flops}, {bytes}, from its FLOPs and bytes"));
        }
        let achieved = row.achieved();
        if let Some(speed) = achieved.flop_per_s {
            let counted = known.flops.as_ref().map(|flops| format!(" (counted: {})", flops.counted));
            self.fact("compute", &format!("{}{}", scaled(speed, "FLOP/s"), counted.unwrap_or_default()));
        }
        if let Some(speed) = achieved.bytes_per_s {
            self.fact("DRAM", &scaled(speed, "B/s"));
        }
        if let Some(intensity) = achieved.flop_per_byte {
            self.fact("arithmetic intensity", &format!("{} FLOP/B", three_digits(intensity)));
        }
    }

    fn units(&mut self, row: &KernelRow, known: &Known) {
        let theme = self.theme;
        let pcts = [known.sm_pct, known.dram_pct, known.tensor_pct, known.occupancy_pct, known.l2_hit_pct];
        if pcts.iter().all(Option::is_none) {
            return;
        }
        self.heading("utilisation");
        self.meter("SM", known.sm_pct, "of peak compute", theme.utilisation);
        self.meter("DRAM", known.dram_pct, "of peak bandwidth", theme.memory);
        self.meter("caches and DRAM", known.memory_pct, "the busiest of them", theme.memory);
        self.meter("tensor pipe", known.tensor_pct, "", theme.utilisation);
        let limit = known.occupancy_limit_pct.map(|pct| format!("of {} possible", percent(pct)));
        self.meter("occupancy", known.occupancy_pct, &limit.unwrap_or_default(), theme.clock);
        self.meter("L1 hits", known.l1_hit_pct, "", theme.decode);
        self.meter("L2 hits", known.l2_hit_pct, "", theme.decode);
        if let Some(waves) = known.waves_per_sm {
            self.fact("waves per SM", &three_digits(waves));
        }
        // Unless they are in the launch.
        if let Some(n) = known.registers.filter(|_| row.registers.is_none()) {
            self.fact("registers", &format!("{} per thread", three_digits(n)));
        }
        if let Some(n) = known.shared_bytes.filter(|_| row.shared_bytes.is_none()) {
            self.fact("shared memory", &format!("{} per block", scaled(n, "B")));
        }
    }

    fn stalls(&mut self, known: &Known) {
        let all: f64 = known.stalls.iter().map(|(_, value)| value).sum();
        if all <= 0.0 {
            return;
        }
        self.heading("warp stalls, by reason");
        for (reason, value) in known.stalls.iter().take(STALLS) {
            self.meter(reason, Some(value / all * 100.0), "", self.theme.warn);
        }
    }

    /// The advice of ncu, the largest speedup first.
    fn advice(&mut self, advice: &[Advice]) {
        if advice.is_empty() {
            return;
        }
        self.heading("advice of ncu, largest speedup first");
        let mut sorted: Vec<&Advice> = advice.iter().collect();
        sorted.sort_by(|a, b| {
            let speedup = |advice: &Advice| advice.speedup_pct.unwrap_or(-1.0);
            speedup(b).total_cmp(&speedup(a))
        });
        for advice in sorted {
            let speedup = advice.speedup_pct.map(|pct| {
                let of = advice.speedup_of.as_deref().map(|of| format!(", {of}")).unwrap_or_default();
                format!("up to {}{of}: ", percent(pct))
            });
            let plain = |text: &str| self.theme.glyphs.plain(text);
            let prefix = vec![
                Text::styled(format!("  {} ", plain(&advice.rule)), self.theme.accent),
                Text::styled(plain(&speedup.unwrap_or_default()), self.theme.number),
            ];
            self.paragraph(prefix, &advice.text, 4);
        }
    }

    /// The operands of its operator, and the heap that a call allocates.
    fn operator(&mut self, view: &View<'_>, source: &Source<'_>, row: &KernelRow) {
        let (phase, host) = match source {
            Source::Live { phase, .. } => (*phase, None),
            Source::Timed { phase, host } => (*phase, Some(host)),
            Source::Table { .. } => return,
        };
        let Some(operator) = row.operator else { return };
        if let Some(shapes) = view.state.operand_shapes(phase, operator) {
            self.fact("operands", &shapes);
        }
        let Some(heap) = host.and_then(|host| host.time_of(operator)).and_then(|time| time.heap) else {
            return;
        };
        let each = heap.allocated_bytes as f64 / row.calls.max(1) as f64;
        let peak = scaled(heap.peak_bytes as f64, "B");
        self.fact("heap per call", &format!("{} allocated, peak {peak}", scaled(each, "B")));
    }

    /// The kernels of a group.
    fn parts(&mut self, source: &Source<'_>, group: Group, row: &KernelRow) {
        if !matches!(group, Group::Operator | Group::Family) {
            return;
        }
        let table = source.table();
        let same =
            |part: &KernelRow| group.key(part) == row.name && (!table.nested || part.range == row.range);
        let mut parts: Vec<&KernelRow> = table.rows.iter().filter(|part| same(part)).collect();
        parts.sort_by(|a, b| {
            let amount = |row: &KernelRow| table.amount(row).unwrap_or(0.0);
            amount(b).total_cmp(&amount(a))
        });
        match parts.as_slice() {
            [] => return,
            [only] if only.name == row.name => return,
            [only] => return self.fact("kernel", &only.name),
            _ => {}
        }
        self.heading(&format!("{} rows in this group", parts.len()));
        for part in parts.iter().take(PARTS) {
            let time = part.mean_ns.map_or_else(|| "–".to_owned(), |ns| millis(ns / 1e6));
            let calls = count(part.calls);
            let grid = part.grid.map(|grid| format!(" on {}", extent(grid))).unwrap_or_default();
            let text = format!("  {calls:>9} × {time:>8}  {}{grid}", part.name);
            self.text(&cut(&text, self.width, self.theme.glyphs.ascii), self.theme.text);
        }
        if let Some(more) = parts.len().checked_sub(PARTS).filter(|more| *more > 0) {
            self.text(&format!("  and {more} more; press m to show them"), self.theme.dim);
        }
    }

    /// The full name, if the title is cut.
    fn names(&mut self, row: &KernelRow) {
        let full = names::demangled(&row.name);
        if full.width() > self.width.min(40) {
            self.heading("name");
            self.paragraph(vec![Text::raw("  ")], &full, 2);
        }
    }

    fn counters(&mut self, row: &KernelRow) {
        if row.counters.is_empty() {
            return;
        }
        self.heading(&format!("all {} counters, mean per launch", row.counters.len()));
        for (name, unit, counter) in row.counters.iter() {
            let value = counter.mean().map_or_else(|| "–".to_owned(), three_digits);
            let text = format!("  {value:>16} {unit:<10} {name}");
            self.text(&cut(&text, self.width, self.theme.glyphs.ascii), self.theme.dim);
        }
    }
}
