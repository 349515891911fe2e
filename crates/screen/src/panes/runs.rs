//! Runs: the recorded runs as a tree, to open, compare, rename and delete.

use crate::{
    layout::Hit,
    pane::Spec,
    run_tree::{Group, Item, RunRow, TreeRow},
    theme::Theme,
    ui::{GroupKey, RunOrder, SortColumn, moved},
    view::View,
    widgets::{ListLayout, cut, draw_box, inside_box, note, wrapped_behind},
};
use crossterm::event::KeyCode;
use std::time::SystemTime;

use jiff::{Timestamp, tz::TimeZone};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    style::Style,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};
use unicode_width::UnicodeWidthStr;

use llmprof_base::{
    cells,
    table::Table,
    units::{fixed, grouped, millis, three_digits},
};
use llmprof_record::rundir::{RunEntry, TrustScore, Verdict};

pub struct RunsPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Runs",
    keys: &[KeyCode::Char('7')],
    help: "Runs: the recorded runs",
    is_special: false,
    why_empty: "no recorded runs",
    has_content: |view, _| view.listing || !view.runs.entries().is_empty(),
    draw: |view, area, buf| RunsPane(view).render(area, buf),
    table: listed_runs,
    rows: |view| view.runs.rows().len(),
    select: |ui, by, extent| ui.runs.row = Some(moved(extent.run, by, extent.rows)),
    ..Spec::EMPTY
};

/// As filtered and sorted.
fn listed_runs(view: &View<'_>) -> Table {
    let mut table = Table::keyed(
        "run,recorded,experiment,model,outcome,simulated,requests,ttft_p50_ms,tpot_p50_ms,itl_p50_ms,prefill_tok_s,\
         decode_tok_s,sweep,overrides,dtype,batch,verdict,trust",
    );
    for run in view.runs.listed() {
        let result = run.result.as_ref();
        let metrics = result.map(|result| &result.metrics);
        table.push(cells![
            run.dir.path().display().to_string(),
            Timestamp::try_from(run.modified).ok().map(|time| time.to_string()),
            run.experiment.clone(),
            run.model.clone(),
            result.map(|result| result.outcome.to_string()),
            // Unknown until the run has ended.
            result.map(|_| run.simulated()),
            metrics.map(|m| m.requests),
            metrics.and_then(|m| m.ttft_ms.p50),
            metrics.and_then(|m| m.tpot_ms.p50),
            metrics.and_then(|m| m.itl_ms.p50),
            metrics.and_then(|m| m.prefill_tok_s),
            metrics.and_then(|m| m.decode_tok_s),
            run.sweep.as_ref().map(|sweep| sweep.display().to_string()),
            run.kind.overrides.join(" "),
            run.kind.dtype.clone(),
            run.kind.batch,
            run.verdict().to_string(),
            result.and_then(|result| result.trust.as_ref()).map(|trust| trust.score),
        ]);
    }
    table
}

const LABEL_WIDTH: usize = 11;

/// The rows of the pane: below a heading and above the details, in a box.
pub fn list(view: &View<'_>, area: Rect) -> ListLayout {
    let inner = inside_box(area);
    let taken = 1 + details_height(inner);
    let below = Rect { y: inner.y + 1, height: inner.height.saturating_sub(taken), ..inner };
    let selected = view.runs.selected(view.ui.runs.row);
    ListLayout::scrolled(below, view.runs.rows().len(), selected, view.ui.runs.top)
}

/// Including the line above them; a low pane has none.
fn details_height(inner: Rect) -> u16 {
    match inner.height {
        0..12 => 0,
        12..18 => 4,
        18..28 => 6,
        28.. => 8,
    }
}

impl Widget for RunsPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let (theme, tree) = (view.theme, view.runs);
        let arrangement = &view.ui.runs.arrangement;
        let order = match (arrangement.order, arrangement.reversed) {
            (RunOrder::Newest, false) => "newest first",
            (RunOrder::Newest, true) => "oldest first",
            (RunOrder::Fastest, false) => "fastest first",
            (RunOrder::Fastest, true) => "slowest first",
            (RunOrder::Ttft, false) => "lowest TTFT first",
            (RunOrder::Ttft, true) => "highest TTFT first",
            (RunOrder::Tpot, false) => "lowest TPOT first",
            (RunOrder::Tpot, true) => "highest TPOT first",
            (RunOrder::Model, false) => "by model",
            (RunOrder::Model, true) => "by model, from the end",
        };
        let aside = match arrangement.filter.as_str() {
            "" => order.to_owned(),
            filter => format!("{order}, containing \"{filter}\""),
        };
        let title = match tree.listed().len() {
            0 => "runs".to_owned(),
            n => format!("runs · {}", grouped(n as i64)),
        };
        let inner = draw_box(theme, (&title, &aside), area, buf);
        if tree.rows().is_empty() {
            let text = match arrangement.filter.as_str() {
                _ if view.listing => " reading the list of runs",
                "" => " no recorded runs",
                _ => " no run contains this text; press / to change it",
            };
            return note(theme, text).render(inner, buf);
        }
        let columns = Columns::new(view, inner.width as usize);
        columns.heading(view, Rect { height: inner.height.min(1), ..inner }, buf);
        let list = list(view, area);
        for (i, place) in list.rows() {
            let row = &tree.rows()[i];
            columns.row(view, row, inner.width as usize).render(place, buf);
            if tree.run_at(i).is_some_and(|run| view.ui.runs.marked.as_deref() == Some(run.dir.path())) {
                buf.set_string(place.x, place.y, "A", theme.accent);
            }
            if i == list.selected {
                buf.set_style(place, theme.selected);
            }
        }
        let height = details_height(inner).min(inner.height);
        if height > 0 {
            let place = Rect { y: inner.bottom() - height, height, ..inner };
            details(view, &tree.rows()[list.selected], place, buf);
        }
    }
}

/// The columns that fit, by their widths; 0 for one that is left out.
struct Columns {
    title: usize,
    differs: usize,
    dtype: usize,
    batch: usize,
    ttft: usize,
    tpot: usize,
    tok_s: usize,
    verdict: usize,
    trust: usize,
}

/// A wider title leaves too little room for the rest.
const MAX_TITLE: usize = 30;

impl Columns {
    fn new(view: &View<'_>, width: usize) -> Columns {
        let titles = view.runs.rows().iter().filter_map(|row| match &row.item {
            Item::Run(run) if view.runs.run(run).answers && !run.names_groups => {
                Some(2 * row.depth + full_title(view, run).width())
            }
            _ => None,
        });
        let widest = titles.max().unwrap_or(MAX_TITLE).clamp(8, MAX_TITLE);
        let number = if width >= 96 { 9 } else { 8 };
        let if_wide = |min: usize, column: usize| if width >= min { column } else { 0 };
        let mut columns = Columns {
            title: 0,
            differs: 0,
            dtype: if_wide(110, 7),
            batch: if_wide(110, 7),
            ttft: if_wide(96, number),
            tpot: if_wide(24, number),
            tok_s: if_wide(60, number),
            verdict: match width {
                0..44 => 0,
                44..130 => 17,
                130.. => 30,
            },
            trust: if_wide(70, 6),
        };
        let fixed = columns.dtype + columns.batch + columns.ttft + columns.tpot + columns.tok_s;
        let room = width.saturating_sub(2 + fixed + columns.verdict + columns.trust);
        columns.title = (widest + 1).min(room);
        columns.differs = if room - columns.title >= 8 { room - columns.title } else { 0 };
        columns.title += if columns.differs == 0 { room - columns.title } else { 0 };
        columns
    }

    /// Each title in its column; those that sort the list are registered with the mouse.
    fn heading(&self, view: &View<'_>, place: Rect, buf: &mut Buffer) {
        let (theme, shown) = (view.theme, view.ui.runs.arrangement.order);
        let mut x = place.x;
        for (text, width, order) in [
            (" ".to_owned(), 1, None),
            (padded("run", self.title), self.title, Some(RunOrder::Model)),
            (padded("what differs", self.differs), self.differs, None),
            (right("dtype", self.dtype), self.dtype, None),
            (right("batch", self.batch), self.batch, None),
            (right("TTFT ms", self.ttft), self.ttft, Some(RunOrder::Ttft)),
            (right("TPOT ms", self.tpot), self.tpot, Some(RunOrder::Tpot)),
            (right("tok/s", self.tok_s), self.tok_s, Some(RunOrder::Fastest)),
            (padded(if self.verdict > 0 { "  verdict" } else { "" }, self.verdict), self.verdict, None),
            (right("trust", self.trust), self.trust, None),
        ] {
            let column = Rect { x, width: width as u16, ..place }.intersection(place);
            x = x.saturating_add(width as u16);
            let is_sorted = order == Some(shown);
            Line::styled(text, if is_sorted { theme.accent } else { theme.dim }).render(column, buf);
            if let Some(order) = order {
                view.on_click(column, Hit::Sort(SortColumn::Runs(order)));
            }
        }
    }

    fn row<'a>(&self, view: &View<'_>, row: &TreeRow, width: usize) -> Line<'a> {
        let indent = "  ".repeat(row.depth);
        match &row.item {
            Item::Group(group) => group_line(view, &indent, group, width),
            Item::Run(run) => self.run_line(view, &indent, run, width),
        }
    }

    fn run_line<'a>(&self, view: &View<'_>, indent: &str, row: &RunRow, width: usize) -> Line<'a> {
        let (theme, run) = (view.theme, view.runs.run(row));
        let ascii = theme.glyphs.ascii;
        if !run.answers {
            let text =
                format!(" {} does not answer: its disk may be offline; press R to try again", run.name);
            return Line::styled(cut(&theme.glyphs.plain(&text), width, ascii), theme.bad);
        }
        let cell = |text: &str, width: usize| {
            padded(&cut(&theme.glyphs.plain(text), width.saturating_sub(1), ascii), width)
        };
        let (metrics, digits) = (run.metrics(), view.runs.digits());
        let number = |value: Option<f64>, digits: usize, width: usize| match value {
            Some(value) => Text::styled(right(&fixed(value, digits), width), theme.number),
            None => Text::styled(right(theme.glyphs.none, width), theme.dim),
        };
        let known = |text: Option<String>, width: usize| {
            let text = text.unwrap_or_else(|| theme.glyphs.none.to_owned());
            Text::styled(
                right(&cut(&theme.glyphs.plain(&text), width.saturating_sub(1), ascii), width),
                theme.dim,
            )
        };
        let verdict = run.verdict();
        let (trust, trust_style) = match run.result.as_ref().and_then(|result| result.trust.as_ref()) {
            Some(trust) => (format!("{}/{}", trust.score, trust.of), trust_style(theme, trust)),
            None => (theme.glyphs.none.to_owned(), theme.dim),
        };
        // The title of a group extends into the next column.
        let room = self.title + self.differs;
        let title = cut(
            &theme.glyphs.plain(&format!("{indent}{}", full_title(view, row))),
            room.saturating_sub(1),
            ascii,
        );
        let title = padded(&title, self.title.max(title.width() + 1));
        let differs = if self.differs == 0 { 0 } else { room.saturating_sub(title.width()) };
        let mut line = vec![
            Text::raw(" "),
            Text::styled(
                padded(&title, room - differs),
                if run.simulated() { theme.dim } else { theme.text },
            ),
            Text::styled(cell(&row.differs, differs), theme.accent),
            known(run.kind.dtype.clone(), self.dtype),
            known(run.kind.batch.map(|batch| batch.to_string()), self.batch),
            number(metrics.and_then(|m| m.ttft_ms.mean), digits.ttft, self.ttft),
            number(metrics.and_then(|m| m.tpot_ms.mean), digits.tpot, self.tpot),
            number(metrics.and_then(|m| m.decode_tok_s), digits.tok_s, self.tok_s),
        ];
        if self.verdict > 0 {
            let (style, room) = (verdict_style(theme, verdict), self.verdict - 2);
            let words = cut(&theme.glyphs.plain(&verdict.to_string()), room, ascii);
            line.push(Text::styled(format!("  {}", padded(&words, room)), style));
        }
        line.push(Text::styled(right(&trust, self.trust), trust_style));
        Line::from(line)
    }
}

/// The title, and whether the run was simulated.
fn full_title(view: &View<'_>, row: &RunRow) -> String {
    let simulated = view.runs.run(row).simulated();
    if simulated { format!("{} sim", row.title) } else { row.title.clone() }
}

fn group_line<'a>(view: &View<'_>, indent: &str, group: &Group, width: usize) -> Line<'a> {
    let theme = view.theme;
    let sign = if group.folded { theme.glyphs.pointer } else { theme.glyphs.unfolded };
    let title = format!(" {indent}{sign} {}", theme.glyphs.plain(&group.title));
    let room = width.saturating_sub(title.width() + 3);
    Line::from(vec![
        Text::styled(title, theme.accent),
        Text::raw("   "),
        Text::styled(cut(&theme.glyphs.plain(&summary(group)), room, theme.glyphs.ascii), theme.dim),
    ])
}

/// `6 runs · best TPOT 3.61 ms · 1 running`.
fn summary(group: &Group) -> String {
    let mut text = match group.runs {
        1 => "1 run".to_owned(),
        n => format!("{} runs", grouped(n as i64)),
    };
    if let Some(ms) = group.best_tpot_ms {
        text += &format!(" · best TPOT {}", millis(ms));
    }
    if group.running > 0 {
        text += &format!(" · {} running", group.running);
    }
    text
}

fn verdict_style(theme: &Theme, verdict: Verdict<'_>) -> Style {
    match verdict {
        Verdict::Running => theme.accent,
        Verdict::NoEnd => theme.warn,
        Verdict::Ended(outcome) => theme.outcome(outcome),
        Verdict::Throttled { .. } => theme.bad,
        Verdict::Unthrottled => theme.good,
    }
}

fn trust_style(theme: &Theme, trust: &TrustScore) -> Style {
    match trust.score {
        0 => theme.bad,
        score if score >= trust.of => theme.good,
        _ => theme.warn,
    }
}

/// The selected row in full, below a line.
fn details(view: &View<'_>, row: &TreeRow, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let rule = theme.glyphs.line.repeat(area.width as usize);
    buf.set_string(area.x, area.y, rule, theme.border);
    let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let parts = match &row.item {
        Item::Run(run) => run_details(view, run),
        Item::Group(group) => group_details(group),
    };
    let mut lines: Vec<Line<'_>> = Vec::new();
    for (label, text) in parts {
        let width = (area.width as usize).saturating_sub(LABEL_WIDTH + 2);
        let text = wrapped_behind(0, &theme.glyphs.plain(&text), width);
        for (i, text) in text.into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            lines.push(Line::from(vec![
                Text::styled(format!(" {label:<LABEL_WIDTH$}"), theme.dim),
                Text::styled(text, theme.text),
            ]));
        }
    }
    Paragraph::new(lines).render(below, buf);
}

fn run_details(view: &View<'_>, row: &RunRow) -> Vec<(&'static str, String)> {
    let run = view.runs.run(row);
    let mut parts = vec![("path", run.dir.path().display().to_string())];
    if !run.answers {
        return parts;
    }
    let overrides = match run.kind.overrides.join(" ") {
        none if none.is_empty() => "none".to_owned(),
        overrides => overrides,
    };
    parts.push(("overrides", overrides));
    if let Some(result) = &run.result {
        if let Some(cause) = &result.cause {
            parts.push(("ended", format!("{}: {cause}", result.outcome)));
        }
        if let Some(trust) = result.trust.as_ref().filter(|trust| !trust.issues.is_empty()) {
            parts.push(("trust", format!("{}/{}: {}", trust.score, trust.of, trust.issues.join("; "))));
        }
        if let Some(diagnosis) = &result.diagnosis {
            parts.push(("verdict", diagnosis.verdict.clone()));
        }
    }
    parts.push(("recorded", recorded(run)));
    parts
}

/// The time of the recording, and its sample sizes.
fn recorded(run: &RunEntry) -> String {
    let mut parts = Vec::new();
    if let (true, Ok(time)) = (run.modified > SystemTime::UNIX_EPOCH, Timestamp::try_from(run.modified)) {
        parts.push(time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string());
    }
    parts.extend(run.simulated().then(|| "simulated".to_owned()));
    if let Some(metrics) = run.metrics() {
        for (name, summary) in [("TTFT", metrics.ttft_ms), ("TPOT", metrics.tpot_ms)] {
            if let Some(ms) = summary.mean {
                parts.push(format!("{name} mean {} (n={})", millis(ms), summary.n));
            }
        }
        if let Some(rate) = metrics.decode_tok_s {
            parts.push(format!("decode {} tok/s", three_digits(rate)));
        }
    }
    parts.join(", ")
}

fn group_details(group: &Group) -> Vec<(&'static str, String)> {
    let (label, name) = match &group.key {
        GroupKey::Experiment(name) => ("experiment", name.clone()),
        GroupKey::Model(experiment, model) => ("model", format!("{model} in {experiment}")),
        GroupKey::Sweep(dir) => ("sweep", dir.display().to_string()),
        GroupKey::Pairs(dir) => ("pairs", dir.display().to_string()),
    };
    vec![(label, name), ("runs", summary(group))]
}

/// Padded to `width` cells.
fn padded(text: &str, width: usize) -> String {
    let text = if width == 0 { "" } else { text };
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// Right-aligned in `width` cells.
fn right(text: &str, width: usize) -> String {
    let text = if width == 0 { "" } else { text };
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}
