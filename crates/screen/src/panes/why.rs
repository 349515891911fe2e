//! Why: each measured time as a stack of its owners, what each costs, and what makes it smaller.

use crate::{
    layout::Hit,
    pane::{Pane, Spec},
    theme::Theme,
    ui::Action,
    view::View,
    widgets::{ListLayout, TableLines, cut, draw_box, draw_note, draw_pointed, fit, wrapped},
};
use std::rc::Rc;

use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span as Text},
    widgets::Widget,
};

use llmprof_analysis::account::{Account, Entry, Evidence, Figure, Group, remedy};
use llmprof_base::units::{grouped, millis, percent};
use llmprof_record::{
    report::{all_owners, considerable_owners},
    state::{Accounts, RunState},
};

pub struct WhyPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Why",
    keys: &[KeyCode::Char('w')],
    help: "Why: where the time goes, and how to reduce it",
    is_special: false,
    why_empty: "no time was measured",
    has_content: |_, state| state.has_account(),
    draw: |view, area, buf| WhyPane(view).render(area, buf),
    table: |view| all_owners(&view.state.accounts()),
    // The owners of all accounts.
    rows: |view| count(&view.state.accounts()),
    open: Some(Action::RowEvidence),
    evidence: |view| {
        let accounts = view.state.accounts();
        let (_, entry) = entry_at(&accounts, selected(view, &accounts))?;
        Some(pane_of(view.state, entry))
    },
    ..Spec::EMPTY
};

fn selected(view: &View<'_>, accounts: &Accounts) -> usize {
    view.ui.row(Pane::Why).min(count(accounts).saturating_sub(1))
}

fn count(accounts: &Accounts) -> usize {
    accounts.all().map(|account| account.considerable().0.len()).sum()
}

/// If several GPUs were not recorded together, communication is in the table of kernels.
fn pane_of(state: &RunState, entry: &Entry) -> Pane {
    match entry.owner.evidence() {
        Evidence::Gpu => Pane::Gpu,
        Evidence::Ranks if state.ranks.is_there() => Pane::Ranks,
        Evidence::Kernels if entry.owner.group() == Group::Gaps && state.stacks.is_there() => Pane::Lines,
        Evidence::Kernels | Evidence::Ranks => Pane::Kernels,
        Evidence::Log => Pane::Log,
        Evidence::Roofline => Pane::Roofline,
        Evidence::Server => Pane::Server,
        Evidence::Tokens => Pane::Tokens,
    }
}

fn entry_at(accounts: &Accounts, selected: usize) -> Option<(&Account, &Entry)> {
    let shown = |account| Account::considerable(account).0.into_iter().map(move |entry| (account, entry));
    accounts.all().flat_map(shown).nth(selected)
}

impl Widget for WhyPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let accounts = view.state.accounts();
        if accounts.is_empty() {
            let inner = draw_box(theme, ("where the time goes", ""), area, buf);
            return draw_note(theme, &why_empty(view), inner, buf);
        }
        let n = accounts.all().count() as u16;
        let headline = theme.glyphs.plain(&view.state.limit().unwrap_or_default());
        let width = area.width.saturating_sub(4) as usize;
        let said = if headline.is_empty() { 0 } else { wrapped(&headline, width).len().min(3) as u16 };
        // With little room the stacks have no title lines, then only the first one is drawn.
        let stacks = match area.height.saturating_sub(said) {
            0..=11 => 0,
            12..=19 => n.min(2) + 2,
            _ => 2 * n + 3,
        };
        let detail = match area.height {
            ..16 => 0,
            // The sentence about the host is longer.
            28.. if view.state.stacks.idle().is_some() => 6,
            _ => 4,
        };
        let [top, upper, middle, below] = Layout::vertical([
            Constraint::Length(said),
            Constraint::Length(stacks),
            Constraint::Min(3),
            Constraint::Length(detail),
        ])
        .areas(area);
        if said > 0 {
            draw_pointed(theme, Line::styled(headline, theme.text), top, buf);
        }
        let selected = selected(view, &accounts);
        draw_stacks(view, &accounts, upper, buf);
        draw_owners(view, &accounts, selected, middle, buf);
        draw_detail(view, &accounts, selected, below, buf);
    }
}

fn why_empty(view: &View<'_>) -> String {
    let reason = match !view.state.kind().has_workload() {
        true => {
            "No workload is profiled, so there is no time to divide. The GPU pane shows the activity of the GPU."
        }
        false => {
            "No measurements yet: the first request adds the account of its TTFT, its tokens that of TPOT."
        }
    };
    view.state.program_without_kernels().unwrap_or_else(|| reason.to_owned())
}

fn style_of(theme: &Theme, group: Group) -> Style {
    match group {
        Group::Bound => theme.decode,
        Group::Gpu => theme.utilisation,
        Group::Clock => theme.bad,
        Group::Gaps => theme.warn,
        Group::Others => theme.prefill,
        Group::Outside => theme.power,
        Group::ModelStart => theme.utilisation,
        Group::ProcessStart => theme.temperature,
        Group::Unexplained => theme.dim,
    }
}

/// `TPOT 5.44 ms`, and the number of measurements.
fn title<'a>(theme: &Theme, account: &Account, width: u16) -> Line<'a> {
    let mut parts = vec![vec![
        Text::styled(format!(" {} ", account.figure.name()), theme.accent),
        Text::styled(theme.glyphs.plain(&millis(account.total_ns / 1e6)), theme.number),
    ]];
    if account.n > 1 {
        parts.push(vec![Text::styled(format!("mean, n={}", grouped(account.n as i64)), theme.dim)]);
    }
    fit(theme, parts, width)
}

fn draw_stacks(view: &View<'_>, accounts: &Accounts, area: Rect, buf: &mut Buffer) {
    if area.height < 3 {
        return;
    }
    let theme = view.theme;
    let inner = draw_box(theme, ("where the time goes", "each nanosecond has one owner"), area, buf);
    let n = accounts.all().count() as u16;
    let with_titles = inner.height >= 2 * n;
    let mut y = inner.y;
    for account in accounts.all() {
        if y >= inner.bottom() {
            break;
        }
        let mut row = Rect { y, height: 1, ..inner };
        match with_titles {
            true => {
                title(theme, account, inner.width).render(row, buf);
                row = Rect { x: inner.x + 1, y: y + 1, width: inner.width.saturating_sub(2), height: 1 };
                y += 2;
            }
            false => {
                let label = format!(" {:<6}{:>9} ", short(account.figure), millis(account.total_ns / 1e6));
                let taken = label.chars().count() as u16;
                buf.set_string(row.x, row.y, theme.glyphs.plain(&label), theme.accent);
                row = Rect { x: row.x + taken, width: row.width.saturating_sub(taken + 1), ..row };
                y += 1;
            }
        }
        draw_stack(theme, account, row, buf);
    }
    if y < inner.bottom() {
        legend(theme, accounts, inner.width).render(Rect { y, height: 1, ..inner }, buf);
    }
}

fn short(figure: Figure) -> &'static str {
    match figure {
        Figure::Tpot => "TPOT",
        Figure::Step => "step",
        Figure::Ttft => "TTFT",
        Figure::Throughput => "token",
        Figure::Program => "time",
        Figure::ColdStart => "start",
    }
}

/// The groups as segments whose widths add up to the whole row.
fn draw_stack(theme: &Theme, account: &Account, row: Rect, buf: &mut Buffer) {
    let groups = account.groups();
    let mut done_ns = 0.0;
    let mut x = row.x;
    for (i, (group, ns)) in groups.iter().enumerate() {
        done_ns += ns;
        let is_last = i + 1 == groups.len();
        let share = if is_last { 1.0 } else { account.share(done_ns).min(1.0) };
        let end = row.x + (share * f64::from(row.width)).round() as u16;
        let width = end.saturating_sub(x) as usize;
        if width == 0 {
            continue;
        }
        let edge = if theme.glyphs.ascii { "|" } else { "▏" };
        let label = theme.glyphs.plain(&format!("{} {}", group.name(), millis(ns / 1e6)));
        let short = theme.glyphs.plain(&millis(ns / 1e6));
        let text =
            [label, short].into_iter().find(|text| text.chars().count() + 2 <= width).unwrap_or_default();
        let text: String = format!("{edge}{text:<rest$}", rest = width - 1).chars().take(width).collect();
        buf.set_string(x, row.y, text, style_of(theme, *group).add_modifier(Modifier::REVERSED));
        x = end;
    }
}

fn legend<'a>(theme: &Theme, accounts: &Accounts, width: u16) -> Line<'a> {
    let block = if theme.glyphs.ascii { "#" } else { "■" };
    let is_there = |group: &Group| accounts.all().any(|account| account.group_ns(*group) > 0.0);
    let parts = Group::ALL.into_iter().filter(is_there).map(|group| {
        vec![
            Text::styled(format!(" {block} "), style_of(theme, group)),
            Text::styled(group.name(), theme.dim),
        ]
    });
    fit(theme, parts.collect(), width)
}

const NAME: usize = 26;
const TIME: usize = 10;
const SHARE: usize = 8;
/// From this width on, the basis is a column.
const WITH_BASIS: u16 = 100;

/// A line of the list.
enum OwnerLine<'a> {
    Heading(&'a Account),
    /// An entry with its number, if it can be selected, and the table of its account with its row.
    Owner(Option<(usize, &'a Entry)>, &'a Account, Rc<TableLines<'a>>, usize),
}

fn rows<'a>(theme: &'a Theme, accounts: &'a Accounts) -> Vec<OwnerLine<'a>> {
    let mut rows = Vec::new();
    let mut numbers = 0..;
    for account in accounts.all() {
        rows.push(OwnerLine::Heading(account));
        let table = considerable_owners(account);
        let lines = TableLines::new(theme, table, [("owner", NAME), ("ms", TIME), ("share", SHARE)]);
        let lines = Rc::new(lines);
        let mut entries = account.considerable().0.into_iter();
        rows.extend((0..lines.table.rows.len()).map(|row| {
            let entry = entries.next().and_then(|entry| Some((numbers.next()?, entry)));
            OwnerLine::Owner(entry, account, Rc::clone(&lines), row)
        }));
    }
    rows
}

fn draw_owners(view: &View<'_>, accounts: &Accounts, selected: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let inner = draw_box(theme, ("owners by cost", "Enter shows the evidence"), area, buf);
    let rows = rows(theme, accounts);
    let is_selected =
        |row: &OwnerLine<'_>| matches!(row, OwnerLine::Owner(Some((number, _)), ..) if *number == selected);
    let at = rows.iter().position(is_selected).unwrap_or(0);
    let list = ListLayout::scrolled(inner, rows.len(), at, at.saturating_sub(inner.height as usize / 2));
    for (i, place) in list.rows() {
        match &rows[i] {
            OwnerLine::Heading(account) => title(theme, account, place.width).render(place, buf),
            OwnerLine::Owner(None, _, table, row) => {
                let spans = [vec![Text::raw("     ")], table.row(*row)].concat();
                Line::from(spans).patch_style(theme.dim).render(place, buf);
            }
            OwnerLine::Owner(Some((number, entry)), account, table, row) => {
                entry_line(theme, account, entry, table.row(*row), place.width).render(place, buf);
                view.on_click(place, Hit::Row(*number));
                if *number == selected {
                    buf.set_style(place, theme.selected);
                }
            }
        }
    }
}

/// The cells of an entry between its colour, and its share as a bar with its basis.
fn entry_line<'a>(
    theme: &Theme,
    account: &Account,
    entry: &Entry,
    cells: Vec<Text<'a>>,
    width: u16,
) -> Line<'a> {
    let style = style_of(theme, entry.owner.group());
    let block = if theme.glyphs.ascii { "#" } else { "■" };
    let mut spans =
        [vec![Text::styled(format!("   {block} "), style)], cells, vec![Text::raw("  ")]].concat();
    let used: usize = spans.iter().map(Text::width).sum();
    let left = (width as usize).saturating_sub(used + 1);
    let with_basis = width >= WITH_BASIS;
    let bars = if with_basis { (left / 3).min(30) } else { left };
    let filled = ((account.share(entry.ns) * bars as f64).round() as usize).min(bars);
    let bar = if theme.glyphs.ascii { "#" } else { "█" };
    spans.push(Text::styled(format!("{:<bars$}", bar.repeat(filled)), style));
    if with_basis {
        let basis = theme.glyphs.plain(&entry.basis.to_string());
        let basis = cut(&basis, left.saturating_sub(bars + 2), theme.glyphs.ascii);
        spans.push(Text::styled(format!("  {basis}"), theme.dim));
    }
    Line::from(spans)
}

/// The basis of the selected entry, its remedy, and its pane.
fn draw_detail(view: &View<'_>, accounts: &Accounts, selected: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let Some((account, entry)) = entry_at(accounts, selected).filter(|_| area.height > 0) else { return };
    let pane = pane_of(view.state, entry).title();
    let title = format!("{} of {}", entry.owner, account.figure.name());
    let inner = draw_box(theme, (&title, &format!("Enter: {pane}")), area, buf);
    let mut text = format!(
        "{} of {}, {}: {}.",
        millis(entry.ns / 1e6),
        millis(account.total_ns / 1e6),
        percent(100.0 * account.share(entry.ns)),
        entry.basis
    );
    if let Some(remedy) = remedy(entry.owner, &view.state.setup(account.figure)) {
        text += &format!(" {remedy}.");
    }
    if entry.owner.group() == Group::Gaps
        && let Some(host) = view.state.stacks.idle_text()
    {
        text += &format!(" {host}");
    }
    let width = inner.width.saturating_sub(2) as usize;
    let lines = wrapped(&theme.glyphs.plain(&text), width);
    let rest = lines.len().saturating_sub(inner.height as usize);
    let last = inner.bottom().saturating_sub(1);
    for (line, y) in lines.into_iter().zip(inner.y..inner.bottom()) {
        // A cut text ends with a mark.
        let line = if rest > 0 && y == last { format!("{line} …") } else { line };
        buf.set_string(
            inner.x + 1,
            y,
            cut(&theme.glyphs.plain(&line), width, theme.glyphs.ascii),
            theme.text,
        );
    }
}
