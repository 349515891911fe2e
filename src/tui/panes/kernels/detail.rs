//! All that is known of one row: its times, its launch, what bounds it, its counters, and what ncu remarks.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use super::{
    bound::Bounds,
    source::Source,
    table::{bar, extent},
};
use crate::{
    base::units::{grouped, millis, percent, scaled, three_digits},
    event::kernels::{Advice, Group, KernelRow, Kind, counters::Known, names},
    kernels::show::{Shown, amount_text},
    tui::{
        theme::Theme,
        view::View,
        widgets::{boxed, cut, wrapped_behind},
    },
};

/// Stall reasons that are told.
const STALLS: usize = 6;
/// Kernels of a group that are told.
const PARTS: usize = 12;
const BAR: usize = 20;
/// A bar in less tells nothing.
const LEAST_BAR: usize = 5;
/// What may be said beside a bar.
const ASIDE: usize = 24;
const LABEL: usize = 22;

/// Draws what is known of the chosen row in a frame.
pub fn draw(view: &View<'_>, source: &Source<'_>, shown: &Shown, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let Some(row) = shown.table.rows.get(view.ui.kernels.row.min(shown.table.rows.len().saturating_sub(1)))
    else {
        return;
    };
    let title = cut(&row.name, (area.width as usize).saturating_sub(34).max(8), theme.glyphs.ascii);
    let aside = if area.width >= 60 { "PgUp PgDn scroll · Enter closes" } else { "" };
    let block = boxed(theme, &title, aside);
    let inner = block.inner(area);
    block.render(area, buf);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    if inner.is_empty() {
        return;
    }
    let width = inner.width as usize;
    let lines = Page { theme, width, lines: Vec::new() }.filled(view, source, shown, row);
    let last = lines.len().saturating_sub(inner.height as usize);
    let from = view.ui.kernels.scroll.min(last);
    for (line, y) in lines.into_iter().skip(from).zip(inner.top()..inner.bottom()) {
        line.render(Rect { y, height: 1, ..inner }, buf);
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
        shown: &Shown,
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

    /// A line as it is.
    fn text(&mut self, text: &str, style: Style) {
        self.lines.push(Line::styled(self.theme.glyphs.plain(text), style));
    }

    fn heading(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        self.text(text, self.theme.accent);
    }

    /// Words behind a beginning, in as many lines as they need; the later ones are indented.
    fn words(&mut self, beginning: Vec<Text<'l>>, text: &str, indent: usize) {
        let indent = indent.min(self.width / 3);
        let begun: usize = beginning.iter().map(Text::width).sum();
        let text = self.theme.glyphs.plain(text);
        let taken = begun.saturating_sub(indent);
        let mut lines = wrapped_behind(taken, &text, self.width.saturating_sub(indent)).into_iter();
        let mut spans = beginning;
        spans.push(Text::styled(lines.next().unwrap_or_default(), self.theme.text));
        self.lines.push(Line::from(spans));
        let blank = " ".repeat(indent);
        self.lines.extend(lines.map(|line| Line::styled(format!("{blank}{line}"), self.theme.text)));
    }

    /// A label, and what it is.
    fn fact(&mut self, label: &str, value: &str) {
        self.labelled(Text::styled(self.label(label), self.theme.dim), value);
    }

    fn labelled(&mut self, label: Text<'l>, value: &str) {
        self.words(vec![label], value, LABEL + 2);
    }

    /// Filled up, so that values stand under each other; not where that would take most of the line.
    fn label(&self, text: &str) -> String {
        let text = self.theme.glyphs.plain(text);
        if self.width < 2 * LABEL { format!("  {text} ") } else { format!("  {text:<LABEL$}") }
    }

    /// A percentage with its bar, where there is room for one.
    fn meter(&mut self, label: &str, pct: Option<f64>, aside: &str, style: Style) {
        let Some(pct) = pct else { return };
        let mut spans = vec![
            Text::styled(self.label(label), self.theme.dim),
            Text::styled(format!("{:>8}  ", percent(pct)), self.theme.number),
        ];
        let used: usize = spans.iter().map(Text::width).sum();
        let cells = self.width.saturating_sub(used + ASIDE).min(BAR);
        if cells >= LEAST_BAR {
            let bar = bar(self.theme, pct / 100.0, cells);
            spans.push(Text::styled(format!("{bar:<cells$} "), style));
        }
        if self.width >= used + ASIDE {
            spans.push(Text::styled(self.theme.glyphs.plain(aside), self.theme.dim));
        }
        self.lines.push(Line::from(spans));
    }

    fn times(&mut self, source: &Source<'_>, shown: &Shown, row: &KernelRow) {
        let (one, several) = source.count_nouns();
        let mut calls = format!(
            "{} {}",
            grouped(i64::try_from(row.calls).unwrap_or(i64::MAX)),
            if row.calls == 1 { one } else { several }
        );
        if let Some((steps, of)) = source.steps() {
            calls += &format!(", {} a {of}", three_digits(row.calls as f64 / steps as f64));
        }
        if let Some(pct) = shown.share(row) {
            calls += &format!(", {} of the whole", percent(pct));
        }
        self.fact("calls", &calls);
        if let Some(amount) = shown.table.amount(row) {
            let mut words = amount_text(source.kind().measure(), amount);
            if let Some((steps, of)) = source.steps() {
                let each = amount_text(source.kind().measure(), amount / steps as f64);
                words = format!("{each} a {of}, {words} in all");
            }
            self.fact("together", &words);
        }
        let time = |ns: f64| millis(ns / 1e6);
        let spread = [
            ("mean", row.mean_ns),
            ("median", row.median_ns),
            ("least", row.min_ns),
            ("most", row.max_ns),
            ("standard deviation", row.stddev_ns),
        ];
        let told: Vec<String> =
            spread.iter().filter_map(|(what, ns)| Some(format!("{what} {}", time((*ns)?)))).collect();
        if !told.is_empty() {
            self.fact("one call", &told.join(", "));
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
        let mut words = Vec::new();
        words.extend(row.grid.map(|grid| format!("grid {}", extent(grid))));
        words.extend(row.block.map(|block| format!("block {}", extent(block))));
        words.extend(row.registers.map(|n| format!("{n} registers a thread")));
        words.extend(row.shared_bytes.map(|n| format!("{} shared memory a block", scaled(n as f64, "B"))));
        if !words.is_empty() {
            self.fact("launch", &words.join(", "));
        }
        if let Some(n) = row.graph_calls {
            let words = match n {
                0 => "none of the calls".to_owned(),
                n if n >= row.calls => "all calls".to_owned(),
                n => format!("{} of the calls", grouped(i64::try_from(n).unwrap_or(i64::MAX))),
            };
            self.fact("nodes of CUDA graphs", &words);
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
            Err(_) if row.counters.is_empty() && bounds.whole(row).is_none() => {
                self.text("  takes counters; c runs it again under ncu, which counts", self.theme.dim);
            }
            Err(why) => self.words(vec![Text::raw("  ")], &format!("can't be told; {why}"), 2),
        }
        if let Some(timed) =
            bounds.whole(row).filter(|_| row.counters.is_empty()).and_then(|whole| whole.achieved)
        {
            self.fact(
                "its operator does",
                &format!(
                    "{}, {}, by its FLOPs and bytes",
                    scaled(timed.flop_per_s(), "FLOP/s"),
                    scaled(timed.bytes_per_s(), "B/s")
                ),
            );
        }
        let achieved = row.achieved();
        if let Some(speed) = achieved.flop_per_s {
            let counted = known.flops.as_ref().map(|flops| format!(" (counted: {})", flops.counted));
            self.fact("operations", &format!("{}{}", scaled(speed, "FLOP/s"), counted.unwrap_or_default()));
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
        let told = [known.sm_pct, known.dram_pct, known.tensor_pct, known.occupancy_pct, known.l2_hit_pct];
        if told.iter().all(Option::is_none) {
            return;
        }
        self.heading("how busy, of what it could be");
        self.meter("SM", known.sm_pct, "of the compute ceiling", theme.utilisation);
        self.meter("DRAM", known.dram_pct, "of the memory ceiling", theme.memory);
        self.meter("caches and DRAM", known.memory_pct, "the busiest of them", theme.memory);
        self.meter("tensor pipe", known.tensor_pct, "", theme.utilisation);
        let limit = known.occupancy_limit_pct.map(|pct| format!("of {} possible", percent(pct)));
        self.meter("occupancy", known.occupancy_pct, &limit.unwrap_or_default(), theme.clock);
        self.meter("L1 hits", known.l1_hit_pct, "", theme.decode);
        self.meter("L2 hits", known.l2_hit_pct, "", theme.decode);
        if let Some(waves) = known.waves_per_sm {
            self.fact("waves", &format!("{} of blocks on each SM", three_digits(waves)));
        }
        // What the table's columns do not tell.
        let registers = known.registers.filter(|_| row.registers.is_none());
        if let Some(n) = registers {
            self.fact("registers", &format!("{} a thread", three_digits(n)));
        }
        if let Some(n) = known.shared_bytes.filter(|_| row.shared_bytes.is_none()) {
            self.fact("shared memory", &format!("{} a block", scaled(n, "B")));
        }
    }

    fn stalls(&mut self, known: &Known) {
        let all: f64 = known.stalls.iter().map(|(_, value)| value).sum();
        if all <= 0.0 {
            return;
        }
        self.heading("what warps wait for, of the reasons that were counted");
        for (reason, value) in known.stalls.iter().take(STALLS) {
            self.meter(reason, Some(value / all * 100.0), "", self.theme.warn);
        }
    }

    /// The tool's own rules, those that promise the most first.
    fn advice(&mut self, advice: &[Advice]) {
        if advice.is_empty() {
            return;
        }
        self.heading("ncu's remarks, the greatest gain first");
        let mut sorted: Vec<&Advice> = advice.iter().collect();
        sorted.sort_by(|a, b| {
            let gain = |advice: &Advice| advice.speedup_pct.unwrap_or(-1.0);
            gain(b).total_cmp(&gain(a))
        });
        for advice in sorted {
            let gain = advice.speedup_pct.map(|pct| {
                let of = advice.speedup_of.as_deref().map(|of| format!(", {of}")).unwrap_or_default();
                format!("up to {}{of}: ", percent(pct))
            });
            let plain = |text: &str| self.theme.glyphs.plain(text);
            let beginning = vec![
                Text::styled(format!("  {} ", plain(&advice.rule)), self.theme.accent),
                Text::styled(plain(&gain.unwrap_or_default()), self.theme.number),
            ];
            self.words(beginning, &advice.text, 4);
        }
    }

    /// What goes into its operator, and what a call of it asks the heap for.
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
        self.fact("heap, a call", &format!("{} asked for, {peak} at a time at most", scaled(each, "B")));
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
        self.heading(&format!("made of {} rows", grouped(parts.len() as i64)));
        for part in parts.iter().take(PARTS) {
            let time = part.mean_ns.map_or_else(|| "–".to_owned(), |ns| millis(ns / 1e6));
            let calls = grouped(i64::try_from(part.calls).unwrap_or(i64::MAX));
            let grid = part.grid.map(|grid| format!(" on {}", extent(grid))).unwrap_or_default();
            let words = format!("  {calls:>9} × {time:>8}  {}{grid}", part.name);
            self.text(&cut(&words, self.width, self.theme.glyphs.ascii), self.theme.text);
        }
        if let Some(more) = parts.len().checked_sub(PARTS).filter(|more| *more > 0) {
            self.text(&format!("  and {more} more; m shows them"), self.theme.dim);
        }
    }

    /// In full, where it has been folded.
    fn names(&mut self, row: &KernelRow) {
        let full = names::demangled(&row.name);
        if full.width() > self.width.min(40) {
            self.heading("name");
            self.words(vec![Text::raw("  ")], &full, 2);
        }
    }

    fn counters(&mut self, row: &KernelRow) {
        if row.counters.is_empty() {
            return;
        }
        self.heading(&format!("all {} counters, of a mean launch", row.counters.len()));
        for (name, unit, counter) in row.counters.iter() {
            let value = counter.mean().map_or_else(|| "–".to_owned(), three_digits);
            let words = format!("  {value:>16} {unit:<10} {name}");
            self.text(&cut(&words, self.width, self.theme.glyphs.ascii), self.theme.dim);
        }
    }
}
