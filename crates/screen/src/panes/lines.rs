//! Lines: the Python lines of a followed program, by the time in which the GPU was idle and by the kernels that they
//! launched.

use crate::{
    pane::Spec,
    theme::Theme,
    view::View,
    widgets::{TableLines, draw_box, draw_note},
};
use crossterm::event::KeyCode;
use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::Line,
    widgets::Widget,
};

use llmprof_base::units::{grouped, millis};
use llmprof_event::HostActivity;
use llmprof_record::{
    report::{launches_table, python_lines},
    state::{LaunchGroup, Stacks},
};

pub struct LinesPane<'a>(pub View<'a>);

pub const PANE: Spec = Spec {
    title: "Lines",
    keys: &[KeyCode::Char('i')],
    help: "Lines: Python lines by GPU idle time and by GPU time",
    is_special: true,
    why_empty: "no Python program was followed",
    has_content: |_, state| state.stacks.is_there() || state.launches.is_there(),
    draw: |view, area, buf| LinesPane(view).render(area, buf),
    table: |view| python_lines(&view.state.stacks).select("thread,state,line,share,share_while_gpu_idle"),
    ..Spec::EMPTY
};

const SHARE: usize = 9;
const STATE: usize = 25;
const THREAD: usize = 19;
const KERNEL: usize = 41;
/// From these widths on, the column is there.
const WITH_ALL: u16 = 60;
const WITH_STATE: u16 = 70;
const WITH_THREAD: u16 = 100;

impl Widget for LinesPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        if !view.state.launches.is_there() {
            return draw_host(view, area, buf);
        }
        let halves = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]);
        let [upper, lower] = halves.areas(area);
        draw_host(view, upper, buf);
        draw_launches(view, lower, buf);
    }
}

/// Where the threads were.
fn draw_host(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let stacks = &view.state.stacks;
    let lines = stacks.lines();
    let inner = draw_box(theme, ("Python lines", &aside(stacks)), area, buf);
    if lines.is_empty() {
        let text = why_empty(view);
        return draw_note(theme, text, inner, buf);
    }
    let (has_idle, width) = (stacks.idle().is_some(), inner.width);
    let columns = [
        (has_idle, ("share_while_gpu_idle", SHARE)),
        (!has_idle || width >= WITH_ALL, ("share", SHARE + usize::from(has_idle))),
        (width >= WITH_STATE, ("state", STATE)),
        (width >= WITH_THREAD, ("thread", THREAD)),
    ];
    let table = python_lines(stacks).titled(["GPU idle", "all", "state", "thread", "line"]);
    let table = TableLines::new(theme, table, fitting(columns)).fill("line", width);
    let states = lines.iter().map(|line| style(theme, line.state));
    draw_table(&table.styled("state", states), inner, buf);
}

/// The columns for which there is room.
fn fitting<const N: usize>(
    columns: [(bool, (&'static str, usize)); N],
) -> impl Iterator<Item = (&'static str, usize)> {
    columns.into_iter().filter(|(fits, _)| *fits).map(|(_, column)| column)
}

fn draw_table(table: &TableLines<'_>, area: Rect, buf: &mut Buffer) {
    Line::from(table.heading()).render(Rect { height: 1, ..area }, buf);
    for (row, place) in (0..table.table.rows.len()).zip(area.rows().skip(1)) {
        Line::from(table.row(row)).render(place, buf);
    }
}

/// What the lines launched.
fn draw_launches(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let launches = &view.state.launches;
    let all = launches.all();
    let aside = format!(
        "{} in {} kernels recorded with their launches",
        millis(all.ns as f64 / 1e6),
        grouped(i64::try_from(all.launches).unwrap_or(i64::MAX))
    );
    let inner = draw_box(theme, ("GPU time by line", &aside), area, buf);
    let columns = [
        (true, ("share", SHARE)),
        (true, ("gpu_ms", SHARE + 1)),
        (inner.width >= WITH_ALL, ("launches", SHARE + 1)),
        (inner.width >= WITH_THREAD, ("kernel", KERNEL)),
    ];
    let table = launches_table(launches, LaunchGroup::Line);
    draw_table(&TableLines::new(theme, table, fitting(columns)).fill("place", inner.width), inner, buf);
}

fn why_empty(view: &View<'_>) -> &'static str {
    match (view.state.followed().is_some(), view.state.finished.is_some()) {
        (false, _) => "no Python program: llmprof-tui exec -- python PROGRAM, or attach PID",
        (true, false) => {
            "no line was sampled yet: the threads of Python processes are sampled 50 times per second"
        }
        (true, true) => "no line of a Python program was sampled",
    }
}

/// `GPU idle in 120 of 300 samples between recorded kernels`, or `1,200 samples`.
fn aside(stacks: &Stacks) -> String {
    let count = |n: u64| grouped(i64::try_from(n).unwrap_or(i64::MAX));
    match stacks.idle() {
        Some((idle, recorded)) => {
            format!("GPU idle in {} of {} samples between recorded kernels", count(idle), count(recorded))
        }
        None => format!("{} samples", count(stacks.samples())),
    }
}

fn style(theme: &Theme, state: &HostActivity) -> Style {
    match state {
        HostActivity::RunningPython | HostActivity::RunningNative => theme.decode,
        HostActivity::WaitingForGil | HostActivity::WaitingForLock | HostActivity::WaitingForCpu => {
            theme.warn
        }
        HostActivity::WaitingForGpu => theme.utilisation,
        HostActivity::SystemCall | HostActivity::Sleeping | HostActivity::PageFault => theme.clock,
        HostActivity::Stopped | HostActivity::Unknown | HostActivity::Other(_) => theme.dim,
    }
}
