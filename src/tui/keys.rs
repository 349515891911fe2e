//! The one table of keys: what is pressed, what it does, what help, footer and README say of it.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::ui::{Action, Pane};
use crate::run::rerun::Tool;

/// Where a key means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Anywhere,
    /// Only while a run is being made.
    Live,
    /// Only while one run is being made by itself.
    Single,
    /// Only while a sweep is at work.
    Sweep,
    /// Only while a recording is played.
    Replay,
    On(Pane),
}

impl Scope {
    pub fn title(self) -> &'static str {
        match self {
            Scope::Anywhere => "everywhere",
            Scope::Live => "while profiling",
            Scope::Single => "while profiling one run",
            Scope::Sweep => "in a sweep",
            Scope::Replay => "while replaying",
            Scope::On(pane) => pane.title(),
        }
    }
}

/// What the screen shows, as far as keys are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Single,
    Sweep,
    Replay,
    /// What files have in them, without a run.
    Files,
}

pub struct Binding {
    pub keys: &'static [KeyCode],
    /// How the key is written.
    pub label: &'static str,
    pub action: Action,
    pub scope: Scope,
    /// One or two words for the footer; empty keeps it out.
    pub short: &'static str,
    pub help: &'static str,
}

const fn key(
    keys: &'static [KeyCode],
    label: &'static str,
    action: Action,
    scope: Scope,
    short: &'static str,
    help: &'static str,
) -> Binding {
    Binding { keys, label, action, scope, short, help }
}

use Action as A;
use KeyCode::{BackTab, Char, Down, End, Enter, Esc, Home, Left, PageDown, PageUp, Right, Tab, Up};
use Scope::{Anywhere, Live, On, Replay, Single, Sweep};

/// Earlier rows win where two scopes share a key.
pub const BINDINGS: &[Binding] = &[
    key(
        &[Char('s')],
        "s",
        A::AskSnapshot,
        Live,
        "snapshot",
        "name the metrics since the last snapshot and keep them",
    ),
    key(&[Char('p')], "p", A::ToggleWorkload, Live, "pause", "pause the workload, or let it go on"),
    key(
        &[Char('K')],
        "K",
        A::ToggleKernels,
        Live,
        "",
        "record kernels as they run, or stop that; the run goes on",
    ),
    key(&[Char('r')], "r", A::Rerun, Single, "re-run", "start the same run again"),
    key(&[Char('e')], "e", A::AskOverrides, Single, "edit", "edit the overrides and start again with them"),
    key(
        &[Char('n')],
        "n",
        A::RunUnder(Tool::Nsys),
        Single,
        "nsys",
        "do the run again under Nsight Systems, or end that",
    ),
    key(
        &[Char('c')],
        "c",
        A::RunUnder(Tool::Ncu),
        Single,
        "ncu",
        "counters of the longest kernels (Nsight Compute), or end that",
    ),
    key(
        &[Char('e')],
        "e",
        A::EndJob,
        Sweep,
        "end job",
        "end this job, or the cool-down, and go on to the next job",
    ),
    key(
        &[Char(' ')],
        "space",
        A::ToggleView,
        Live,
        "freeze",
        "freeze the view, or let it go on; the run is not touched",
    ),
    key(&[Char(' ')], "space", A::TogglePlay, Replay, "play", "play or pause"),
    key(&[Char(',')], ",", A::Seek(-5.0), Replay, "", "back by 5 s"),
    key(&[Char('.')], ".", A::Seek(5.0), Replay, "", "forward by 5 s"),
    key(&[Char('<')], "<", A::Slower, Replay, "slower", "play slower"),
    key(&[Char('>')], ">", A::Faster, Replay, "faster", "play faster"),
    key(
        &[Left, Char('h')],
        "← h",
        A::KernelSource(-1),
        On(Pane::Kernels),
        "",
        "the source before: live phases, reports of nsys and ncu",
    ),
    key(&[Right, Char('l')], "→ l", A::KernelSource(1), On(Pane::Kernels), "", "the next source"),
    key(
        &[Enter],
        "Enter",
        A::OpenKernel,
        On(Pane::Kernels),
        "details",
        "all that is known of the chosen kernel, or back",
    ),
    key(&[Esc], "Esc", A::CloseKernel, On(Pane::Kernels), "", "back to the table"),
    key(
        &[Char('m')],
        "m",
        A::GroupKernels,
        On(Pane::Kernels),
        "group",
        "put together by operator, family, name, or single launches",
    ),
    key(&[Char('o')], "o", A::Sort, On(Pane::Kernels), "sort", "sort by time, calls or mean"),
    key(
        &[Char('/')],
        "/",
        A::AskFilter,
        On(Pane::Kernels),
        "filter",
        "show only kernels that contain a text",
    ),
    key(
        &[PageUp],
        "PgUp",
        A::PageKernels(-1),
        On(Pane::Kernels),
        "",
        "up by a page, of the table or of what is open",
    ),
    key(&[PageDown], "PgDn", A::PageKernels(1), On(Pane::Kernels), "", "down by a page"),
    key(&[Char('+'), Char('=')], "+", A::Zoom(-1), On(Pane::Kernels), "", "closer to the step's timeline"),
    key(&[Char('-')], "-", A::Zoom(1), On(Pane::Kernels), "", "more of the step's timeline"),
    key(&[Char('[')], "[", A::NextStretch(-1), On(Pane::Kernels), "", "an earlier part of the timeline"),
    key(&[Char(']')], "]", A::NextStretch(1), On(Pane::Kernels), "", "a later part of the timeline"),
    key(&[Esc, Char('b')], "b Esc", A::LeaveReplay, Replay, "", "back to the live run, if there is one"),
    key(&[Char('g')], "g", A::NextGpu, On(Pane::Gpu), "", "look at the next GPU, where there are several"),
    key(&[Left, Char('h')], "← h", A::Scrub(1), On(Pane::Tokens), "", "look at earlier tokens"),
    key(&[Right, Char('l')], "→ l", A::Scrub(-1), On(Pane::Tokens), "", "look at later tokens"),
    key(&[PageUp], "PgUp", A::Scrub(50), On(Pane::Tokens), "", "fifty tokens earlier"),
    key(&[PageDown], "PgDn", A::Scrub(-50), On(Pane::Tokens), "", "fifty tokens later"),
    key(&[End, Char('G')], "End G", A::ScrubToNow, On(Pane::Tokens), "", "the newest tokens"),
    key(
        &[Enter],
        "Enter",
        A::OpenIncident,
        On(Pane::Tokens),
        "incident",
        "the seconds around the chosen incident, or back",
    ),
    key(&[Enter], "Enter", A::OpenRun, On(Pane::Runs), "open", "open the chosen run"),
    key(
        &[Char('m')],
        "m",
        A::MarkRun,
        On(Pane::Runs),
        "mark",
        "mark the chosen run as A, to compare another with it",
    ),
    key(
        &[Char('d')],
        "d",
        A::CompareRuns,
        On(Pane::Runs),
        "diff",
        "compare the chosen run with the marked one, if one is",
    ),
    key(&[Char('o')], "o", A::Sort, On(Pane::Runs), "sort", "sort by another column"),
    key(&[Char('R')], "R", A::RefreshRuns, On(Pane::Runs), "", "look for runs again"),
    key(&[Char('/')], "/", A::AskFilter, On(Pane::Runs), "filter", "show only runs that contain a text"),
    key(&[Char('/')], "/", A::AskFilter, On(Pane::Log), "filter", "show only lines that contain a text"),
    key(&[Left], "←", A::Seek(-5.0), Replay, "", "back by 5 s"),
    key(&[Right], "→", A::Seek(5.0), Replay, "", "forward by 5 s"),
    key(&[Home, Char('g')], "Home g", A::SeekStart, Replay, "", "to the beginning"),
    key(&[End, Char('G')], "End G", A::SeekEnd, Replay, "", "to the end, and on with it while it grows"),
    key(&[Up, Char('k')], "↑ k", A::Move(-1), Anywhere, "", "up"),
    key(&[Down, Char('j')], "↓ j", A::Move(1), Anywhere, "", "down"),
    key(&[PageUp], "PgUp", A::Move(-20), Anywhere, "", "up by a page"),
    key(&[PageDown], "PgDn", A::Move(20), Anywhere, "", "down by a page"),
    key(&[Char('+'), Char('=')], "+", A::Zoom(-1), Anywhere, "", "a shorter stretch of time in the charts"),
    key(&[Char('-')], "-", A::Zoom(1), Anywhere, "", "a longer stretch of time in the charts"),
    key(
        &[Char('d')],
        "d",
        A::ShowCompare,
        Anywhere,
        "diff",
        "the last two snapshots side by side, with a verdict",
    ),
    key(
        &[Char('v')],
        "v",
        A::ShowEvidence,
        Anywhere,
        "evidence",
        "the numbers behind the verdict, and what to do",
    ),
    key(
        &[Char('x')],
        "x",
        A::Export,
        Anywhere,
        "export",
        "write what is on the screen to files: a picture, text, CSV",
    ),
    key(&[Char('t')], "t", A::NextTheme, Anywhere, "", "next theme"),
    key(&[Tab], "Tab", A::NextPane, Anywhere, "", "next pane"),
    key(&[BackTab], "Shift-Tab", A::PreviousPane, Anywhere, "", "previous pane"),
    key(
        &[Char('1')],
        "1",
        A::Show(Pane::Overview),
        Anywhere,
        "",
        "Overview: how fast, how even, what limits it",
    ),
    key(
        &[Char('2')],
        "2",
        A::Show(Pane::Gpu),
        Anywhere,
        "",
        "GPU: power, clocks, use, temperature; the host without one",
    ),
    key(
        &[Char('3')],
        "3",
        A::Show(Pane::Tokens),
        Anywhere,
        "",
        "Tokens: every token by its ITL, over power and clock",
    ),
    key(
        &[Char('4')],
        "4",
        A::Show(Pane::Kernels),
        Anywhere,
        "",
        "Kernels: what the GPU's time goes to, kernel by kernel",
    ),
    key(
        &[Char('5')],
        "5",
        A::Show(Pane::Roofline),
        Anywhere,
        "",
        "Roofline: operators and kernels against what the card can do",
    ),
    key(
        &[Char('6')],
        "6",
        A::Show(Pane::Compare),
        Anywhere,
        "",
        "Compare: two snapshots or runs, judged, and a sweep's jobs",
    ),
    key(&[Char('7')], "7", A::Show(Pane::Runs), Anywhere, "", "Runs: what was recorded"),
    key(&[Char('8')], "8", A::Show(Pane::Log), Anywhere, "", "Log: what the program has to say"),
    key(&[Char('?'), KeyCode::F(1)], "?", A::Help, Anywhere, "help", "this list"),
    key(&[Char('q')], "q", A::Quit, Anywhere, "quit", "quit; a sweep can be taken up again with --resume"),
];

/// What a key means on this pane.
pub fn action(event: KeyEvent, pane: Pane, mode: Mode) -> Option<Action> {
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(event.code, Char('c')).then_some(Action::Interrupt);
    }
    BINDINGS.iter().find(|b| applies(b.scope, pane, mode) && b.keys.contains(&event.code)).map(|b| b.action)
}

pub fn applies(scope: Scope, pane: Pane, mode: Mode) -> bool {
    match scope {
        Anywhere => true,
        Live => matches!(mode, Mode::Single | Mode::Sweep),
        Single => mode == Mode::Single,
        Sweep => mode == Mode::Sweep,
        Replay => mode == Mode::Replay,
        On(p) => p == pane,
    }
}

/// The table as the README shows it.
pub fn markdown() -> String {
    let mut out = String::from("| key | where | what |\n|---|---|---|\n");
    for b in BINDINGS {
        let label = if b.label == "|" { "\\|" } else { b.label };
        out += &format!("| `{label}` | {} | {} |\n", b.scope.title(), b.help);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things_in_one_scope() {
        for (i, a) in BINDINGS.iter().enumerate() {
            for b in &BINDINGS[i + 1..] {
                let same = a.scope == b.scope && a.keys.iter().any(|k| b.keys.contains(k));
                assert!(!same, "{} and {} share a key", a.help, b.help);
            }
        }
    }

    #[test]
    fn every_pane_has_its_number() {
        for (i, pane) in Pane::ALL.into_iter().enumerate() {
            let digit = char::from_digit(i as u32 + 1, 10).unwrap();
            let press = KeyEvent::new(Char(digit), KeyModifiers::NONE);
            assert_eq!(action(press, Pane::Overview, Mode::Single), Some(Action::Show(pane)));
        }
    }

    #[test]
    fn space_depends_on_what_is_shown() {
        let space = KeyEvent::new(Char(' '), KeyModifiers::NONE);
        assert_eq!(action(space, Pane::Gpu, Mode::Single), Some(Action::ToggleView));
        assert_eq!(action(space, Pane::Gpu, Mode::Sweep), Some(Action::ToggleView));
        assert_eq!(action(space, Pane::Gpu, Mode::Replay), Some(Action::TogglePlay));
    }

    #[test]
    fn a_sweep_is_not_restarted_by_a_key() {
        let press = |c| action(KeyEvent::new(Char(c), KeyModifiers::NONE), Pane::Overview, Mode::Sweep);
        assert_eq!((press('e'), press('r')), (Some(Action::EndJob), None));
    }
}
