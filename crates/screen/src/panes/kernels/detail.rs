//! The details of a row: its times in every source, launch, bound, counters and the advice of ncu.

use ratatui::{
    buffer::Buffer,
    layout::{Margin, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use super::{
    against::Against,
    bound::Bounds,
    count,
    same::{Elsewhere, elsewhere, rows_of},
    source::{Source, Sources},
    table::{bar, extent},
};
use crate::{
    keys::Mode,
    theme::Theme,
    view::View,
    widgets::{cut, draw_box, wrapped_behind},
};
use gpu_traces::show::{TableView, amount_text};
use llmprof_analysis::classify::{self, Verdict};
use llmprof_base::units::{millis, percent, scaled, share_percent, three_digits};
use llmprof_event::kernels::{Advice, Group, KernelRow, Kind, Platform, counters::CounterMeans, names};

/// Maximum listed stall reasons.
const STALLS: usize = 6;
/// Maximum listed kernels of a group.
const PARTS: usize = 12;
const BAR: usize = 20;
const MIN_BAR: usize = 5;
/// Cells for the text next to a bar.
const ASIDE: usize = 24;
const LABEL: usize = 22;
/// Lines for the durations of a kernel.
const DURATION_BINS: usize = 10;

/// Draws the details of the selected row in a box.
pub fn draw(view: &View<'_>, sources: &Sources<'_>, shown: &TableView, area: Rect, buf: &mut Buffer) {
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
    let lines = Page { theme, width, lines: Vec::new() }.filled(view, sources, shown, row);
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
        sources: &Sources<'_>,
        shown: &TableView,
        row: &KernelRow,
    ) -> Vec<Line<'l>> {
        let source = &sources.shown();
        let group = source.group(&view.ui.kernels);
        let others = elsewhere(sources, group, row);
        self.names(row);
        self.text(&format!("{}, {}", source.title(), source.tool()), self.theme.accent);
        self.times(source, shown, row);
        if let Some(text) = Against::from_view(view, source).and_then(|against| against.describe(row)) {
            self.fact("change", &text);
        }
        others.iter().for_each(|other| self.elsewhere(other));
        self.missing(view, source, row, &others);
        self.launch(source, row, &others);
        self.operator(view, source, row);
        self.parts(source, group, row);
        // Counters of the row itself, otherwise those of the same kernel in a report.
        let other = others.iter().find(|other| !other.row.counters.is_empty());
        let (counted, of) = match other.filter(|_| row.counters.is_empty()) {
            Some(other) => (&other.row, other.source.tool()),
            None => (row, source.tool()),
        };
        if source.kind() == Kind::Kernels {
            let known = counted.known();
            self.bounds(row, (counted, &of), &known, &Bounds::from_view(view, source));
            self.units(counted, &known, &of);
            self.stalls(&known, &of);
            self.advice(&counted.advice);
        }
        self.counters(counted, &of);
        self.lines
    }

    /// The same kernels in another source.
    fn elsewhere(&mut self, other: &Elsewhere<'_>) {
        let Elsewhere { source, row, share, .. } = other;
        let (one, several) = source.count_nouns();
        let mut parts = vec![format!("{} {}", count(row.calls), if row.calls == 1 { one } else { several })];
        if let (Some((steps, unit)), Some(ns)) = (source.steps(), row.total_ns) {
            parts.push(format!("{} per {unit}", millis(ns / steps as f64 / 1e6)));
        }
        parts.extend(share.map(|pct| format!("{} of its total", percent(pct))));
        let spread = [("mean", row.mean_ns), ("min", row.min_ns), ("max", row.max_ns)];
        parts.extend(
            spread.into_iter().filter_map(|(name, ns)| Some(format!("{name} {}", millis(ns? / 1e6)))),
        );
        if other.other_grid {
            let grid =
                row.grid.map_or_else(|| "other grids".to_owned(), |grid| format!("grid {}", extent(grid)));
            parts.push(format!("on {grid}: another size of the problem"));
        }
        if !other.shared_with.is_empty() {
            let names: Vec<&str> = other.shared_with.iter().map(|operator| operator.name()).collect();
            parts.push(format!("with launches of {}", names.join(", ")));
        }
        self.fact(&source.title(), &parts.join(", "));
    }

    /// Sources without this kernel, and the key that records it.
    fn missing(&mut self, view: &View<'_>, source: &Source<'_>, row: &KernelRow, others: &[Elsewhere<'_>]) {
        if source.kind() != Kind::Kernels || matches!(source, Source::Timed { .. }) {
            return;
        }
        let can_record = matches!(view.mode(), Mode::Single | Mode::Remote);
        let key = |text: &'static str| if can_record { text } else { "" };
        let is_live = |source: &Source<'_>| matches!(source, Source::Live { .. });
        if !is_live(source) && !others.iter().any(|other| is_live(&other.source)) {
            self.fact("live", &format!("not recorded{}", key("; K records kernels while they run")));
        }
        let has_ncu = source.platform() == Platform::Cuda;
        if has_ncu && row.counters.is_empty() && others.iter().all(|other| other.row.counters.is_empty()) {
            self.fact("ncu", &format!("no counters of this kernel{}", key("; c collects them")));
        }
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

    /// Wrapped text after a prefix; the lines after the first are indented.
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
            calls += &format!(", {} of the total", share_percent(pct));
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
        self.durations(row);
        if let Some(bytes) = row.bytes.filter(|_| source.kind() != Kind::MemorySize) {
            let speed = row.total_ns.filter(|ns| *ns > 0.0).map(|ns| bytes / ns * 1e9);
            let speed = speed.map(|speed| format!(", {}", scaled(speed, "B/s"))).unwrap_or_default();
            self.fact("bytes", &format!("{}{speed}", scaled(bytes, "B")));
        }
        if let Some(product) = &row.product {
            self.fact("shape", &product.text());
        }
    }

    /// The calls by their duration, as bars. Their lengths are square roots, so that a few late calls are visible.
    fn durations(&mut self, row: &KernelRow) {
        let bins = row.durations.bins(DURATION_BINS);
        if bins.len() < 2 {
            return;
        }
        let most = bins.iter().map(|bin| bin.calls).max().unwrap_or(0).max(1) as f64;
        let width = self.width.saturating_sub(LABEL + ASIDE).clamp(MIN_BAR, 3 * BAR);
        let calls: u64 = bins.iter().map(|bin| bin.calls).sum();
        self.text("one call, by its duration (bars are square roots)", self.theme.dim);
        for bin in bins {
            let share = (bin.calls as f64 / most).sqrt();
            let label = format!("{:>9} – {}", millis(bin.from_ns / 1e6), millis(bin.to_ns / 1e6));
            let length = bar(self.theme, share, width);
            let value = match bin.calls {
                0 => String::new(),
                n => format!("{} ({})", count(n), share_percent(100.0 * n as f64 / calls.max(1) as f64)),
            };
            self.lines.push(Line::from(vec![
                Text::styled(format!("{:<LABEL$} ", self.theme.glyphs.plain(&label)), self.theme.dim),
                Text::styled(length, self.theme.decode),
                Text::styled(format!(" {value}"), self.theme.text),
            ]));
        }
    }

    fn launch(&mut self, source: &Source<'_>, row: &KernelRow, others: &[Elsewhere<'_>]) {
        // The launch comes from the first source that has it.
        let of_others = others.iter().filter(|other| !other.other_grid);
        let launches = [(source, row)].into_iter().chain(of_others.map(|other| (&other.source, &other.row)));
        let known =
            launches.map(|(source, row)| (source, launch(row))).find(|(_, launch)| !launch.is_empty());
        if let Some((source, launch)) = known {
            self.fact("launch", &format!("{} ({})", launch.join(", "), source.tool()));
        }
        if let Some(n) = row.graph_calls {
            let text = match n {
                0 => "none of the calls".to_owned(),
                n if n >= row.calls => "all calls".to_owned(),
                n => format!("{} of the calls", count(n)),
            };
            let graphs = source.platform().graphs();
            self.fact(&format!("in {graphs}"), &text);
        }
        if let Some(operator) = row.operator {
            self.fact("operator", operator.name());
        }
        if let Some(range) = &row.range {
            self.fact("NVTX range", range);
        }
    }

    fn bounds(
        &mut self,
        row: &KernelRow,
        (counted, of): (&KernelRow, &str),
        known: &CounterMeans,
        bounds: &Bounds,
    ) {
        self.heading("what bounds it");
        let has_counters = !counted.counters.is_empty();
        if has_counters {
            self.verdict(classify::verdict(counted), of);
        }
        let operator = bounds.operator(row).filter(|_| row.counters.is_empty());
        match operator {
            Some(_) => self.verdict(bounds.verdict(row), "cost of its operator"),
            None if !has_counters => self.text("  not known without counters", self.theme.dim),
            None => {}
        }
        if let Some(timed) = operator.and_then(|operator| operator.achieved) {
            let (flops, bytes) = (scaled(timed.flop_per_s(), "FLOP/s"), scaled(timed.bytes_per_s(), "B/s"));
            self.fact("its operator achieves", &format!("{flops}, {bytes}, from its FLOPs and bytes"));
        }
        let achieved = classify::achieved(counted);
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

    /// The class and the rule that decided it, by one source.
    fn verdict(&mut self, verdict: Result<Verdict, String>, of: &str) {
        match verdict {
            Ok(verdict) => {
                let style = self.theme.class(verdict.class);
                let text = format!("{} ({of})", verdict.rule);
                self.labelled(Text::styled(self.label(verdict.class.word()), style), &text);
            }
            Err(why) => self.fact("unknown", &format!("{why} ({of})")),
        }
    }

    fn units(&mut self, row: &KernelRow, known: &CounterMeans, of: &str) {
        let theme = self.theme;
        let pcts = [known.sm_pct, known.dram_pct, known.tensor_pct, known.occupancy_pct, known.l2_hit_pct];
        if pcts.iter().all(Option::is_none) {
            return;
        }
        self.heading(&format!("utilisation, {of}"));
        self.meter("SM", known.sm_pct, "of peak compute", theme.utilisation);
        self.meter("DRAM", known.dram_pct, "of peak bandwidth", theme.memory);
        self.meter("caches and DRAM", known.memory_pct, "the busiest of them", theme.memory);
        self.meter("tensor pipe", known.tensor_pct, "", theme.utilisation);
        let limit = known.occupancy_limit_pct.map(|pct| format!("of {} possible", percent(pct)));
        self.meter("occupancy", known.occupancy_pct, &limit.unwrap_or_default(), theme.clock);
        if let Some((limits, blocks)) = &known.block_limit {
            let blocks = format!("{blocks:.0} {} per SM", if *blocks == 1.0 { "block" } else { "blocks" });
            self.fact("occupancy limit", &format!("{}: {blocks}", limits.join(" and ")));
        }
        self.meter("L1 hits", known.l1_hit_pct, "", theme.decode);
        self.meter("L2 hits", known.l2_hit_pct, "", theme.decode);
        if let Some(waves) = known.waves_per_sm {
            self.fact("waves per SM", &three_digits(waves));
        }
        // Unless they are part of the launch.
        if let Some(n) = known.registers.filter(|_| row.registers.is_none()) {
            self.fact("registers", &format!("{} per thread", three_digits(n)));
        }
        if let Some(n) = known.shared_bytes.filter(|_| row.shared_bytes.is_none()) {
            self.fact("shared memory", &format!("{} per block", scaled(n, "B")));
        }
    }

    fn stalls(&mut self, known: &CounterMeans, of: &str) {
        let all: f64 = known.stalls.iter().map(|(_, value)| value).sum();
        if all <= 0.0 {
            return;
        }
        self.heading(&format!("warp stalls, by reason, {of}"));
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

    /// The operands of its operator, and the heap allocated per call.
    fn operator(&mut self, view: &View<'_>, source: &Source<'_>, row: &KernelRow) {
        let (phase, host) = match source {
            Source::Live { phase, .. } => (*phase, None),
            Source::Timed { phase, host, .. } => (*phase, Some(host)),
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
        let mut parts = rows_of(&table, group, row);
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

    /// The full name, if the title is truncated.
    fn names(&mut self, row: &KernelRow) {
        let full = names::demangled(&row.name);
        if full.width() > self.width.min(40) {
            self.paragraph(Vec::new(), &full, 2);
            self.lines.push(Line::default());
        }
    }

    fn counters(&mut self, row: &KernelRow, of: &str) {
        if row.counters.is_empty() {
            return;
        }
        self.heading(&format!("all {} counters, mean per launch, {of}", row.counters.len()));
        for (name, unit, counter) in row.counters.iter() {
            let value = counter.mean().map_or_else(|| "–".to_owned(), three_digits);
            let text = format!("  {value:>16} {unit:<10} {name}");
            self.text(&cut(&text, self.width, self.theme.glyphs.ascii), self.theme.dim);
        }
    }
}

/// The launch parameters of a kernel.
fn launch(row: &KernelRow) -> Vec<String> {
    let known = [
        row.grid.map(|grid| format!("grid {}", extent(grid))),
        row.block.map(|block| format!("block {}", extent(block))),
        row.registers.map(|n| format!("{n} registers per thread")),
        row.shared_bytes.map(|n| format!("{} shared memory per block", scaled(n as f64, "B"))),
    ];
    known.into_iter().flatten().collect()
}
